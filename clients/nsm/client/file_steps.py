"""Operations on files of a session, as steps that the blocking and the async client both carry out.

`nsm.client.transfers` says what steps are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.client import local_trees, transfers
from nsm.wire.answers import read
from nsm.wire.errors import FileError, FileTooLargeError
from nsm.wire.sessions import (
    PIECE_BYTES,
    FileContent,
    FileEntries,
    FileEntry,
    FileInfo,
    Skipped,
    TreeReport,
    path_on_wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from nsm.client.transfers import Step

    T = TypeVar("T")
    Steps = Generator[Step, dict[str, Any], T]

    OnProgress = Callable[[int], object]
    Source = Callable[[int], bytes]
    Path = str | bytes
    """Path in a session. Text may have lone surrogates for bytes that are not UTF-8 (PEP 383)."""

MAX_LISTED = 1_000_000
"""Largest number of entries of a directory in one list."""


def list_directory(target: str, path: Path) -> Steps[list[FileEntry]]:
    """List a directory, page by page."""
    listed: list[FileEntry] = []
    arguments: dict[str, Any] = {"target": target, "path": path_on_wire(path)}
    while True:
        page = read(FileEntries, (yield "file_entries", arguments))
        listed += page.entries
        if not page.more or not page.entries:
            return listed
        if len(listed) >= MAX_LISTED:
            raise FileError(f"{page.path} has more than {MAX_LISTED} entries")
        arguments["after"] = path_on_wire(page.entries[-1].name)


def stat(target: str, path: Path, *, follow: bool) -> Steps[FileEntry]:
    """Say what a path leads to."""
    arguments = {"target": target, "path": path_on_wire(path), "follow": follow}
    return read(FileEntry, (yield "file_stat", arguments))


def read_bytes(
    target: str, path: Path, *, offset: int, length: int | None, max_bytes: int | None
) -> Steps[bytes]:
    """Read a file or a part of it into memory: at once if it is small."""
    first = PIECE_BYTES if length is None else min(length, PIECE_BYTES)
    arguments = {"target": target, "path": path_on_wire(path), "offset": offset, "bytes": first}
    found = read(FileContent, (yield "file_get", arguments))
    size = max(0, found.info.size - offset)
    wanted = size if length is None else min(length, size)
    if max_bytes is not None and wanted > max_bytes:
        raise FileTooLargeError(
            f"{found.info.path}: {wanted} bytes are asked for; at most {max_bytes} are wanted",
            hint="Allow more, or read a part of it.",
            data={"size": wanted, "limit": max_bytes},
        )
    if found.eof or len(found.data) >= wanted:
        return found.data
    # Read as a whole, from one open file: another may be in its place by now.
    return (yield from transfers.get_part(target, path, offset, length))


def write_bytes(
    target: str,
    path: Path,
    data: bytes,
    *,
    permissions: int | None,
    overwrite: bool,
    parents: bool,
) -> Steps[FileInfo]:
    """Write a file that is in memory: at once if it is small."""
    if len(data) <= PIECE_BYTES:
        arguments: dict[str, Any] = {"target": target, "path": path_on_wire(path), "data": data}
        arguments |= {"overwrite": overwrite, "parents": parents}
        if permissions is not None:
            arguments["permissions"] = permissions
        return read(FileInfo, (yield "file_put", arguments))
    if parents:
        yield from make_directory(target, _parent(path), parents=True)
    view = memoryview(data)

    def source(count: int) -> bytes:
        nonlocal view
        piece, view = view[:count], view[count:]
        return bytes(piece)

    return (
        yield from transfers.put(
            target, path, source, permissions, overwrite=overwrite, size=len(data)
        )
    )


def append(target: str, path: Path, data: bytes, *, permissions: int | None) -> Steps[None]:
    """Add bytes to a file."""
    arguments: dict[str, Any] = {"target": target, "path": path_on_wire(path), "append": True}
    if permissions is not None:
        arguments["permissions"] = permissions
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        yield "file_put", {**arguments, "data": data[start : start + PIECE_BYTES]}


def make_directory(target: str, path: Path, *, parents: bool) -> Steps[None]:
    """Make a directory."""
    arguments = {"target": target, "path": path_on_wire(path)}
    yield "file_mkdir", {**arguments, "parents": True} if parents else arguments


def remove(target: str, path: Path, *, recursive: bool) -> Steps[None]:
    """Remove a file or a directory."""
    arguments = {"target": target, "path": path_on_wire(path), "recursive": recursive}
    yield "file_remove", arguments


def rename(target: str, path: Path, to: Path, *, overwrite: bool) -> Steps[None]:
    """Give a file or a directory another name."""
    arguments: dict[str, Any] = {"target": target, "path": path_on_wire(path)}
    yield "file_rename", {**arguments, "to": path_on_wire(to), "overwrite": overwrite}


def archive(target: str, path: Path, take: Callable[[int], object]) -> Steps[TreeReport]:
    """Have `take` read a directory as a tar archive, from a pipe that it closes."""
    return (yield from _stream(target, path, "archive", take))


def unpack(target: str, path: Path, give: Callable[[int], object]) -> Steps[TreeReport]:
    """Have `give` write a tar archive to a pipe, which it closes, and unpack it."""
    return (yield from _stream(target, path, "unpack", give))


def upload(
    target: str, local: str, path: Path, on_progress: OnProgress | None
) -> Steps[TreeReport]:
    """Copy a file or a directory from here."""
    if os.path.isdir(local):
        skipped: list[Skipped] = []

        def give(pipe: int) -> None:
            skipped.extend(local_trees.pack(local, pipe, on_progress))

        return _with_skipped((yield from unpack(target, path, give)), skipped)
    with open(local, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        source = _counted(file.read, on_progress)
        permissions = status.st_mode & 0o777
        copied = yield from transfers.put(
            target, path, source, permissions, overwrite=True, size=status.st_size
        )
    return TreeReport(copied.path, copied.size, 1)


def download(
    target: str, path: Path, local: str, on_progress: OnProgress | None
) -> Steps[TreeReport]:
    """Copy a file or a directory to here."""
    found = yield from stat(target, path, follow=True)
    if found.kind != "directory":
        with local_trees.new_file(local) as new:
            moved = _Progress(on_progress)

            def write(data: bytes) -> None:
                local_trees.write_whole(new.file, data)
                moved.add(len(data))

            copied = yield from transfers.get(target, path, write, None, None)
            new.keep(copied.permissions)
        return TreeReport(copied.path, copied.size, 1)
    os.makedirs(local, exist_ok=True)
    skipped: list[Skipped] = []
    entries = 0

    def take(pipe: int) -> None:
        nonlocal entries
        entries = local_trees.unpack(pipe, local, on_progress, skipped)

    report = yield from archive(target, path, take)
    return _with_skipped(report, skipped)._replace(entries=entries)


def _with_skipped(report: TreeReport, skipped: list[Skipped]) -> TreeReport:
    return report._replace(
        skipped=(*report.skipped, *skipped), left_out=report.left_out + len(skipped)
    )


class _Progress:
    """Count of bytes for somebody who wants to know."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._moved = 0

    def add(self, size: int) -> None:
        """Add copied bytes."""
        self._moved += size
        if self._on_progress is not None:
            self._on_progress(self._moved)


def _counted(read_some: Callable[[int], bytes | None], on_progress: OnProgress | None) -> Source:
    moved = _Progress(on_progress)

    def source(count: int) -> bytes:
        data = read_some(count) or b""
        moved.add(len(data))
        return data

    return source


def _stream(target: str, path: Path, mode: str, move: Callable[[int], object]) -> Steps[TreeReport]:
    opened = yield from transfers.open_file(
        {"target": target, "path": path_on_wire(path), "mode": mode}
    )
    pipe = opened.descriptor
    if pipe is False:
        yield from transfers.give_up(opened.file)
        raise FileError(
            "archives need a connection that passes descriptors",
            hint="Connect to the supervisor's own socket, or copy file by file.",
        )
    try:
        yield lambda: move(pipe)
    except BrokenPipeError:
        pass  # the answer says why nobody reads
    except BaseException:
        yield from transfers.give_up(opened.file)
        raise
    return read(TreeReport, (yield "file_close", {"file": opened.file, "keep": True}))


def _parent(path: Path) -> Path:
    found: Path = os.path.dirname(path)
    return found or "."
