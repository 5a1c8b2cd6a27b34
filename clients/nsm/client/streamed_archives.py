"""Archives over a connection that passes no descriptors, such as one to another machine.

The functions that pack and unpack work on a pipe. Here they get one, in a thread of their own, and
this module carries its bytes piece by piece.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from nsm.client import transfers
from nsm.client.local_files import write_all
from nsm.client.steps import ask
from nsm.wire.errors import FileError
from nsm.wire.files import TreeReport, file_close, file_read, file_write
from nsm.wire.messages import read
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.steps import Steps
    from nsm.wire.files import OpenFile


def stream(opened: OpenFile, mode: str, move: Callable[[int], object]) -> Steps[TreeReport]:
    """Have `move` read or write a tar archive at a pipe, which it closes.

    Raises:
        FileError: the supervisor is too old for that.
    """
    if not opened.streams:
        yield from transfers.give_up(opened.file)
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
        yield from transfers.give_up(opened.file)
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
