"""A process that keeps the connection to a host while ports of its sessions are open here.

    python -m nsm.hosts.port_keeper SOCKET

It follows the events of the supervisor there. If the connection is lost, the client that follows
opens it again, with its ports. If a port was closed there or its session ended, this process closes
the port here, too.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

from nsm.client.blocking import Client
from nsm.client.retry import RECONNECTED
from nsm.hosts.ports import forget, load
from nsm.http.listen_address import UNIX
from nsm.wire.errors import HostUnreachableError, NotRunningError, NsmError
from nsm.wire.host import ports
from nsm.wire.messages import read

if TYPE_CHECKING:
    from nsm.wire.messages import Event

_ENDS = ("port_closed", "session_ended")
"""Events after which a port may be gone."""

_PAST_EVENTS = 100
"""Number of past events to ask for: a port may have gone while the ports were listed."""


class _ChangedError(Exception):
    """Ports may have gone."""


def main() -> None:
    """Keep the connection, unless another process does."""
    path = sys.argv[1]
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while load(path):
        lock = os.open(f"{path}.ports", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _keep(path)
        except BlockingIOError:
            return  # that process looks again when it has given the lock back
        except NotRunningError as error:
            if isinstance(error, HostUnreachableError):
                return  # for too long; the next connection brings the ports back, and one of us
            forget(path, set(load(path)))  # all sessions have ended
        except (NsmError, OSError):
            return
        finally:
            os.close(lock)


def _keep(path: str) -> None:
    while load(path):
        try:
            _follow(path)
        except _ChangedError:
            continue


def _follow(path: str) -> None:
    with Client(socket_path=path, autostart=False, project=None, name="nsm port") as client:
        seen = read(int, client.call("events", {"last": 0}), "number")

        def take(event: Event) -> None:
            if event.event == RECONNECTED:
                raise _ChangedError
            if event.data.get("kind") in _ENDS and read(int, event.data, "number") > seen:
                raise _ChangedError

        rows = client.ask(ports())
        forget(path, load(path).keys() - {row.address.removeprefix(UNIX) for row in rows})
        if load(path):
            client.call("events", {"follow": True, "last": _PAST_EVENTS}, on_event=take)


if __name__ == "__main__":
    main()
