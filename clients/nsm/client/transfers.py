"""Files to and from a session, as steps (`nsm.client.steps`).

A transfer keeps one piece in memory at a time. Where a descriptor of the file comes with the
answer, pieces are read and written here, and no other process has them in its hands.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from nsm.client.local_files import write_all
from nsm.client.retry import CutOffError
from nsm.client.steps import ask
from nsm.wire import files as wire
from nsm.wire.errors import FileError, FileTooLargeError, NsmError
from nsm.wire.files import (
    FilePiece,
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
    from collections.abc import Callable, Generator
    from typing import Any

    from nsm.client.steps import Steps
    from nsm.wire.files import FileInfo, OpenFile


CHECK_BYTES = 32 * 1024 * 1024
CHECK_S = 1.0
"""After so many bytes or seconds, whoever writes a file itself asks if the session is still there.
"""


def get(
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


def get_part(target: str, path: str | bytes, offset: int, length: int | None) -> Steps[bytes]:
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


def put(
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
