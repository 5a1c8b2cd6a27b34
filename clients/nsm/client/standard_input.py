"""Standard input of code that runs: what it is read from, and the thread that sends it.

A call with input gets an event `stdin` once its code is known by an id, and `run_write` sends the
input then. A client has one call at a time, so the thread has a connection of its own.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from nsm.wire.errors import (
    BadRequestError,
    NsmError,
    SessionEndedError,
    UnknownOperationError,
    UnknownSessionError,
)
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nsm.client.blocking import BlockingWire
    from nsm.client.steps import InputSource
    from nsm.wire.messages import Event, Hello

OVER = (UnknownSessionError, SessionEndedError)
"""Answers to input of code that has ended, and its session with it."""


class Feeder:
    """Sends input to the code of one call, in a thread; the block lasts as long as the call.

    Args:
        wire: connection of the call.
        on_event: called with the events that are not about input.

    Raises:
        BadRequestError: the source is none.
        NsmError: there cannot be another connection, or the supervisor is too old.
    """

    def __init__(
        self,
        wire: BlockingWire,
        source: InputSource,
        on_event: Callable[[Event], object] | None,
    ) -> None:
        check_supervisor(wire.server)
        self._on_event = on_event
        self._stopped, self._stop = os.pipe2(os.O_CLOEXEC)
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        try:
            self._fd = descriptor_of(source)
            self._pieces = (
                _read(self._fd, self._stopped) if self._fd is not None else pieces_of(source)
            )
            # A thread that runs other people's code cannot be told to stop.
            self._stops = self._fd is not None or isinstance(source, bytes | bytearray | memoryview)
            self._wire = wire.another()
        except BaseException:
            os.close(self._stopped)
            os.close(self._stop)
            raise

    def __enter__(self) -> Callable[[Event], object]:
        return self._take

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self._stop)
        if self._thread is None:
            self._wire.close()
            os.close(self._stopped)
            return
        if kind is None and (self._stops or self._error is not None):
            self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _take(self, event: Event) -> None:
        if event.event == "stdin":
            if self._thread is None:
                args = write_arguments(event)
                self._thread = threading.Thread(target=self._send, args=(args,), daemon=True)
                self._thread.start()
        elif self._on_event is not None:
            self._on_event(event)

    def _send(self, args: dict[str, Any]) -> None:
        try:
            with closing(self._wire):
                self._send_all(args)
        except OVER:
            pass
        except NsmError as error:
            self._error = error
        finally:
            os.close(self._stopped)

    def _send_all(self, args: dict[str, Any]) -> None:
        while True:
            try:
                piece = next(self._pieces, None)
            except Exception as error:  # noqa: BLE001  # the caller gets it
                self._error = error
                self._tell({**args, "broken": True})
                return
            if piece is None:
                self._tell({**args, "eof": True})
                return
            if self._is_over() or not self._tell({**args, "data": piece}):
                return
            args = {**args, "offset": args["offset"] + len(piece)}

    def _tell(self, args: dict[str, Any]) -> bool:
        answer = self._wire.call("run_write", args, None, interruptible=False)
        return answer.get("open") is True

    def _is_over(self) -> bool:
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        return bool(poll.poll(0))


def check_supervisor(server: Hello) -> None:
    """Check that code can have input.

    Raises:
        UnknownOperationError: the supervisor is too old.
    """
    if "stdin" not in server.capabilities:
        raise UnknownOperationError(
            f"This supervisor ({server.program_version}) is too old to give code standard input; "
            "the code was not run.",
            hint="`nsm reload` replaces it, and keeps the sessions.",
        )


def write_arguments(event: Event) -> dict[str, Any]:
    """The arguments of the first `run_write` after an event `stdin`."""
    data = event.data
    return {"target": data["session"], "execution_id": data["execution_id"], "offset": 0}


def descriptor_of(source: object) -> int | None:
    """Descriptor of a file that is one for the kernel, too; else None.

    Raises:
        BadRequestError: it cannot be read.
    """
    try:
        descriptor = int(source.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
    check_readable(descriptor)
    return descriptor


def check_readable(descriptor: int) -> None:
    """Check that a descriptor is open for reading.

    Raises:
        BadRequestError: it is not.
    """
    try:
        why = ""
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            why = "it is open for writing only"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise BadRequestError(
            f"standard input cannot be read: {why}",
            hint="Open a file for reading, as `< FILE` does; `< /dev/null` gives no input.",
        )


def pieces_of(source: InputSource) -> Iterator[bytes]:
    """Iterate over input that is no file of the kernel.

    Raises:
        BadRequestError: it is not bytes, nor an iterable of bytes; the latter while iterating.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        return (bytes(view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES))
    reads = getattr(source, "read", None)
    if reads is not None:
        return iter(lambda: check_piece(reads(PIECE_BYTES)), b"")
    if isinstance(source, str) or not isinstance(source, Iterable):
        raise _no_bytes(source)
    return (
        piece[at : at + PIECE_BYTES]
        for piece in map(check_piece, source)
        for at in range(0, len(piece), PIECE_BYTES)
    )


def check_piece(piece: object) -> bytes:
    """Check that a piece of input is bytes; returns it.

    Raises:
        BadRequestError: it is something else.
    """
    if isinstance(piece, bytes | bytearray):
        return bytes(piece)
    if isinstance(piece, memoryview):
        return piece.tobytes()
    raise _no_bytes(piece)


def _no_bytes(given: object) -> BadRequestError:
    return BadRequestError(
        f"standard input must be bytes, not {type(given).__name__}",
        hint="Encode a text: TEXT.encode().",
    )


def _read(fd: int, stopped: int) -> Iterator[bytes]:
    """Read a descriptor to its end, until another one is readable, too."""
    poll = select.poll()
    for each in (fd, stopped):
        poll.register(each, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if stopped in ready or not (data := os.read(fd, PIECE_BYTES)):
            return
        yield data
