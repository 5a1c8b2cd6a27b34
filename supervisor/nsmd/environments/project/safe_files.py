"""Files of a project, opened without following links.

Anybody may have written a project: its files may be pipes, links to elsewhere, and larger than
memory. All functions block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice

from nsmd.model.values import ProjectMount

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe would otherwise wait for a writer.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def open_folder(project: ProjectMount, path: str) -> Generator[int]:
    """Open a directory of a project for a block; gives its descriptor.

    Args:
        path: relative to the project, without `..`; empty for the project itself.

    Raises:
        OSError: it is not there, is none, or there is a link on the way.
    """
    fd = os.open(project.path, _FOLDER)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (project.device, project.inode):
            raise OSError(errno.ESTALE, "another directory is there now", project.path)
        for name in parts(path):
            deeper = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


def parts(path: str) -> list[str]:
    """Split a relative path into names.

    Raises:
        OSError: it leads out of its directory.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "the path leads out of the project", path)
    return names


def read_file(folder: int, name: str, max_bytes: int) -> bytes:
    """Read the beginning of a regular file in an open directory.

    Raises:
        OSError: it cannot be read, or is a link or no regular file.
    """
    with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", name)
        return file.read(max_bytes)


def is_folder(folder: int, name: str) -> bool:
    """Return whether an open directory has a directory of that name; a link is none."""
    return stat.S_ISDIR(mode_of(folder, name))


def mode_of(folder: int, name: str) -> int:
    """Type and mode of an entry, links not followed; 0 if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except (OSError, ValueError):
        return 0


def list_names(folder: int, at_most: int) -> list[str]:
    """Sorted names of an open directory's entries; only some of them beyond `at_most`.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, at_most))
