"""The kernel's notices of changes in directories (inotify(7)).

This makes three calls and reads a structure through ctypes. Packages that wrap them bring a thread
or an event loop, or are this module again, and each would have to be packaged for Nix, too.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

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
        mask: kind of the change.
        name: name of the entry; empty for the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """A queue of notices. Its methods may be called in any thread.

    Raises:
        OSError: the user has as many queues as the system allows.

    Resources: a descriptor, until `close`.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<Inotify fd={self.fd}>"

    def add(self, directory: str, mask: int) -> int:
        """Watch a directory, in addition to what it is watched for already.

        Returns:
            The watch; a directory has the same one by any path.

        Raises:
            OSError: it is no directory, cannot be read, or the user has too many watches.
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
