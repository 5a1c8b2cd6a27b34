"""Ports of a host's sessions, opened on this machine.

There, a port is a Unix socket in nsm's own directory, so that other users of that machine cannot
connect. ssh forwards an address of this machine to it. A file has both, so that a connection that
is made again brings the ports back. As long as there are any, a process keeps the connection, and
closes here what was closed there:

    python -m nsm.hosts.ports SOCKET
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from nsm import paths
from nsm.client.steps import ask
from nsm.hosts.ssh import connection_of, locked, remote_socket
from nsm.http.listen_address import UNIX, Port, UnixPath, parse_listen
from nsm.startup.spawn import detached
from nsm.wire import host as wire
from nsm.wire.errors import BadRequestError, HostUnreachableError, NotRunningError, NsmError
from nsm.wire.messages import read

if TYPE_CHECKING:
    from nsm.client.steps import Steps
    from nsm.hosts.ssh import SshConnection
    from nsm.wire.host import PortRow
    from nsm.wire.messages import Event

_ANY_PORT = "127.0.0.1:0"

_TRIES = 5
"""Attempts at a free port of this machine: another program may take the one that was found."""

_ENDS = ("port_closed", "session_ended")
"""Events after which a port may be gone."""

_PAST_EVENTS = 100
"""Number of past events to ask for: a port may have gone while the ports were listed."""


Forwards = dict[str, str]
"""Address here by address there."""


def open_port(path: str, target: str, port: int, listen: str | None) -> Steps[PortRow]:
    """Open a port of a session at an address of this machine; None for any free port.

    Here and below, `path` is that of the host's socket.
    """
    wanted = _checked(listen or _ANY_PORT)
    row = yield from _open_there(path, target, port)
    there = row.address.removeprefix(UNIX)
    known = load(path)
    if there in known and listen is None:
        return row._replace(address=_shown(known[there]))
    forwarded: list[str] = []

    def forward() -> None:
        forwarded.append(_forward(path, there, wanted))

    try:
        yield forward
    except BaseException:
        if there not in known:
            yield from ask(wire.port_close(row.session, port))
        raise
    return row._replace(address=_shown(forwarded[0]))


def _open_there(path: str, target: str, port: int) -> Steps[PortRow]:
    """Open the port there, unless it is open already."""
    for row in (yield from ask(wire.ports(target))):
        if row.port == port and row.is_open:
            return row
    directory = os.path.dirname(remote_socket(path))
    address = f"{UNIX}{directory}/port-{secrets.token_hex(4)}.sock"
    return (yield from ask(wire.port_open(target, port, listen=address)))


def close_port(path: str, target: str, port: int) -> Steps[None]:
    """Close a port of a session, there and here."""
    rows = yield from ask(wire.port_close(target, port))
    closed = {row.address.removeprefix(UNIX) for row in rows}
    yield lambda: forget(path, closed)


def list_ports(path: str, target: str | None) -> Steps[list[PortRow]]:
    """List the open ports, with their addresses here."""
    rows = yield from ask(wire.ports(target))
    known = load(path)
    return [
        row._replace(address=_shown(known[there])) if there in known else row
        for row in rows
        for there in (row.address.removeprefix(UNIX),)
    ]


def load(path: str) -> Forwards:
    """The forwarded addresses of a host."""
    try:
        with open(_file(path), encoding="utf-8") as file:
            return cast("Forwards", json.load(file))
    except (FileNotFoundError, ValueError):
        return {}


def forget(path: str, gone: set[str]) -> None:
    """Take back the forwards of these addresses there."""
    if not gone:
        return
    with locked(path):
        known = load(path)
        connection = connection_of(path)
        for there in gone & known.keys():
            here = known.pop(there)
            connection.unforward(here, there)
            if here.startswith("/"):
                with suppress(FileNotFoundError):
                    os.unlink(here)
        paths.replace_file(_file(path), json.dumps(known).encode())


def restore(path: str, connection: SshConnection) -> None:
    """Forward all again over a fresh connection; have it kept."""
    known = load(path)
    for there, here in known.items():
        if here.startswith("/"):
            with suppress(FileNotFoundError):  # the last connection's
                os.unlink(here)
        with suppress(HostUnreachableError):  # another program may have the address by now
            connection.forward(here, there)
    if known:
        keep(path)


def keep(path: str) -> None:
    """Have a process keep the connection as long as there are ports; a second one ends at once."""
    subprocess.Popen(
        [*detached(), sys.executable, "-P", "-m", "nsm.hosts.ports", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    ).wait()


def _forward(path: str, there: str, wanted: Port | UnixPath) -> str:
    with locked(path):
        connection = connection_of(path)
        known = load(path)
        if there in known:
            connection.unforward(known[there], there)
        here = ""
        for tries in range(_TRIES):
            here = _address(wanted)
            try:
                connection.forward(here, there)
                break
            except HostUnreachableError as error:
                chosen = isinstance(wanted, UnixPath) or wanted.number
                if chosen or tries == _TRIES - 1:
                    raise BadRequestError(
                        f"A port of a session cannot be opened at {_shown(here)}.",
                        hint="Another program may listen there; `nsm port` lists the ports that "
                        "nsm has opened.",
                    ) from error
        known[there] = here
        paths.replace_file(_file(path), json.dumps(known).encode())
    keep(path)
    return here


def _checked(listen: str) -> Port | UnixPath:
    try:
        address = parse_listen(listen)
    except ValueError as error:
        raise BadRequestError(
            f"A port of a session cannot be opened at {listen!r:.200}: {error}.",
            hint="For example 127.0.0.1:8000, 127.0.0.1:0 for any free port, or unix:/PATH.",
        ) from None
    if isinstance(address, UnixPath) and os.path.lexists(address.path):
        raise BadRequestError(
            f"A port of a session cannot be opened at {listen}: that path exists already.",
            hint="Remove it, or choose another path.",
        )
    return address


def _address(wanted: Port | UnixPath) -> str:
    """An address for ssh; of any free port, one that is free now."""
    if isinstance(wanted, UnixPath):
        return wanted.path
    host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    if wanted.number:
        return f"{host}:{wanted.number}"
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((wanted.host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def _shown(here: str) -> str:
    return UNIX + here if here.startswith("/") else here


def _file(path: str) -> str:
    return os.path.join(os.path.dirname(path), "ports.json")


class _ChangedError(Exception):
    """Ports may have gone."""


def _keep_connection(path: str) -> None:
    """Keep the connection while there are ports, unless another process does."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while load(path):
        lock = os.open(f"{path}.ports", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _follow_while_open(path)
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


def _follow_while_open(path: str) -> None:
    while load(path):
        try:
            _follow(path)
        except _ChangedError:
            continue


def _follow(path: str) -> None:
    """Follow the events of the supervisor there. If the connection is lost, the client opens it
    again, with its ports."""
    from nsm.client.blocking import Client  # noqa: PLC0415  # clients import this module
    from nsm.client.retry import RECONNECTED  # noqa: PLC0415

    with Client(socket_path=path, autostart=False, project=None, name="nsm port") as client:
        seen = read(int, client.call("events", {"last": 0}), "number")

        def take(event: Event) -> None:
            if event.event == RECONNECTED:
                raise _ChangedError
            if event.data.get("kind") in _ENDS and read(int, event.data, "number") > seen:
                raise _ChangedError

        rows = client.ask(wire.ports())
        forget(path, load(path).keys() - {row.address.removeprefix(UNIX) for row in rows})
        if load(path):
            client.call("events", {"follow": True, "last": _PAST_EVENTS}, on_event=take)


if __name__ == "__main__":
    _keep_connection(sys.argv[1])
