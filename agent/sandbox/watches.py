"""Changes of files, as inotify(7) tells them."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from sandbox.files import is_temporary
from sandbox.framing import READ_BYTES
from sandbox.linux import c_library
from sandbox.paths import TransferError, fail_with, name_of, open_path, refuse_virtual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandbox.polling import Poller
    from sandbox.session import SharedSession


MAX_WATCHES = 16
"""Watches at a time."""

MAX_WATCHED = 1000
"""Directories of one watch."""

MAX_EVENTS = 500
"""Events in one frame."""

GATHER_S = 0.05
"""Time in which equal changes become one event."""

# Of linux/inotify.h.
(
    IN_MODIFY,
    IN_ATTRIB,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_Q_OVERFLOW,
    IN_IGNORED,
) = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200, 0x400, 0x4000, 0x8000

IN_ISDIR = 0x40000000

WATCHED_CHANGES = (
    IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF
)

CHANGE_KINDS = (
    (IN_CREATE | IN_MOVED_TO, "created"),
    (IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF, "removed"),
    (IN_MODIFY, "modified"),
    (IN_ATTRIB, "attributes"),
)


class FileWatch:
    """One path that is watched; of a directory, what is in it.

    Raise TransferError if there are too many directories.

    Args:
        recursive: directories below are watched, too. No link is followed.
        send: takes events, True if some are missing, and True if no more will come.
    """

    def __init__(
        self,
        path: str,
        *,
        recursive: bool,
        poller: Poller,
        send: Callable[[list[list[str]], bool, bool], bool],
    ) -> None:
        import ctypes

        self._recursive = recursive
        self._poller = poller
        self._send = send
        self._begins = True  # what is there already is not told
        self._paths: dict[int, str] = {}
        self._events: dict[tuple[str, str, str], None] = {}
        self._overflow = self._ended = self._scheduled = False
        self.fd = c_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            fail_with(ctypes.get_errno())
        try:
            found = open_path(path)
            try:
                refuse_virtual(found, path)
                self.path = name_of(found)
                self._add(found, "", first=True)
                self._begins = False
            finally:
                os.close(found)
        except BaseException:
            os.close(self.fd)
            raise
        poller.watch(self.fd, lambda _: self._read())

    def close(self) -> None:
        self._poller.cancel(f"watch {self.fd}")
        self._poller.forget(self.fd)
        os.close(self.fd)

    def _add(self, found: int, path: str, *, first: bool = False) -> None:
        """Watch what a descriptor leads to, and the directories in it; the first, which was asked
        for, may be a file."""
        import ctypes

        if len(self._paths) >= MAX_WATCHED:
            raise TransferError(
                f"{self.path}: has more than {MAX_WATCHED} directories to watch", errno.ENOSPC
            )
        where = os.fsencode(f"/proc/self/fd/{found}")
        number = c_library().inotify_add_watch(self.fd, where, WATCHED_CHANGES)
        if number < 0:
            fail_with(ctypes.get_errno())
        self._paths[number] = path
        if not self._recursive or (first and not stat.S_ISDIR(os.fstat(found).st_mode)):
            return
        for name in os.listdir(f"/proc/self/fd/{found}"):
            below = f"{path}/{name}" if path else name
            if not self._begins:
                self._note(("created", below, ""))
            self._add_below(found, name, below)

    def _add_below(self, around: int, name: str, path: str) -> None:
        """Watch a directory in another one, if it is a directory and still there."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            found = os.open(name, flags, dir_fd=around)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            self._add(found, path)
        finally:
            os.close(found)

    def _read(self) -> None:
        moved: dict[int, tuple[str, str, str]] = {}
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            number, mask, cookie, length = struct.unpack_from("iIII", data, place)
            name = os.fsdecode(data[place + 16 : place + 16 + length].rstrip(b"\0"))
            place += 16 + length
            self._take(number, mask, cookie, name, moved)
        if not self._scheduled:
            self._scheduled = True
            self._poller.at(f"watch {self.fd}", time.monotonic() + GATHER_S, self.tell)

    def _take(
        self,
        number: int,
        mask: int,
        cookie: int,
        name: str,
        moved: dict[int, tuple[str, str, str]],
    ) -> None:
        if mask & IN_Q_OVERFLOW:
            self._overflow = True
            return
        around = self._paths.get(number)
        if around is None:
            return
        if mask & IN_IGNORED:
            self._paths.pop(number)
            self._ended = self._ended or around == ""
            return
        if mask & IN_DELETE_SELF and around:
            return  # the directory around it tells
        path = f"{around}/{name}" if around and name else around or name
        if name.startswith("#") and not os.path.lexists(f"{self.path}/{path}"):
            return  # the kernel's name of a file that has none yet
        if is_temporary(name):  # of a file that takes another one's place
            if mask & IN_MOVED_FROM:
                moved[cookie] = ("", path, "")
            return
        kind = next(kind for bits, kind in CHANGE_KINDS if mask & bits)
        if mask & IN_MOVED_TO and cookie in moved:
            old = moved.pop(cookie)
            if not old[0]:
                self._note(("modified", path, ""))
                return
            self._events.pop(old, None)
            self._note(("renamed", old[1], path))
        else:
            event = (kind, path, "")
            self._note(event)
            if mask & IN_CREATE and self._has_content(path):
                self._note(("modified", path, ""))  # it was written before it had a name
            if mask & IN_MOVED_FROM:
                moved[cookie] = event
        if self._recursive and mask & IN_ISDIR:
            if mask & IN_MOVED_FROM:
                self._forget(path)
            elif mask & (IN_CREATE | IN_MOVED_TO):
                self._follow(path)

    def _has_content(self, path: str) -> bool:
        try:
            entry = os.lstat(f"{self.path}/{path}")
        except OSError:
            return False
        return stat.S_ISREG(entry.st_mode) and entry.st_size > 0

    def _note(self, event: tuple[str, str, str]) -> None:
        if len(self._events) >= MAX_EVENTS:
            self._overflow = True
        else:
            self._events[event] = None

    def _forget(self, path: str) -> None:
        """Forget the watches below a directory that was moved away."""
        for number, known in list(self._paths.items()):
            if known == path or known.startswith(f"{path}/"):
                c_library().inotify_rm_watch(self.fd, number)
                del self._paths[number]

    def _follow(self, path: str) -> None:
        """Watch a new directory, and note what is in it already."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            here = open_path(self.path)
            try:
                for name in path.split("/"):
                    found = os.open(name, flags, dir_fd=here)
                    os.close(here)
                    here = found
                self._add(here, path)
            finally:
                os.close(here)
        except (FileNotFoundError, NotADirectoryError):
            pass  # it has gone meanwhile
        except (OSError, TransferError):
            self._overflow = True

    def tell(self) -> None:
        """Send what has happened, unless the supervisor lags behind."""
        events = [list(event) for event in self._events]
        if not events and not self._overflow and not self._ended:
            self._scheduled = False
        elif self._send(events, self._overflow, self._ended):
            self._events.clear()
            self._overflow = self._scheduled = False
        else:
            self._poller.at(f"watch {self.fd}", time.monotonic() + 1, self.tell)


class FileWatches:
    """The paths that the supervisor watches, by its ids."""

    def __init__(self, session: SharedSession) -> None:
        self._session = session
        self._watches: dict[str | int, FileWatch] = {}

    def begin(self, request_id: str | int, path: str, *, recursive: bool) -> dict[str, Any]:
        """Watch a path; returns the answer, without its id. Raise TransferError or OSError if that
        cannot be done."""
        if request_id in self._watches:
            raise TransferError("a path is watched under this id already", errno.EEXIST)
        if len(self._watches) >= MAX_WATCHES:
            raise TransferError(
                f"{MAX_WATCHES} paths are watched already: end a watch first", errno.EMFILE
            )

        def tell(events: list[list[str]], overflow: bool, ended: bool) -> bool:
            if not self._session.may_send():
                return False
            frame = {"type": "file_events", "id": request_id, "events": events}
            self._session.send({**frame, "overflow": overflow, "ended": ended})
            if ended:
                self.end(request_id)
            return True

        watch = FileWatch(path, recursive=recursive, poller=self._session.poller, send=tell)
        self._watches[request_id] = watch
        return {"type": "file_watching", "path": watch.path}

    def end(self, request_id: str | int) -> None:
        """Stop watching; an unknown id is no error."""
        watch = self._watches.pop(request_id, None)
        if watch is not None:
            watch.close()

    def end_all(self) -> None:
        for request_id in list(self._watches):
            self.end(request_id)
