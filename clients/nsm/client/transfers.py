"""Files to and from a session, as steps that the blocking and the async client both carry out.

A transfer is a generator: it yields operations and is sent their answers, or thrown what went
wrong instead. It keeps one piece in memory at a time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.wire.answers import read
from nsm.wire.errors import FileTooLargeError, NsmError
from nsm.wire.sessions import PIECE_BYTES, FileInfo, FilePiece, OpenFile, closed_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    Step: TypeAlias = tuple[str, dict[str, Any]]
    """An operation and its arguments."""

    Transfer: TypeAlias = Generator[Step, dict[str, Any], FileInfo]


def carry_out(
    transfer: Transfer, call: Callable[[str, dict[str, Any]], dict[str, Any]]
) -> FileInfo:
    """Do a transfer, step by step, over a blocking client; `nsm.client.asynchronous` has its own.

    Args:
        call: carries out an operation with its arguments.
    """
    try:
        step = next(transfer)
        while True:
            try:
                answer = call(*step)
            except BaseException as error:  # noqa: BLE001  # the transfer raises it again
                step = transfer.throw(error)
            else:
                step = transfer.send(answer)
    except StopIteration as end:
        info: FileInfo = end.value
        return info


def get(
    target: str,
    path: str,
    write: Callable[[bytes], object],
    max_bytes: int | None,
    on_open: Callable[[FileInfo], object] | None,
) -> Transfer:
    """Read a file of a session; see `nsm.Client.get_file`."""
    answer = yield "file_open", {"target": target, "path": path, "mode": "read"}
    opened = read(OpenFile, answer)
    received = 0
    try:
        _check_size(opened.info.path, opened.info.size, max_bytes)
        if on_open is not None:
            on_open(opened.info)
        while True:
            answer = yield "file_read", {"file": opened.file, "bytes": PIECE_BYTES}
            piece = read(FilePiece, answer)
            received += len(piece.data)
            _check_size(opened.info.path, received, max_bytes)  # it may grow while it is read
            write(piece.data)
            if piece.eof:
                break
    except BaseException:
        yield from _give_up(opened)
        raise
    answer = yield "file_close", {"file": opened.file, "keep": True}
    return closed_file(answer, opened.info.permissions)._replace(size=received)


def put(
    target: str,
    path: str,
    source: Callable[[int], bytes],
    permissions: int | None,
    *,
    overwrite: bool,
    size: int | None,
) -> Transfer:
    """Write a file of a session; see `nsm.Client.put_file`."""
    arguments: dict[str, Any] = {
        "target": target,
        "path": path,
        "mode": "write",
        "overwrite": overwrite,
    }
    if permissions is not None:
        arguments["permissions"] = permissions
    if size is not None:
        arguments["size"] = size
    opened = read(OpenFile, (yield "file_open", arguments))
    try:
        while data := source(PIECE_BYTES):
            # A source may have given more than it was asked for.
            for start in range(0, len(data), PIECE_BYTES):
                piece = bytes(data[start : start + PIECE_BYTES])
                yield "file_write", {"file": opened.file, "data": piece}
    except BaseException:
        yield from _give_up(opened)
        raise
    answer = yield "file_close", {"file": opened.file, "keep": True}
    return closed_file(answer, opened.info.permissions)


def _give_up(opened: OpenFile) -> Generator[Step, dict[str, Any], None]:
    """Close without keeping. The supervisor may have done that already, or be gone."""
    with suppress(NsmError):
        yield "file_close", {"file": opened.file, "keep": False}


def _check_size(path: str, size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise FileTooLargeError(
            f"{path} has {size} bytes or more; at most {max_bytes} are wanted",
            hint="Allow more, or shorten it in the session first.",
            data={"size": size, "limit": max_bytes},
        )
