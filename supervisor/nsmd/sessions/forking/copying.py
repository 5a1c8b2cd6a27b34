"""Copies of directory trees of a session, which is stopped meanwhile."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

PIECE = 1 << 30

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeCopy:
    """Copy of the trees of one session, hard links included.

    Attributes:
        bytes: size of the files copied.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._links: dict[tuple[int, int], str] = {}

    def copy(self, source: int, target: str) -> None:
        """Copy what is in a directory, and the directory's own rights and times.

        Args:
            source: descriptor of the directory.
            target: an empty directory.

        Raises:
            OSError: there is no room, or something cannot be read.
        """
        for name in os.listdir(source):
            self._copy_entry(source, name, f"{target}/{name}")
        self._copy_attributes(source, target)
        self._finish(os.fstat(source), target)

    def _copy_entry(self, directory: int, name: str, target: str) -> None:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            known = self._links.setdefault((found.st_dev, found.st_ino), target)
            if known != target:
                os.link(known, target, follow_symlinks=False)
                return
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(target, 0o700)
            fd = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                self.copy(fd, target)
            finally:
                os.close(fd)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=directory), target)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)
        elif stat.S_ISREG(found.st_mode):
            self._copy_file(directory, name, target, found)
        elif stat.S_ISFIFO(found.st_mode):
            os.mkfifo(target)
            self._finish(found, target)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            os.mknod(target, stat.S_IFCHR)  # in an overlay: what is below is removed
        # Sockets are not copied: they lead to processes of the original.

    def _copy_file(self, directory: int, name: str, target: str, found: os.stat_result) -> None:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._copy_data(source, made, found.st_size)
                self._copy_attributes(source, made)
            finally:
                os.close(made)
        finally:
            os.close(source)
        self._finish(found, target)

    def _copy_data(self, source: int, made: int, size: int) -> None:
        """Copy the data; holes stay holes."""
        os.ftruncate(made, size)
        offset = 0
        while offset < size:
            try:
                begin = os.lseek(source, offset, os.SEEK_DATA)
            except OSError:  # ENXIO: the rest is a hole
                return
            end = os.lseek(source, begin, os.SEEK_HOLE)
            os.lseek(source, begin, os.SEEK_SET)
            os.lseek(made, begin, os.SEEK_SET)
            while begin < end:
                count = os.sendfile(made, source, None, min(end - begin, PIECE))
                if not count:
                    return
                begin += count
                self.bytes += count
            offset = end

    @staticmethod
    def _copy_attributes(source: int, target: int | str) -> None:
        with suppress(OSError):
            for attribute in os.listxattr(source):
                with suppress(OSError):  # others may be possible
                    os.setxattr(target, attribute, os.getxattr(source, attribute))

    @staticmethod
    def _finish(found: os.stat_result, target: str) -> None:
        os.chmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
