"""Lock and listening sockets of the supervisor: a lock for its life, sockets that only its user can
reach, ports, and the addresses of the host at which ports of sessions are opened.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import logging
import os
import socket
import stat
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress

from nsm.http.listen_address import UNIX, Port, UnixPath, parse_listen
from nsm.wire.errors import BadRequestError
from nsmd.host.paths import trusted_owners

log = logging.getLogger(__name__)


BACKLOG = 1024
"""Connections that the kernel holds while the supervisor is busy; enough for many shims at once."""


LOCK_S = 3.0
LOCK_RETRY_S = 0.02
"""Pause before another try for the lock of a killed supervisor: a new one may start before the
kernel has released it.
"""

LOCK = "supervisor.lock"
"""Name of the supervisor's lock, beside the socket."""

HOLDER_SOCKET = "keeper.sock"
"""Name of the holder's socket, beside it. `nsm.startup.start` uses it, too. Holders of earlier
versions listen under this name, so it stays.
"""

MAX_SOCKET_PATH_BYTES = 107
"""Linux, unix(7): sun_path has 108 bytes with its end."""


Identity = tuple[int, int]
"""Device and inode."""


class PlaceError(Exception):
    """The lock or a socket cannot be had; the message says why and what to do."""

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(f"{why} {advice}".rstrip())
        self.why = why


class LockedError(PlaceError):
    """Another supervisor holds the lock. It may be about to end."""


def check_way(path: str, owners: Collection[int]) -> None:
    """Refuse a directory that somebody else could replace.

    Anybody who can rename a directory on the way can do that, whatever the directory's own mode.

    Raises `PlaceError`.

    Args:
        path: absolute path of an existing directory, or of a socket in one, which is then checked
            as well.
    """
    real = os.path.realpath(path)
    for way in {path, real}:
        parts = [part for part in way.split("/") if part]
        for count in range(len(parts)):
            _check_step("/" + "/".join(parts[:count]), owners)
    if os.path.islink(path):
        raise PlaceError(f"{path} is a symbolic link.", f"Set NSM_SOCKET to a path in {real}.")


def _check_step(step: str, owners: Collection[int]) -> None:
    try:
        status = os.lstat(step)
    except OSError as error:
        raise PlaceError(f"{step} cannot be looked at ({error.strerror}).") from error
    why = None
    if status.st_uid not in owners:
        why = f"{step} belongs to user {status.st_uid}"
    elif stat.S_ISDIR(status.st_mode) and status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == (
        stat.S_IWOTH
    ):
        # In a sticky directory nobody renames others' files (unlink(2)); each step's owner is
        # checked. Whoever gave a directory to a group trusts the group.
        why = f"everybody may write to {step}"
    if why is not None:
        raise PlaceError(
            f"{why}, who could put a socket of their own in its place.",
            "Set NSM_SOCKET to a path in a directory that is yours alone, with all that leads "
            "there yours or root's.",
        )


def check_passed(path: str, owners: Collection[int]) -> None:
    """Refuse a socket of the service manager that others can reach. Raises `PlaceError`."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise PlaceError(
            f"The service manager's socket {path} cannot be looked at ({error.strerror}). Restart "
            "nsm-supervisor.socket."
        ) from error
    if status.st_uid not in owners or not stat.S_ISSOCK(status.st_mode):
        raise PlaceError(f"{path} is not the socket that the service manager has passed.")
    if status.st_mode & 0o077:
        raise PlaceError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}). Set "
            "SocketMode=0600 and DirectoryMode=0700 in nsm-supervisor.socket."
        )


@contextmanager
def hold_lock(path: str, held: int | None = None) -> Generator[int]:
    """Hold the supervisor's lock; gives its descriptor. Raises `LockedError` or `PlaceError`.

    Args:
        held: descriptor of the lock from the program before a reload; owned from now on.
    """
    if held is not None:
        fd = held
    else:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise PlaceError(f"{path} cannot be opened ({error.strerror}).") from error
    try:
        if not _lock_soon(fd):
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise LockedError(
                f"A supervisor is running already (pid {pid or 'unknown'}). "
                "`nsm status` shows it, `nsm shutdown` ends it."
            )
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:  # a full disk; the lock still works
            log.warning("%s cannot be written (%s): it does not say who holds it", path, error)
        yield fd
    finally:
        # The file stays: after a removal, two supervisors could lock two files of one name.
        os.close(fd)


def _lock_soon(fd: int) -> bool:
    """Take a lock soon; False if another process keeps it."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_RETRY_S)  # flock(2) has no time limit
        else:
            return True


