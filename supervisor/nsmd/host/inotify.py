"""The kernel's notices of changes in directories (inotify(7)), and the functions to call for them.

This makes three calls and reads a structure through ctypes. Packages that wrap them bring a thread
or an event loop, or are this module again, and each would have to be packaged for Nix, too.

Threads that read directories add them, since that may block; the event loop reads notices. A lock
guards the data, and is never held while anything blocks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from nsmd.host.paths import ANY, WatchedPaths

# <sys/inotify.h>
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
_ONLYDIR = 0x1000000
_DONT_FOLLOW = 0x2000000
_EXCL_UNLINK = 0x4000000
_MASK_ADD = 0x20000000

OF_ITSELF = DELETE_SELF | MOVE_SELF
OF_ENTRIES = ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE

_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Notice(NamedTuple):
    """One change.

    Attributes:
        watch: watch of the directory; -1 if notices were lost.
        name: name of the entry; empty for the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """A queue of notices, with a descriptor until `close`. Any thread may call its methods."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<Inotify fd={self.fd}>"

    def add(self, directory: str, mask: int) -> int:
        """Watch a directory, in addition to what it is watched for already.

        It has the same watch by any path.
        """
        path = ctypes.c_char_p(os.fsencode(directory))
        flags = mask | _ONLYDIR | _DONT_FOLLOW | _EXCL_UNLINK | _MASK_ADD
        return self._call("inotify_add_watch", self.fd, path, ctypes.c_uint32(flags))

    def remove(self, watch: int) -> None:
        """Stop watching a directory, which may be gone."""
        try:
            self._call("inotify_rm_watch", self.fd, watch)
        except OSError:
            return

    def read(self) -> list[Notice]:
        """Read the notices; empty if there are none."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        notices: list[Notice] = []
        at = 0
        while at < len(data):
            watch, mask, _cookie, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            notices.append(Notice(watch, mask, name))
        return notices

    def close(self) -> None:
        """Close the queue; later calls fail."""
        fd, self.fd = self.fd, -1
        os.close(fd)

    def _call(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._libc, name)(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


Stir = Callable[[], None]
"""Called for a change; it must be quick."""


class Watches:
    """Watched directories of all sources; the owner of `inotify` closes it."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._lock = threading.Lock()
        self._wanted: dict[Stir, WatchedPaths] = {}
        self._watch_of: dict[str, int] = {}
        self._places_of: dict[int, set[str]] = {}

    def __repr__(self) -> str:
        return f"<Watches of {len(self._watch_of)} directories for {len(self._wanted)}>"

    def want(self, stir: Stir, places: WatchedPaths) -> tuple[bool, str | None]:
        """Watch exactly these paths for one function.

        Args:
            places: directories without symbolic links, and the entries that matter.

        Returns:
            Whether there are new directories, so that an earlier look may be out of date; and why
                some cannot be watched.
        """
        with self._lock:
            self._wanted[stir] = places
        new, refusal = False, None
        for place, names in places.items():
            try:
                watch = self._inotify.add(place, OF_ENTRIES | OF_ITSELF if names else OF_ITSELF)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    refusal = (
                        "the limit of watched directories is reached (raise "
                        "`fs.inotify.max_user_watches` with sysctl)"
                    )
                elif names and error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    refusal = refusal or f"{place} cannot be watched: {error.strerror}"
                # Notices that came in between are handled where the watch was before.
                continue
            new = self._bind(place, watch) or new
        self._prune()
        return new, refusal

    def forget(self, stir: Stir) -> None:
        """Watch nothing more for that function."""
        with self._lock:
            self._wanted.pop(stir, None)
        self._prune()

    def read(self) -> None:
        """Read all notices, and call the functions for them."""
        for notice in self._inotify.read():
            for stir in self._concerned(notice):
                stir()
            # else the kernel has dropped the watch, or the directory stays
            if notice.mask & MOVE_SELF:
                self._inotify.remove(notice.watch)

    def _concerned(self, notice: Notice) -> list[Stir]:
        with self._lock:
            if notice.mask & Q_OVERFLOW:
                return list(self._wanted)
            here = set(self._places_of.get(notice.watch, ()))
            if notice.mask & (OF_ITSELF | IGNORED | UNMOUNT):
                # The path may be another directory by now; that one is watched when somebody wants
                # it.
                for place in here:
                    self._unbind(place)
            return [
                stir
                for stir, places in self._wanted.items()
                if any(_matters(places, place, notice.name) for place in here)
            ]

    def _prune(self) -> None:
        with self._lock:
            wanted = {place for places in self._wanted.values() for place in places}
            unwanted = [place for place in self._watch_of if place not in wanted]
            unused = [self._unbind(place) for place in unwanted]
        for watch in unused:
            if watch is not None:
                self._inotify.remove(watch)

    def _bind(self, place: str, watch: int) -> bool:
        """Note the directory of a watch. Returns whether the directory had another one, or none."""
        with self._lock:
            if self._watch_of.get(place) == watch:
                return False
            # A directory above was exchanged; that says nothing about this one.
            unused = self._unbind(place)
            self._watch_of[place] = watch
            self._places_of.setdefault(watch, set()).add(place)
        if unused is not None:
            self._inotify.remove(unused)
        return True

    def _unbind(self, place: str) -> int | None:
        """Forget a directory's watch; returns it if no other directory has it."""
        watch = self._watch_of.pop(place, None)
        if watch is None:
            return None
        places = self._places_of[watch]
        places.discard(place)
        if places:
            return None
        del self._places_of[watch]
        return watch


def _matters(places: Mapping[str, frozenset[str]], place: str, name: str) -> bool:
    names = places.get(place)
    if names is None:
        return False
    return not name or ANY in names or name in names
