"""Server of the control socket, which also keeps it where clients look for it.

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
import socket
from collections.abc import Awaitable, Callable

import trio

from nsm import paths
from nsmd.host import inotify
from nsmd.host.listeners import HOLDER_SOCKET, Identity, PlaceError, bound, identity_of

log = logging.getLogger(__name__)

_CHANGES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO


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
            notices = inotify.Inotify()
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

    def _watch(self, notices: inotify.Inotify) -> Identity | None:
        """Watch the present directory. Returns its identity, or None if there is none."""
        directory = os.path.dirname(self._path)
        try:
            notices.add(directory, _CHANGES | inotify.OF_ITSELF)
        except OSError as error:
            self._say(f"its directory cannot be watched ({error.strerror})")
            return None
        return identity_of(directory)

    @staticmethod
    async def _changed(notices: inotify.Inotify, names: set[str]) -> None:
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
