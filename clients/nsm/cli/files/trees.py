"""Directories of `nsm cp`.

All that is to be copied is listed first, so that what cannot fit is refused before anything is
made. Then come the directories, and the files one by one: a failure costs one file. Links and
special files are left out. Names that a session made up lead nowhere but below the target.
"""

from __future__ import annotations

import os
import posixpath
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from nsm.cli import terminal
from nsm.cli.files import operands
from nsm.cli.files.local_files import LinkError, Target, check_room, source, told
from nsm.cli.files.progress import ProgressLine
from nsm.cli.render import formats
from nsm.wire.errors import FileError
from nsm.wire.sessions import DirectoryEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Self

    from nsm.cli.files.operands import Download, Upload
    from nsm.client.blocking import Client
    from nsm.wire.sessions import FileInfo

MAX_ENTRIES = 100_000
MAX_DEPTH = 64
"""Deepest tree of one copy. A session may make up any depth."""

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def upload(client: Client, copy: Upload) -> bool:
    """Copy a directory from here; returns whether nothing failed.

    Raises:
        FileError: nothing was copied.
        NsmError: the session has ended, or cannot do that.
    """
    session = copy.target.session
    with Below(copy.source.path, follow=True) as here:
        tree = _walk(str(copy.source), here.entries)
        root, free_bytes = _root(client, copy)
        if free_bytes is not None and tree.size > free_bytes:
            raise FileError(
                f"{copy.source} can't be copied: {tree.size} bytes do not fit, "
                f"{free_bytes} are free in the session",
                hint="Remove files in the session, or raise its limit in config.toml.",
            )

        def make(relative: str) -> None:
            client.make_directory(session, posixpath.join(root, relative))

        def put(relative: str, progress: ProgressLine) -> None:
            with (
                here.directory(posixpath.dirname(relative)) as directory,
                source(os.path.join(here.path, relative), below=directory) as opened,
            ):

                def read(count: int) -> bytes:
                    data = opened.read(count)
                    progress.add(len(data))
                    return data

                client.put_file(
                    session,
                    posixpath.join(root, relative),
                    read,
                    permissions=opened.permissions,
                    size=opened.size,
                )

        return tree.copy(make, put)


def download(client: Client, copy: Download, *, follow: bool) -> bool:
    """Copy a directory to here; returns whether nothing failed. Raises: as `upload`."""
    session, path = copy.source
    name, place = operands.file_name(copy.source), copy.target.path
    into = copy.into or os.path.isdir(place)
    if not into:
        place, name = os.path.split(place)

    def entries(relative: str) -> Iterable[DirectoryEntry]:
        listed = client.list_files(session, posixpath.join(path, relative) or ".")
        if not listed.whole:
            raise FileError(
                f"{listed.path} has more than {len(listed.entries)} entries",
                hint=operands.ARCHIVE_IN_SESSION,
            )
        return listed.entries

    tree = _walk(str(copy.source), entries)
    with Below(place or ".", follow=follow or not into) as here:
        with here.directory("") as top:
            check_room(here.path, top, tree.size)

        def get(relative: str, progress: ProgressLine) -> None:
            local = os.path.join(name, relative)
            with (
                here.directory(os.path.dirname(local)) as directory,
                Target(os.path.join(here.path, local), below=directory) as target,
            ):

                def write(data: bytes) -> None:
                    target.write(data)
                    progress.add(len(data))

                def on_open(info: FileInfo) -> None:
                    target.expect(info.size)

                there = posixpath.join(path, relative)
                info = client.get_file(session, there, write, on_open=on_open)
                target.keep(info.permissions)

        return tree.copy(lambda relative: here.make(os.path.join(name, relative)), get)


class Below:
    """A directory here, and what is below it, where no link is followed.

    Args:
        follow: the directory itself may be named by a link.

    Raises:
        LinkError: a link is there.
        LocalFileError: it cannot be opened.
    """

    def __init__(self, path: str, *, follow: bool) -> None:
        self.path = path
        if not follow and os.path.islink(path.rstrip("/")):
            raise LinkError(path.rstrip("/"))
        with told(path, "opened"):  # a link may have come only now
            self._top = os.open(path, _PATH | (0 if follow else os.O_NOFOLLOW))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._top)

    @contextmanager
    def directory(self, relative: str) -> Generator[int]:
        """A descriptor, with O_PATH, of a directory below; empty for this one."""
        here = os.dup(self._top)
        try:
            with told(os.path.join(self.path, relative), "opened"):
                for name in _parts(relative):
                    found = os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=here)
                    os.close(here)
                    here = found
            yield here
        finally:
            os.close(here)

    def make(self, relative: str) -> None:
        """Make a directory below, if it is not there."""
        parts = _parts(relative)
        if not parts:
            return
        path = os.path.join(self.path, *parts)
        with self.directory("/".join(parts[:-1])) as parent, told(path, "made"):
            try:
                os.mkdir(parts[-1], dir_fd=parent)
            except FileExistsError:
                mode = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    raise LinkError(path) from None
                if not stat.S_ISDIR(mode):
                    raise

    def entries(self, relative: str) -> list[DirectoryEntry]:
        """List a directory below, by name."""
        path = os.path.join(self.path, relative)
        with self.directory(relative) as directory, told(path, "read"):
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            try:
                with os.scandir(readable) as found:
                    return sorted(_entry(entry) for entry in found)
            finally:
                os.close(readable)


