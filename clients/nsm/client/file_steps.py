"""Lists, files in memory and copies of directories of a session, as steps (`nsm.client.steps`)."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from nsm.client import local_files, local_trees, transfers
from nsm.client.local_files import LocalFileError, LocalTarget
from nsm.client.steps import ask
from nsm.wire import files as wire
from nsm.wire.errors import BadRequestError, FileError, FileTooLargeError
from nsm.wire.files import Directory, FileInfo, Skipped, TreeReport, text_of_path
from nsm.wire.messages import read
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from nsm.client.steps import Steps
    from nsm.wire.files import FileEntry

    OnProgress = Callable[[int, int | None], object]
    Source = Callable[[int], bytes]
    Path = str | bytes
    """Path in a session. Text may have lone surrogates for bytes that are not UTF-8 (PEP 383)."""

ARCHIVE_BYTES = 1024 * 1024
"""Most bytes of an archive that are read at once: what a pipe of the agent holds."""

MAX_LISTED = 1_000_000
"""Largest number of entries of a directory in one list."""


def list_directory(target: str, path: Path) -> Steps[Directory]:
    """List a directory, page by page."""
    listed: list[FileEntry] = []
    after = ""
    while True:
        page = yield from ask(wire.file_entries(target, text_of_path(path), after=after))
        listed += page.entries
        if not page.more or not page.entries:
            return Directory(page.path, page.free_bytes, tuple(listed))
        if len(listed) >= MAX_LISTED:
            raise FileError(f"{page.path} has more than {MAX_LISTED} entries")
        after = page.entries[-1].name


def read_bytes(
    target: str, path: Path, *, offset: int, length: int | None, max_bytes: int | None
) -> Steps[bytes]:
    """Read a file or a part of it into memory: at once if it is small."""
    first = PIECE_BYTES if length is None else min(length, PIECE_BYTES)
    found = yield from ask(wire.file_get(target, text_of_path(path), offset=offset, bytes=first))
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
        call = wire.file_put(
            target,
            text_of_path(path),
            data,
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        return read(FileInfo, (yield from ask(call)))
    if parents:
        yield from ask(wire.file_mkdir(target, text_of_path(_parent(path)), parents=True))
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


def archive(target: str, path: Path, write: Callable[[bytes], object]) -> Steps[TreeReport]:
    """Read a directory as a tar archive."""

    def take(pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as reader:
            while data := reader.read(ARCHIVE_BYTES):
                write(data)

    return (yield from archive_to_pipe(target, path, take))


def archive_to_pipe(target: str, path: Path, take: Callable[[int], object]) -> Steps[TreeReport]:
    """Archive a directory into a pipe that `take` reads, and closes."""
    return (yield from _stream(target, path, "archive", take))


def unpack(target: str, path: Path, source: Source) -> Steps[TreeReport]:
    """Unpack a tar archive into a directory."""

    def give(pipe: int) -> None:
        with open(pipe, "wb", buffering=0) as writer:
            while data := source(local_trees.COPY_BYTES):
                local_trees.write_whole(writer, data)

    return (yield from unpack_from_pipe(target, path, give))


def unpack_from_pipe(target: str, path: Path, give: Callable[[int], object]) -> Steps[TreeReport]:
    """Unpack a tar archive that `give` writes to a pipe, which it closes."""
    return (yield from _stream(target, path, "unpack", give))


def upload(
    target: str, local: str, path: Path, on_progress: OnProgress | None, *, follow: bool
) -> Steps[TreeReport]:
    """Copy a file or a directory from here."""
    if local_files.is_directory(local, follow=follow):
        return (yield from _upload_directory(target, local, path, on_progress, follow=follow))
    with local_files.source(local, follow=follow) as opened:
        moved = _Progress(on_progress, opened.size)

        def source(count: int) -> bytes:
            data = opened.read(count)
            moved.add(len(data))
            return data

        permissions, size = opened.permissions, opened.size
        steps = transfers.put(target, path, source, permissions, overwrite=True, size=size)
        copied = yield from steps
    return TreeReport(copied.path, copied.size, 1)


def _upload_directory(
    target: str, local: str, path: Path, on_progress: OnProgress | None, *, follow: bool
) -> Steps[TreeReport]:
    skipped: list[Skipped] = []

    def give(pipe: int) -> None:
        skipped.extend(local_trees.pack(top, pipe, _without_total(on_progress)))

    with local_files.told(local, "read"):
        top = local_files.open_here(local, os.O_RDONLY | os.O_DIRECTORY, follow=follow)
    try:
        size = local_trees.size_of(top)
        return _with_skipped((yield from _stream(target, path, "unpack", give, size=size)), skipped)
    finally:
        os.close(top)


def download(
    target: str,
    path: Path,
    local: str,
    on_progress: OnProgress | None,
    *,
    into: bool,
    follow: bool,
) -> Steps[TreeReport]:
    """Copy a file or a directory to here."""
    name = _own_name(path) if into else ""
    with ExitStack() as stack:
        opened: list[LocalTarget] = []
        moved = _Progress(on_progress, None)

        def on_open(info: FileInfo) -> None:
            new = LocalTarget(
                os.path.join(local, name) if name else local, follow=follow, into=into
            )
            opened.append(stack.enter_context(new))
            new.expect(info.size)
            moved.total = info.size

        def write(data: bytes) -> None:
            opened[0].write(data)
            moved.add(len(data))

        try:
            copied = yield from transfers.get(target, path, write, None, on_open)
            opened[0].keep(copied.permissions)
            return TreeReport(copied.path, copied.size, 1)
        except FileError as error:
            if isinstance(error, LocalFileError) or error.data.get("errno") != "EISDIR":
                raise
    skipped: list[Skipped] = []
    entries = 0
    with local_trees.open_target(local, name, follow=follow) as top:

        def take(pipe: int) -> None:
            nonlocal entries
            here = os.path.join(local, name) if name else local
            entries = local_trees.unpack(pipe, top, here, _without_total(on_progress), skipped)

        report = yield from _stream(target, path, "archive", take)
    return _with_skipped(report, skipped)._replace(entries=entries)


def _own_name(path: Path) -> str:
    """The last name of a path; empty if that is none: the contents of the directory are meant."""
    name = os.path.basename(os.fsdecode(path).rstrip("/"))
    return "" if name in (".", "..") else name


def _with_skipped(report: TreeReport, skipped: list[Skipped]) -> TreeReport:
    return report._replace(
        skipped=(*report.skipped, *skipped), left_out=report.left_out + len(skipped)
    )


class _Progress:
    """Count of bytes for somebody who wants to know.

    Attributes:
        total: bytes of the whole; None if that is not known.
    """

    def __init__(self, on_progress: OnProgress | None, total: int | None) -> None:
        self.total = total
        self._on_progress = on_progress
        self._moved = 0

    def add(self, size: int) -> None:
        """Add copied bytes."""
        self._moved += size
        if self._on_progress is not None:
            self._on_progress(self._moved, self.total)


def _without_total(on_progress: OnProgress | None) -> Callable[[int], object] | None:
    return None if on_progress is None else lambda moved: on_progress(moved, None)


def bytes_of(data: bytes | str) -> bytes:
    if not isinstance(data, str):
        return data
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"the text cannot be written as UTF-8: character {error.start} is half of a surrogate "
            "pair",
            hint="Encode it yourself, such as by TEXT.encode(errors='surrogateescape').",
        ) from None


def _stream(
    target: str,
    path: Path,
    mode: Literal["archive", "unpack"],
    move: Callable[[int], object],
    *,
    size: int = 0,
) -> Steps[TreeReport]:
    """Have `move` read or write a tar archive at a pipe, which it closes.

    Args:
        size: bytes that will be written at least: what cannot fit is refused at once.
    """
    open_it = partial(wire.file_open, target, text_of_path(path), mode, size=size)
    opened = yield from ask(open_it(descriptor=True))
    pipe = opened.descriptor
    if pipe is False:
        yield from transfers.give_up(opened.file)
        opened = yield from ask(open_it())
        return (yield from transfers.stream_archive(opened, mode, move))
    try:
        yield lambda: move(pipe)
    except BrokenPipeError:
        pass  # the answer says why nobody reads
    except BaseException:
        yield from transfers.give_up(opened.file)
        raise
    return read(TreeReport, (yield from ask(wire.file_close(opened.file, keep=True))))


def _parent(path: Path) -> Path:
    found: Path = os.path.dirname(path)
    return found or "."
