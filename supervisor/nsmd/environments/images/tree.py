"""The directory that an image's layers are unpacked in.

Layers are hostile: every name is looked up component by component below one directory, and a
symbolic link on the way leads to where it would lead if that directory were the root. Nothing else
changes the directory meanwhile, so a name that was looked up stays what it was.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINKS = 40
"""Symbolic links on the way to one file, as in the kernel (path_resolution(7))."""

MAX_SHOWN_CHARS = 200


class ImageError(Exception):
    """An image cannot be used; the message is a sentence without its final dot."""


class Tree:
    """Directory of an image.

    All files belong to whoever unpacks, who may read all of them; so may everybody else, as
    sessions may run as another user. Set-id and sticky bits are left out.

    Args:
        directory: path of an empty directory.
        max_files: largest number of files and directories that layers name.
        max_bytes: largest size of all files that are written.

    Attributes:
        files, size: what was counted up to now.
        archive_bytes: size of the layers up to now, which may have more than files.
    """

    def __init__(self, directory: str, *, max_files: int, max_bytes: int) -> None:
        self.root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.files = self.size = self.archive_bytes = 0
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._known: dict[tuple[str, ...], str] = {}

    def close(self) -> None:
        """Close the directory."""
        os.close(self.root)

    def count(self, size: int = 0, *, files: int = 1) -> None:
        """Count what a layer names, before it is written if it is.

        Raises:
            ImageError: there are too many, or too large ones.
        """
        self.files += files
        self.size += size
        if self.files > self._max_files:
            raise ImageError(f"its layers name more than {self._max_files} files")
        if self.size > self._max_bytes:
            raise ImageError(f"its files are larger than {self._max_bytes >> 20} MiB")

    def status(self, path: str) -> os.stat_result | None:
        """Status of a file; None if there is none.

        Args:
            path: from `directory`, with a name.
        """
        try:
            return os.stat(path, dir_fd=self.root, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def directory(self, parts: Sequence[str], *, make: bool) -> str:
        """Real path of a directory from the tree's; empty for the tree's own.

        Args:
            parts: names on the way to it.
            make: make what is missing.

        Raises:
            ImageError: it is no directory, or is missing.
        """
        key = tuple(parts)
        if key not in self._known:
            self._known[key] = self._follow(parts, make=make)
        return self._known[key]

    def _follow(self, parts: Sequence[str], *, make: bool) -> str:
        real: list[str] = []
        left = list(reversed(parts))
        links = 0
        while left:
            name = left.pop()
            if name in {"", "."}:
                continue
            if name == "..":  # in the target of a link; above the root is the root
                del real[-1:]
                continue
            path = "/".join([*real, name])
            found = self.status(path)
            if found is None and make:
                self.count()
                os.mkdir(path, 0o755, dir_fd=self.root)
            elif found is None:
                raise ImageError(f"{shown('/'.join(parts))} is missing")
            elif stat.S_ISLNK(found.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise ImageError(f"{shown('/'.join(parts))} has too many symbolic links")
                target = os.readlink(path, dir_fd=self.root)
                real = [] if target.startswith("/") else real
                left += reversed(target.split("/"))
                continue
            elif not stat.S_ISDIR(found.st_mode):
                raise ImageError(f"{shown(path)} is no directory")
            real.append(name)
        return "/".join(real)

    def find(self, path: str) -> os.stat_result | None:
        """Status of what a path of the image leads to, through links; None if there is nothing."""
        for _ in range(MAX_LINKS):
            *folders, name = path.split("/")
            try:
                folder = self._follow(folders, make=False)
                found = self.status(join(folder, name)) if name not in {"", ".", ".."} else None
                if found is None or not stat.S_ISLNK(found.st_mode):
                    return found
                target = os.readlink(join(folder, name), dir_fd=self.root)
            except (ImageError, OSError):
                return None
            path = target if target.startswith("/") else join(folder, target)
        return None

    def make_room(self, path: str, *, directory: bool = False) -> bool:
        """Remove what a new file replaces.

        Args:
            directory: the new one is a directory, which takes over one that is there.

        Returns:
            True if there is such a directory.
        """
        found = self.status(path)
        if found is None:
            return False
        if directory and stat.S_ISDIR(found.st_mode):
            return True
        self.remove(path)
        return False

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        found = self.status(path)
        if found is None:
            return
        if stat.S_ISREG(found.st_mode):
            os.unlink(path, dir_fd=self.root)
            return
        if stat.S_ISLNK(found.st_mode):
            os.unlink(path, dir_fd=self.root)
        else:
            left = [(path, False)]  # not by calls of itself: a tree may be deep
            while left:
                folder, empty = left.pop()
                if empty:
                    os.rmdir(folder, dir_fd=self.root)
                    continue
                left.append((folder, True))
                for name, is_folder in self.entries(folder):
                    if is_folder:
                        left.append((join(folder, name), False))
                    else:
                        os.unlink(join(folder, name), dir_fd=self.root)
        self._known.clear()  # names may have led through it

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Names in a directory, and whether each is a directory."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path or ".", flags, dir_fd=self.root)
        try:
            with os.scandir(fd) as found:
                return [(each.name, each.is_dir(follow_symlinks=False)) for each in found]
        finally:
            os.close(fd)

    def new_file(self, path: str) -> int:
        """Make an empty file; return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600, dir_fd=self.root)

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place of whatever was there.

        Args:
            path: from the tree's directory; its directory is real.
        """
        self.remove(path)
        self.count(len(content))
        with os.fdopen(self.new_file(path), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)

    def set_time(self, path: str, seconds: float) -> None:
        """Set the time of a change. Compiled modules of Python are valid only with that of their
        source.
        """
        with suppress(OSError, OverflowError, ValueError):  # one that no file can have
            os.utime(path, (seconds, seconds), dir_fd=self.root, follow_symlinks=False)


def join(folder: str, name: str) -> str:
    """Path of a name in a directory of the tree, which may be the tree's own."""
    return f"{folder}/{name}" if folder else name


def shown(name: str) -> str:
    """Format a name that anybody may have chosen, for people."""
    return ascii(name)[:MAX_SHOWN_CHARS]