class Tree(NamedTuple):
    """Files to copy, by paths below the top; a directory comes before its contents.

    Attributes:
        size: bytes of all files.
        failed: something is left out that should have been copied; that has been said.
    """

    name: str
    directories: list[str]
    files: list[str]
    size: int
    failed: bool

    def copy(
        self, make: Callable[[str], object], copy: Callable[[str, ProgressLine], object]
    ) -> bool:
        """Make the directories and copy the files; returns whether nothing failed.

        What fails is said in a line each, and the rest is copied.
        """
        failed = self.failed
        missing: set[str] = set()
        for relative in self.directories:
            if relative and posixpath.dirname(relative) in missing:
                missing.add(relative)
                continue
            try:
                make(relative)
            except FileError as error:
                if not relative:
                    raise
                missing.add(relative)
                failed = _say(error)
        progress = ProgressLine(self.name, self.size)
        for relative in self.files:
            if posixpath.dirname(relative) in missing:
                continue
            try:
                copy(relative, progress)
            except FileError as error:
                progress.end()
                failed = _say(error)
        progress.end()
        return not failed


def _walk(name: str, entries: Callable[[str], Iterable[DirectoryEntry]]) -> Tree:
    """List all that is to be copied, and say what is left out.

    Args:
        name: name of the copied file, as the user wrote it.
        entries: lists a directory.

    Raises:
        FileError: the directory itself cannot be read, or there is too much.
    """
    directories, files, size, failed = [""], list[str](), 0, False
    links = others = 0
    for directory in directories:  # which grows
        try:
            found = entries(directory)
        except FileError as error:
            if not directory:
                raise
            failed = _say(error)
            continue
        for entry in found:
            path = posixpath.join(directory, entry.name)
            why = _unusable(entry, path)
            if why:
                failed = _say(FileError(f"{name}: {path}: {why}"))
            elif entry.kind == "directory":
                directories.append(path)
            elif entry.kind == "file":
                files.append(path)
                size += entry.size
            elif entry.kind == "link":
                links += 1
            else:
                others += 1
        if len(directories) + len(files) > MAX_ENTRIES:
            raise FileError(
                f"{name} has more than {MAX_ENTRIES} files and directories",
                hint="Copy an archive, made with tar, instead.",
            )
    if links or others:
        terminal.note(
            f"{formats.visible(name)}: left out, since only files and directories are copied: "
            f"{links} links, {others} special files"
        )
    return Tree(name, directories, files, size, failed)


def _unusable(entry: DirectoryEntry, path: str) -> str:
    """Why something is not copied under its name; empty if it is."""
    if entry.kind == "unnamed":
        return "its name is not UTF-8"
    if entry.name in ("", ".", "..") or "/" in entry.name:
        return "its name leads out of its directory"
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in entry.name):
        return "its name has control characters"
    if entry.kind == "directory" and path.count("/") >= MAX_DEPTH:
        return f"more than {MAX_DEPTH} directories are around it"
    return ""


def _root(client: Client, copy: Upload) -> tuple[str, int | None]:
    """Directory to fill in the session, and the free space there."""
    session, path = copy.target
    try:
        found = client.list_files(session, path or ".")
    except FileError as error:
        if error.data.get("errno") != "ENOENT":
            raise
        parent = posixpath.dirname(path.rstrip("/")) or "."
        return path, client.list_files(session, parent).free_bytes
    inside = path if copy.named else posixpath.join(path, operands.base_name(copy.source.path))
    return inside or ".", found.free_bytes


def _entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    try:
        entry.name.encode()
    except UnicodeEncodeError:  # frames hold text; sent as it is, it would be another name
        return DirectoryEntry(ascii(entry.name)[1:-1], "unnamed", 0)
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return DirectoryEntry(entry.name, "file", status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return DirectoryEntry(entry.name, "directory", 0)
    return DirectoryEntry(entry.name, "link" if stat.S_ISLNK(status.st_mode) else "other", 0)


def _parts(relative: str) -> list[str]:
    return [part for part in relative.split("/") if part]


def _say(error: FileError) -> bool:
    """Tell of one failure, in a line; True: there is one."""
    terminal.note(formats.visible(error.message))
    return True
