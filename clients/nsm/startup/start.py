"""Connect to the supervisor, and start it first where none listens.

Any number of programs may do so at once: they queue for one lock, the first starts a supervisor
and holds the lock until it listens, the others find it there. The lock is the kernel's, so a
starter that dies lets go of it. Standard library only, and little of it until a start is needed:
the shim's 30 ms to an answered `initialize` begin here.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from contextlib import suppress

from nsm import paths
from nsm.hosts.place import leads_elsewhere

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from typing import NoReturn

CONNECT_TIMEOUT_S = 10.0
"""Time that a connection may wait in the supervisor's backlog. It accepts at once unless it is
stopped or overloaded."""

RECONNECT_S = 30.0
"""Time that a client that has lost its connection waits for another supervisor. One takes a second
to listen; five on a machine that is short of everything, where it may be killed meanwhile."""

KEPT_S = 300.0
"""The same while a holder keeps sessions: supervisors that die one after the other lose none."""

RETRY_S = 0.1
"""Pause between attempts to connect: a socket without a listener gives no notice of a new one."""

_HOST_RETRY_S = 1.0
"""The same for a host that cannot be reached: each attempt starts ssh."""

_HOLDER_TIMEOUT_S = 1.0
"""Time limit for a holder to say how much it holds: less than a millisecond unless it is stopped.
"""

_TIMEVAL = struct.Struct("@ll")
"""Seconds and microseconds; socket(7)."""

_UCRED = struct.Struct("3i")
"""pid, uid, gid; unix(7)."""

CORRECTION_S = 24 * 3600
"""Time that kept sessions wait for a supervisor after one that cannot start: somebody has to
correct the configuration, or the installation."""


def connect(path: str, *, autostart: bool = True, again: bool = False) -> socket.socket:
    """A connection to the supervisor that listens on `path`, started first if need be.

    With ``NSM_AUTOSTART=0`` in the environment none is started. Without `autostart` only one is
    that goes on with the sessions of an earlier one.

    Args:
        again: a connection was lost. On the way to another host, ssh accepts connections even if
            no supervisor listens there, so the whole way is checked.

    Returns:
        A connected, blocking stream socket; the caller closes it.

    Raises:
        NotRunningError: none listens and none may be started, or none has started yet.
        CannotStartError: none can start.
        HostError: another host refuses us, or its nsm is of no use.
        PathError: the socket or its directory is unusable or not ours.
    """
    paths.check_socket_path(path)
    elsewhere = again and leads_elsewhere(path)
    connection = None if elsewhere else _try_connect(path)
    if connection is not None:
        return connection
    if elsewhere or leads_elsewhere(path):
        return _connect_elsewhere(path, autostart=autostart)
    if os.path.isdir(paths.BOX_PROGRAMS):
        _not_running(
            f"no supervisor serves this box: none listens on {path}",
            "The one outside has ended. Tell the user: end this box, and start it again.",
        )
    autostart = autostart or sessions_are_kept(path)
    if autostart and os.environ.get("NSM_AUTOSTART") == "0":
        _not_running(
            f"no supervisor listens on {path}, and NSM_AUTOSTART=0 forbids to start one",
            "Start `nsm-supervisor`, or unset NSM_AUTOSTART.",
        )
    if not autostart:
        _not_running(f"no supervisor listens on {path}", "`nsm run` or `nsm-mcp` starts one.")
    return _start(path)


def reconnect(path: str, *, autostart: bool = True, patience_s: float) -> socket.socket:
    """A connection in place of one that was lost; as `connect`, with patience.

    Whoever was to start the next supervisor may need a moment, and the one that has gone may hold
    its lock until the kernel has taken it away.

    Args:
        patience_s: seconds; beyond `RECONNECT_S` only while sessions are kept, or while a host
            cannot be reached. Once, it is tried in any case.

    Raises:
        NotRunningError, PathError: as `connect`, when the time is over.
        CannotStartError: at once.
    """
    began_s = time.monotonic()
    while True:
        try:
            return connect(path, autostart=autostart, again=True)
        except Exception as error:
            pause_s = pause_after(error, path, time.monotonic() - began_s, patience_s)
            if pause_s is None:
                raise
        # There is nothing to wait for: a socket that nobody listens on does not tell when.
        time.sleep(pause_s)


def pause_after(
    error: Exception, path: str, waited_s: float, patience_s: float = KEPT_S
) -> float | None:
    """Seconds to wait before it is worth connecting again after an error; None if it is not."""
    # Imports typing.
    from nsm.wire.errors import (  # noqa: PLC0415
        CannotStartError,
        DisconnectedError,
        HostUnreachableError,
        NotRunningError,
    )

    # Disconnected: the one that was ending took the connection before its end.
    if not isinstance(error, (NotRunningError, DisconnectedError)):
        return None
    if isinstance(error, CannotStartError):  # nor will the next one
        return None
    away = isinstance(error, HostUnreachableError)
    waited_s += RETRY_S
    if waited_s > patience_s or (waited_s > RECONNECT_S and not (away or sessions_are_kept(path))):
        return None
    return _HOST_RETRY_S if away else RETRY_S


def _connect_elsewhere(path: str, *, autostart: bool) -> socket.socket:
    from nsm.hosts.tunnel import open_tunnel  # noqa: PLC0415  # most clients stay on this machine

    name = open_tunnel(path, autostart=autostart and os.environ.get("NSM_AUTOSTART") != "0")
    connection = _try_connect(path)
    if connection is None:
        from nsm.wire.errors import HostUnreachableError  # noqa: PLC0415  # imports typing

        raise HostUnreachableError(
            f"the connection to {name} ended as soon as it was made", hint="Try again."
        )
    return connection


def _try_connect(path: str) -> socket.socket | None:
    """A connection, or None where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A blocking connect waits for room in the backlog, at most for the send timeout
        # (unix(7), socket(7)); a Python timeout would make it fail at once with EAGAIN.
        _set_send_timeout(connection, CONNECT_TIMEOUT_S)
        connection.connect(path)
        _set_send_timeout(connection, 0)
        _check_peer(connection, path)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        connection.close()
        return None
    except BlockingIOError:
        connection.close()
        _not_running(
            f"the supervisor on {path} has not taken a connection for {CONNECT_TIMEOUT_S:g} s",
            "It is stopped or overloaded: see `systemctl --user status nsm` or its process.",
        )
    except paths.PathError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise paths.PathError(
            f"the socket {path!r} can't be connected: {error.strerror}. "
            "Check its owner and mode, or set NSM_SOCKET to another place."
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def sessions_are_kept(path: str) -> bool:
    """Tell whether a holder (`nsmd.fdstore.holder`) keeps sessions of a supervisor that has ended.

    The holder may not have noticed its end yet: a process that was killed closes its descriptors
    one after the other. A holder that is stopped counts as one that keeps sessions.
    """
    return any(map(_has_sessions, _holders(path)))


def _has_sessions(place: str) -> bool:
    try:
        answer = _ask_holder(place, b"count").split()
    except (TimeoutError, BlockingIOError):
        return True
    except OSError:
        return False
    return answer[:1] == [b"count"] and answer[1:2] != [b"0"]


def _holders(path: str) -> list[str]:
    """Sockets of the holders beside a supervisor's socket.

    There may be several: one that did not answer a supervisor has another name behind its first.
    """
    directory = os.path.dirname(path)
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.startswith("keeper.sock")]


