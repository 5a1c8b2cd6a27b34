"""Files of a session as steps (`nsm.client.steps`): lists, files in memory, transfers, directories.

A transfer keeps one piece in memory at a time. Where a descriptor of the file comes with the
answer, pieces are read and written here, and no other process has them in its hands.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from nsm.client import local_files, local_trees
from nsm.client.local_files import LocalFileError, LocalTarget, write_all
from nsm.client.retry import CutOffError
from nsm.client.steps import ask
from nsm.wire import files as wire
from nsm.wire.errors import BadRequestError, FileError, FileTooLargeError, NsmError
from nsm.wire.files import (
    Directory,
    FileInfo,
    FilePiece,
    Skipped,
    TreeReport,
    closed_file,
    file_close,
    file_read,
    file_write,
    text_of_path,
)
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
    from collections.abc import Callable, Generator
    from typing import Any

    from nsm.wire.files import FileInfo, OpenFile


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
    return (yield from receive_part(target, path, offset, length))


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
        yield from send_file(target, path, source, permissions, overwrite=overwrite, size=len(data))
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
        steps = send_file(target, path, source, permissions, overwrite=True, size=size)
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
            copied = yield from receive_file(target, path, write, None, on_open)
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
        yield from give_up(opened.file)
        opened = yield from ask(open_it())
        return (yield from stream_archive(opened, mode, move))
    try:
        yield lambda: move(pipe)
    except BrokenPipeError:
        pass  # the answer says why nobody reads
    except BaseException:
        yield from give_up(opened.file)
        raise
    return read(TreeReport, (yield from ask(wire.file_close(opened.file, keep=True))))


def _parent(path: Path) -> Path:
    found: Path = os.path.dirname(path)
    return found or "."


CHECK_BYTES = 32 * 1024 * 1024
CHECK_S = 1.0
"""After so many bytes or seconds, whoever writes a file itself asks if the session is still there.
"""


def receive_file(
    target: str,
    path: str | bytes,
    write: Callable[[bytes], object],
    max_bytes: int | None,
    on_open: Callable[[FileInfo], object] | None,
) -> Steps[FileInfo]:
    """Read a file of a session; see `SessionFiles.read_to`."""
    opened = yield from ask(wire.file_open(target, text_of_path(path), "read", descriptor=True))
    received = 0
    try:
        _check_size(opened.info.path, opened.info.size, max_bytes)
        if on_open is not None:
            on_open(opened.info)
        while True:
            piece = yield from _next_piece(opened, received)
            received += len(piece.data)
            _check_size(opened.info.path, received, max_bytes)  # it may grow while it is read
            write(piece.data)
            if piece.eof:
                break
    except BaseException:
        yield from _abandon(opened)
        raise
    answer = yield from _close(opened)
    return closed_file(answer, opened.info.permissions)._replace(size=received)


def receive_part(target: str, path: str | bytes, offset: int, length: int | None) -> Steps[bytes]:
    """Read a part of a file into memory."""
    opened = yield from ask(wire.file_open(target, text_of_path(path), "read", descriptor=True))
    data = bytearray()
    try:
        if opened.descriptor is not False:
            os.lseek(opened.descriptor, offset, os.SEEK_SET)
        skip, place = (offset, 0) if opened.descriptor is False else (0, offset)
        while length is None or len(data) < length + skip:
            piece = yield from _next_piece(opened, place)
            place += len(piece.data)
            data += piece.data
            if piece.eof:
                break
    except BaseException:
        yield from _abandon(opened)
        raise
    yield from _close(opened)
    return bytes(data[skip:] if length is None else data[skip : skip + length])


def _next_piece(opened: OpenFile, received: int) -> Steps[FilePiece]:
    if opened.descriptor is False:
        return (yield from ask(wire.file_read(opened.file)))
    yield None
    with _told(opened.info.path):
        # What is appended meanwhile is left out.
        data = os.read(opened.descriptor, max(0, min(PIECE_BYTES, opened.info.size - received)))
    return FilePiece(data, not data or received + len(data) >= opened.info.size)


def send_file(
    target: str,
    path: str | bytes,
    source: Callable[[int], bytes],
    permissions: int | None,
    *,
    overwrite: bool,
    size: int | None,
) -> Steps[FileInfo]:
    """Write a file of a session; see `SessionFiles.write_from`."""
    call = wire.file_open(
        target,
        text_of_path(path),
        "write",
        permissions=permissions,
        overwrite=overwrite,
        size=size or 0,
        descriptor=True,
    )
    opened = yield from ask(call)
    unchecked_bytes, checked_s = 0, time.monotonic()
    try:
        while data := source(PIECE_BYTES):
            # A source may have given more than it was asked for.
            for start in range(0, len(data), PIECE_BYTES):
                yield from _put_piece(opened, bytes(data[start : start + PIECE_BYTES]))
            if opened.descriptor is False:
                continue
            unchecked_bytes += len(data)
            if unchecked_bytes >= CHECK_BYTES or time.monotonic() - checked_s >= CHECK_S:
                # No data: whether the session lives, and still wants the file.
                yield from ask(wire.file_write(opened.file, b""))
                unchecked_bytes, checked_s = 0, time.monotonic()
    except BaseException:
        yield from _abandon(opened)
        raise
    answer = yield from _close(opened)
    return closed_file(answer, opened.info.permissions)


def _put_piece(opened: OpenFile, piece: bytes) -> Steps[None]:
    if opened.descriptor is False:
        yield from ask(wire.file_write(opened.file, piece))
        return
    yield None
    with _told(opened.info.path):
        left = memoryview(piece)
        while left:
            left = left[os.write(opened.descriptor, left) :]


def _close(opened: OpenFile) -> Steps[dict[str, Any]]:
    if opened.descriptor is not False:
        os.close(opened.descriptor)
    return (yield from ask(wire.file_close(opened.file, keep=True)))


def _abandon(opened: OpenFile) -> Steps[None]:
    if opened.descriptor is not False:
        os.close(opened.descriptor)
    yield from give_up(opened.file)


def give_up(file: int) -> Steps[None]:
    """Close without keeping. The supervisor may have done that already.

    Raises:
        CutOffError: it is gone, which is why something else failed.
    """
    try:
        yield from ask(wire.file_close(file))
    except CutOffError:
        raise
    except NsmError:
        pass


@contextmanager
def _told(path: str) -> Generator[None]:
    """Raise what the kernel says of a file of a session as the agent would tell it."""
    try:
        yield
    except OSError as error:
        words = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            words = "no space is left on that file system; what was there before is unchanged"
        raise FileError(
            f"{path}: {words}", data={"errno": errno.errorcode.get(error.errno or 0, "")}
        ) from error


def _check_size(path: str, size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise FileTooLargeError(
            f"{path} has {size} bytes or more; at most {max_bytes} are wanted",
            hint="Allow more, or shorten it in the session first.",
            data={"size": size, "limit": max_bytes},
        )


def stream_archive(opened: OpenFile, mode: str, move: Callable[[int], object]) -> Steps[TreeReport]:
    """Have `move` read or write a tar archive at a pipe, which it closes.

    Raises:
        FileError: the supervisor is too old for that.
    """
    if not opened.streams:
        yield from give_up(opened.file)
        raise FileError(
            "this supervisor gives archives only to connections that pass descriptors",
            hint="`nsm reload` there replaces it with a newer one, or copy file by file.",
        )
    packs = mode == "unpack"
    reader, writer = os.pipe2(os.O_CLOEXEC)
    ours, mover = (reader, _Mover(move, writer)) if packs else (writer, _Mover(move, reader))
    try:
        try:
            yield from _send(opened.file, ours) if packs else _receive(opened.file, ours)
        finally:
            os.close(ours)
            yield mover.join
        mover.check()
    except BaseException:
        yield from give_up(opened.file)
        raise
    return read(TreeReport, (yield from ask(file_close(opened.file, keep=True))))


def _send(file: int, pipe: int) -> Steps[None]:
    """Carry what comes out of a pipe to the session."""
    piece = bytearray()

    def take() -> None:
        piece.clear()
        while len(piece) < PIECE_BYTES and (data := os.read(pipe, PIECE_BYTES - len(piece))):
            piece.extend(data)

    sent = 0
    while True:
        yield take
        if not piece:
            return
        sent += len(piece)
        if (
            yield from ask(file_write(file, bytes(piece)))
        ) < sent:  # nobody reads there: the end says why
            return


def _receive(file: int, pipe: int) -> Steps[None]:
    """Carry what comes from the session into a pipe."""
    while True:
        piece = yield from ask(file_read(file))
        if piece.eof:
            return
        try:
            yield partial(write_all, pipe, piece.data)
        except BrokenPipeError:
            return  # whoever unpacks has a reason, which is raised later


class _Mover:
    """Thread that packs or unpacks."""

    def __init__(self, move: Callable[[int], object], pipe: int) -> None:
        self._error: BaseException | None = None
        self._move = move
        self._thread = threading.Thread(target=self._run, args=(pipe,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended; the pipe's other end has to be closed."""
        self._thread.join()

    def check(self) -> None:
        """Raise the thread's error. A broken pipe is no error: whoever closed it has the reason."""
        if self._error is not None and not isinstance(self._error, BrokenPipeError):
            raise self._error

    def _run(self, pipe: int) -> None:
        try:
            self._move(pipe)
        except BaseException as error:  # noqa: BLE001  # raised by whoever waits
            self._error = error