@contextmanager
def listening_socket(path: str) -> Generator[socket.socket]:
    """Listen at a path, replacing a socket that a dead supervisor of ours left behind.

    Call it under the supervisor's lock, in a directory that only we can write.

    Raises `PlaceError`.
    """
    with bound(path) as listener, removed_at_the_end(path, identity_of(path)):
        yield listener


def bound(path: str) -> socket.socket:
    """Make a socket that listens at a path, as `listening_socket`; the caller closes it.

    Raises `PlaceError`.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise PlaceError(
            f"The socket's path has {len(os.fsencode(path))} bytes, Linux allows "
            f"{MAX_SOCKET_PATH_BYTES}: {path}.",
            "Set NSM_SOCKET to a shorter one.",
        )
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode comes from the umask: a chmod after bind would be a moment too late.
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PlaceError(f"{path} cannot be used as socket ({error.strerror}).") from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


@contextmanager
def removed_at_the_end(path: str, identity: Identity | None) -> Generator[None]:
    """Remove our socket afterwards, unless somebody put another one in its place."""
    try:
        yield
    finally:
        if identity is not None and identity_of(path) == identity:
            with suppress(OSError):
                os.unlink(path)


def _clear(path: str) -> None:
    """Remove a stale socket of ours. Raises `PlaceError`."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlaceError(f"{path} cannot be looked at ({error.strerror}).") from error
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        raise PlaceError(
            f"{path} exists and is not a socket of yours.",
            "Remove it, or set NSM_SOCKET to another path.",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise PlaceError(f"{path} is in an odd state ({error.strerror}).") from error
        else:
            raise PlaceError(
                f"Another program listens on {path}.",
                "`nsm status` shows whether it is a supervisor.",
            )
    with suppress(FileNotFoundError):
        os.unlink(path)


def identity_of(path: str) -> Identity | None:
    """Identity of the file at a path; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def tcp_listener(host: str, number: int, backlog: int) -> socket.socket:
    """Make a socket that listens at an address of this machine, and does not block."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Lingering connections of an earlier supervisor must not prevent this.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, number))
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


ANY_PORT = "127.0.0.1:0"
"""Address if none is asked for: any free port of the loopback."""


def parse_address(text: str, *, public: bool) -> Port | UnixPath:
    """Parse the address to listen at, which other machines may reach if the port is `public`."""
    try:
        return parse_listen(text)
    except ValueError as error:
        wide = _wide_address(text)
        if wide is not None and public:
            return wide
        raise BadRequestError(
            f"A port of a session cannot be opened at {text!r:.200}: "
            + ("other machines could reach it." if wide is not None else f"{error}."),
            hint="With `--public` it is opened all the same."
            if wide is not None
            else "For example 127.0.0.1:8000, 127.0.0.1:0 for any free port, or unix:/PATH.",
        ) from None


def _wide_address(text: str) -> Port | None:
    """Address that other machines may reach; None if the text is no address with a port."""
    host, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 5 and int(number) < 65536):
        return None
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if "%" in host or (address.version == 6) != host.startswith("["):
        return None
    return Port(str(address), int(number))


def listen(address: Port | UnixPath) -> socket.socket:
    """Make a socket that listens at an address; a `BadRequestError` says why there can be none."""
    try:
        match address:
            case UnixPath(path=path):
                check_way(path, trusted_owners())  # its directory included
                return bound(path)
            case Port():
                return tcp_listener(address.host, address.number, BACKLOG)
    except PlaceError as error:
        raise BadRequestError(
            f"A port of a session cannot be opened there: {error.why}",
            hint="Choose another path for the socket, in a directory of yours.",
        ) from error
    except OSError as error:
        raise BadRequestError(
            f"A port of a session cannot be opened at {shown(address)}: {error.strerror}.",
            hint="`nsm port` lists the ports that nsm has opened; 127.0.0.1:0 is any free port.",
        ) from error


def listens_at(address: Port | UnixPath, listener: socket.socket) -> Port | UnixPath:
    """Return the address with the port number that the kernel chose."""
    if isinstance(address, UnixPath):
        return address
    return Port(address.host, int(listener.getsockname()[1]))


def shown(address: Port | UnixPath) -> str:
    """Text of an address, as people write it."""
    if isinstance(address, UnixPath):
        return UNIX + address.path
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.number}"


def remove_socket(path: str, identity: Identity) -> None:
    """Remove a socket of ours, unless somebody has put another file in its place."""
    if identity_of(path) == identity:
        with suppress(OSError):
            os.unlink(path)