def _ask_holder(place: str, *words: bytes) -> bytes:
    """Send words to a holder; returns what it says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as holder:
        holder.settimeout(_HOLDER_TIMEOUT_S)
        holder.connect(place)
        for word in words:
            holder.send(word)
        return holder.recv(64)


def _set_send_timeout(connection: socket.socket, seconds: float) -> None:
    value = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def peer_of(connection: socket.socket) -> tuple[int, ...]:
    """Process, user and group id of whoever listens there (unix(7), SO_PEERCRED)."""
    return _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))


def _check_peer(connection: socket.socket, path: str) -> None:
    """Refuse a listener of another user: it would be given our code to run."""
    _, uid, _ = peer_of(connection)
    if uid not in (os.geteuid(), 0):
        raise paths.PathError(
            f"the socket {path!r} belongs to user {uid}. Set NSM_SOCKET to a path of your own."
        )


def _start(path: str) -> socket.socket:
    directory = os.path.dirname(path)
    paths.ensure_private_dir(directory)
    lock_path = os.path.join(directory, "start.lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise paths.PathError(
            f"the lock {lock_path!r} can't be opened: {error.strerror}. Remove it and try again."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _try_connect(path)  # whoever held the lock before may have started one
        if connection is None:
            from nsm.startup.spawn import ENDED, spawn  # noqa: PLC0415  # subprocess takes 10 ms to import

            report, final = spawn(path)
            if report == ENDED and not final:
                report, final = spawn(path)  # whoever kills supervisors may have met this one
            connection = _try_connect(path)
            if connection is None:
                _not_started(path, report or f"it does not listen on {path}", final=final)
        return connection
    finally:
        os.close(lock)


def _not_started(path: str, report: str, *, final: bool) -> NoReturn:
    from nsm.wire.errors import CannotStartError, SupervisorStartError  # noqa: PLC0415  # imports typing

    try:
        log = f" Its log: {paths.log_path()}"
    except paths.PathError:
        log = ""
    if final:
        for place in _holders(path):
            with suppress(OSError):  # it has ended, or is stopped
                _ask_holder(place, b"wait %d" % CORRECTION_S, b"count")
    kind = CannotStartError if final else SupervisorStartError
    raise kind(f"the supervisor did not start: {report}", hint=f"Run `nsm doctor`.{log}")


def _not_running(message: str, hint: str) -> NoReturn:
    from nsm.wire.errors import NotRunningError  # noqa: PLC0415  # imports typing

    raise NotRunningError(message, hint=hint)
