"""Lock of this supervisor, its listening socket and the guard of both, and the descriptors that
outlived an earlier supervisor.

If a supervisor cannot start while systemd listens for it, clients are told the reason. If nobody
accepted a connection, systemd would start the next supervisor at once, which would fail in the same
way. And if sessions wait for a supervisor, a mistake in `config.toml` must not end them: the last
valid configuration applies until the file is corrected.

Somebody may remove or replace the socket's file, the lock beside it, or the directory of both under
a running supervisor: a cleaner of ``/tmp``, or a person. Clients would then start another
supervisor beside this one, and nobody could reach this one's sessions. So the kernel reports
changes there (inotify(7)), and the guard makes missing files again at once, before another
supervisor has started. It leaves alone what somebody put in their place, and logs that it is in the
way.
"""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack, suppress

import trio

from nsm import paths
from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError, StartFailedError
from nsm.wire.messages import CONNECTION_ID, Failure, ServerConnection, sniff
from nsmd.app import service_manager
from nsmd.fdstore.handover import HandedOver, take_over
from nsmd.fdstore.store import Kept
from nsmd.host import source_watcher as watching
from nsmd.host.listeners import (
    BACKLOG,
    HOLDER_SOCKET,
    LOCK,
    Identity,
    PlaceError,
    bound,
    check_passed,
    check_way,
    hold_lock,
    identity_of,
    listening_socket,
    removed_at_the_end,
)
from nsmd.host.paths import trusted_owners

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The lock, the socket and the descriptors of this supervisor.

    Attributes:
        own: identity of the socket's file, if this supervisor removes it at the end.
        kept: descriptors that the service manager kept for an earlier supervisor.
        handed: descriptors from the program that this process was before a reload; else None.
    """

    listener: socket.socket
    own: Identity | None
    lock: int
    kept: Kept
    handed: HandedOver | None


def open_instance(stack: ExitStack) -> Instance:
    """Take the lock, and get a socket: from the program before a reload, from the service manager
    (which keeps it for the next supervisor), or a new one.

    Raises:
        PlaceError, ServiceManagerError: no socket can be had.
    """
    runtime = paths.ensure_runtime_dir()
    handed = take_over(os.environ)
    lock = stack.enter_context(
        hold_lock(os.path.join(runtime, LOCK), handed.lock if handed else None)
    )
    passed = service_manager.take_passed(os.environ)
    expected = paths.socket_path()
    owners = trusted_owners()
    check_way(os.path.dirname(expected), owners)
    own = None
    if handed is not None:
        listener, own = socket.socket(fileno=handed.listener), handed.own
        listener.setblocking(False)
        stack.enter_context(listener)
        stack.enter_context(removed_at_the_end(listener.getsockname(), own))
    elif passed.listener is not None:
        listener = stack.enter_context(passed.listener)
        _check_passed(listener, expected, owners)
    else:
        listener = stack.enter_context(listening_socket(expected))
        own = identity_of(expected)
    return Instance(listener=listener, own=own, lock=lock, kept=passed.kept, handed=handed)


def _check_passed(listener: socket.socket, expected: str, owners: Collection[int]) -> None:
    """Check that only the owner can reach a passed socket.

    Raises:
        PlaceError: others may reach it.
    """
    path = listener.getsockname()
    check_passed(path, owners)
    listener.listen(BACKLOG)  # again: this only sets how many may wait
    if path != expected:
        log.warning(
            "listening on %s as the service manager says; clients look for %s, unless NSM_SOCKET "
            "says otherwise",
            path,
            expected,
        )


WORDS_TIMEOUT_S = 1.0
"""Time for clients to say which protocol they speak. They do so at once."""

_CHUNK_BYTES = 65536

LAST_GOOD = "config.last.toml"
"""Name, in the state directory, of the last configuration with which a supervisor started."""


def refuse_waiting(listener: socket.socket, why: str) -> int:
    """Answer all waiting clients, each in its own protocol.

    Args:
        listener: listening, non-blocking; the caller closes it.

    Returns:
        How many there were.
    """
    error = StartFailedError(
        f"The supervisor cannot start: {why}", hint="Correct that; the next call starts it again."
    )
    count = 0
    with selectors.DefaultSelector() as waiting:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            connection.setblocking(False)
            waiting.register(connection, selectors.EVENT_READ)
            count += 1
        deadline = time.monotonic() + WORDS_TIMEOUT_S
        while waiting.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                _refuse(key.fileobj, error)
        for key in list(waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return count


def _refuse(connection: socket.socket, error: NsmError) -> None:
    from nsmd.mcp.attachment import refused  # noqa: PLC0415  # rarely needed

    with connection, suppress(OSError):
        first = connection.recv(_CHUNK_BYTES)
        if first and sniff(first) == "attachment":
            connection.send(refused(error))
        elif first:
            connection.send(ServerConnection().send(Failure(CONNECTION_ID, error)))
        with suppress(BlockingIOError):
            # the peer would see an error if something stayed unread
            while connection.recv(_CHUNK_BYTES):
                pass


def remember_config(path: str, state: str) -> None:
    """Remember that a supervisor starts with this configuration.

    Args:
        path: path of the file. If it does not exist, none is remembered.
        state: state directory. If it cannot be written, nothing is remembered.
    """
    kept = os.path.join(state, LAST_GOOD)
    with suppress(OSError):
        if not os.path.exists(path):
            os.unlink(kept)
            return
        os.makedirs(state, mode=0o700, exist_ok=True)
        shutil.copyfile(path, f"{kept}.new")
        os.replace(f"{kept}.new", kept)


def last_good(state: str) -> str:
    """Path of the remembered configuration; there may be no such file."""
    return os.path.join(state, LAST_GOOD)


_CHANGES = watching.CREATE | watching.DELETE | watching.MOVED_FROM | watching.MOVED_TO


class SocketGuard:
    """Guard of the control socket.

    Args:
        listener: listens at a path; closed when serving ends; until then this descriptor is always
            the socket at that path.
        ours: the socket is the supervisor's own. If not, the guard only logs problems.
        directory_changed: called after any change there: other parts have files there, too.
    """

    def __init__(
        self,
        listener: socket.socket,
        lock: int,
        lock_path: str,
        *,
        ours: bool,
        directory_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = listener
        self._lock = lock
        self._path: str = listener.getsockname()
        self._lock_path = lock_path
        self._ours = ours
        self._directory_changed = directory_changed
        self._identity = identity_of(self._path)
        self._serving = trio.CancelScope()
        self._said = ""

    def __repr__(self) -> str:
        return f"<SocketGuard of {self._path}>"

    async def serve(
        self,
        handle: Callable[[trio.SocketStream], Awaitable[object]],
        connections: trio.Nursery,
    ) -> None:
        """Accept connections until cancelled, each in a task of that nursery."""
        try:
            while True:
                # A duplicate: the guard replaces the descriptor, and serving closes its own.
                taken = trio.socket.from_stdlib_socket(self._listener.dup())
                with self._serving:
                    await trio.serve_listeners(
                        handle, [trio.SocketListener(taken)], handler_nursery=connections
                    )
                self._serving = trio.CancelScope()
        finally:
            self._listener.close()

    async def watch(self) -> None:
        """Make removed files again, until cancelled."""
        try:
            notices = watching.Inotify()
        except OSError as error:
            log.warning("%s is not watched: %s", self._path, error)
            return
        names = {os.path.basename(self._path), os.path.basename(self._lock_path), HOLDER_SOCKET}
        try:
            watched = self._watch(notices)
            while True:
                self._restore_files()
                self._directory_changed()
                if watched is None:  # the directory may be there again
                    watched = self._watch(notices)
                await self._changed(notices, names)
                if identity_of(os.path.dirname(self._path)) != watched:
                    watched = None
        finally:
            notices.close()

    def _watch(self, notices: watching.Inotify) -> Identity | None:
        """Watch the present directory. Returns its identity, or None if there is none."""
        directory = os.path.dirname(self._path)
        try:
            notices.add(directory, _CHANGES | watching.OF_ITSELF)
        except OSError as error:
            self._say(f"its directory cannot be watched ({error.strerror})")
            return None
        return identity_of(directory)

    @staticmethod
    async def _changed(notices: watching.Inotify, names: set[str]) -> None:
        while True:
            await trio.lowlevel.wait_readable(notices.fd)
            if any(not told.name or told.name in names for told in notices.read()):
                return

    def _restore_files(self) -> None:
        held = os.fstat(self._lock)
        locked = identity_of(self._lock_path) == (held.st_dev, held.st_ino)
        there = self._identity is not None and identity_of(self._path) == self._identity
        if locked and there:
            return
        if not self._ours:
            if not there:
                self._say("it was removed or replaced. Restart nsm-supervisor.socket")
            return
        try:
            paths.ensure_private_dir(os.path.dirname(self._path))
            if not locked:
                self._lock_again()
            if not there:
                self._bind_again()
        except (PlaceError, paths.PathError, OSError) as error:
            self._say(str(error))

    def _lock_again(self) -> None:
        """Lock the present file, besides the removed one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._lock_path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            os.dup2(fd, self._lock, inheritable=False)
        except BlockingIOError as error:
            raise PlaceError(
                f"another supervisor has taken its place, since {self._lock_path} was removed. End "
                "that one with `nsm shutdown`, and remove the file again, to get back to this "
                f"one's sessions (process {os.getpid()})"
            ) from error
        finally:
            os.close(fd)
        log.warning("%s was removed, and is there again", self._lock_path)

    def _bind_again(self) -> None:
        if identity_of(self._path) is not None:
            raise PlaceError("something else is in its place. Remove that: then nsm makes it again")
        with bound(self._path) as new:
            os.dup2(new.fileno(), self._listener.fileno(), inheritable=False)
        self._identity, self._said = identity_of(self._path), ""
        self._serving.cancel()
        log.warning("%s was removed, and is there again", self._path)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            log.error("clients do not find %s: %s", self._path, what)
