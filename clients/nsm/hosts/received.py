"""Copies of other machines' projects, on the machine that has the sessions.

Each lies in a directory that nsm has made and marked, and only there is anything removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from nsm import below, paths
from nsm.wire.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

MARK = "nsm-copy.json"
"""File beside the copy: nsm made the directory, and may remove what is in the copy."""

_KEY = re.compile(r"[0-9a-f]{12}")
_MAX_HEADER_BYTES = 64 * 1024 * 1024

Seen = list[int]
"""Size, time of the last change in milliseconds, and permissions of a file; of a link only zeros
and a number of its target."""


def copies_dir(home: str) -> str:
    """The directory of all copies."""
    return os.path.join(home, "nsm-projects")


def open_copy(key: str, name: str) -> str:
    """Make and mark the directory of a copy; returns its path. A `HostError` if something else is
    there."""
    if not _KEY.fullmatch(key) or name in ("", ".", "..") or "/" in name:
        raise HostError(f"{key!r}, {name!r} name no copy of a project")
    marked = os.path.join(copies_dir(paths.home()), key)
    if not os.path.exists(os.path.join(marked, MARK)):
        _mark(marked)
    copy = os.path.join(marked, name)
    with suppress(FileExistsError):
        os.mkdir(copy)
    if os.path.islink(copy) or not os.path.isdir(copy):
        raise HostError(f"{copy} is not a directory", hint="Remove it.")
    return copy


def _mark(marked: str) -> None:
    """Make a directory with its mark in it, both or neither: the disk may be full."""
    os.makedirs(os.path.dirname(marked), mode=0o700, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(marked))
    try:
        paths.replace_file(os.path.join(made, MARK), b'{"nsm": 1}\n')
        os.rename(made, marked)  # also onto a directory that is empty
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if os.path.exists(os.path.join(marked, MARK)):
            return  # another client was faster
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise HostError(
            f"{marked} is there already, and nsm has not made it", hint="Move it away."
        ) from None


def open_directory(directory: str) -> int:
    """Open a project or a copy, in which code may write; returns its descriptor."""
    return os.open(directory, below.DIRECTORY)


def seen_in(directory: str, names: Iterable[str]) -> dict[str, Seen]:
    """The state of files and links, by name; what is neither, or behind a link, is left out."""
    found: dict[str, Seen] = {}
    root = open_directory(directory)
    try:
        for name in names:
            if seen := _seen(root, name):
                found[name] = seen
    finally:
        os.close(root)
    return found


def _seen(root: int, name: str) -> Seen | None:
    status = below.look(root, name, mounts=True)
    if status is None:
        return None  # git knows it, and it has gone
    if stat.S_ISREG(status.st_mode):
        return [status.st_size, status.st_mtime_ns // 1_000_000, status.st_mode & 0o777]
    if not stat.S_ISLNK(status.st_mode):
        return None
    try:
        target = os.fsencode(below.read_link(root, name, mounts=True))
    except OSError:
        return None  # it has changed meanwhile
    return [len(target), int.from_bytes(target[:7]), 0]


def names_below(directory: str) -> Iterator[str]:
    """All files and links below a directory, relative to it."""
    for place, folders, files, descriptor in os.fwalk(directory):
        inside = os.path.relpath(place, directory)
        for name in (*files, *folders):
            with suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if not stat.S_ISDIR(mode):
                    yield os.path.normpath(os.path.join(inside, name))


def receive(directory: str, source: IO[bytes]) -> dict[str, int]:
    """Take over the difference: a line of JSON with what is to be removed, then a tar archive.

    Raises:
        OSError: it cannot be written; the next copy brings what is missing.
        HostError: it is no such difference.
    """
    header: Any = json.loads(source.readline(_MAX_HEADER_BYTES) or b"{}")
    removed = cast("list[str]", header.get("remove", []))
    received = 0
    os.makedirs(directory, exist_ok=True)
    root = open_directory(directory)
    try:
        for name in removed:
            _remove(root, name)
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for entry in archive:
                if not (entry.isreg() or entry.issym()):
                    raise HostError(f"{entry.name!r} is neither a file nor a link")
                with _place(root, entry.name, make=True) as (parent, name):
                    _make(archive, entry, parent, name)
                received += 1
    finally:
        os.close(root)
    return {"received": received, "removed": len(removed)}


@contextmanager
def _place(root: int, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
    """Open the directory that a file of a copy is in; gives its descriptor, and the file's name.

    Code in a session may have put a link anywhere in the copy, and may do so now.

    Args:
        make: make the directories that are missing.

    Raises:
        HostError: the file would lie elsewhere.
        FileNotFoundError: there is no such directory.
    """
    names = path.split("/")
    if not all(names) or {".", ".."} & {*names}:
        raise HostError(f"{path!r} lies outside of the copy")
    around = "/".join(names[:-1])
    with _inside(path):
        if make and around:
            below.make_directories(root, around)
        parent = below.open_below(root, around, below.DIRECTORY)
    try:
        yield parent, names[-1]
    finally:
        os.close(parent)


@contextmanager
def _inside(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EXDEV):
            raise
        raise HostError(f"{path!r} lies outside of the copy: {error.strerror}") from error


def _remove(root: int, path: str) -> None:
    """Remove a file or a directory, and the directories around it as far as they are empty."""
    try:
        with _place(root, path) as (parent, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        pass
    around = os.path.dirname(path)
    with suppress(OSError):
        while around:
            with below.parent_of(root, around) as (parent, name):
                os.rmdir(name, dir_fd=parent)
            around = os.path.dirname(around)


def _make(archive: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=parent)
        return
    content = archive.extractfile(entry)
    assert content is not None, "it is a file"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
        shutil.copyfileobj(content, file)
        os.fchmod(file.fileno(), entry.mode & 0o777)
        file.flush()
        os.utime(file.fileno(), (entry.mtime, entry.mtime))
