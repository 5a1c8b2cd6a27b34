"""Standard streams of code, and frames to the agent."""

from __future__ import annotations

import _thread
import io
import os
import select
import signal
import sys

from sandbox.framing import encode_frame
from sandbox.linux import set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class WholeWriter(io.FileIO):
    """Python's own unbuffered stream loses the rest where a signal cuts a write short or a child
    process has made the shared pipe non-blocking; this one writes all."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            written = super().write(view[done:])
            if written is None:
                select.select([], [self.fileno()], [])
            done += written or 0
        return done


def open_streams() -> None:
    for name, fd, errors in (
        ("stdout", 1, "surrogateescape"),
        ("stderr", 2, "backslashreplace"),
    ):
        raw = WholeWriter(fd, "w", closefd=False)
        raw.name = f"<{name}>"  # as Python names them
        stream: Any = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    open_stdin(stdin_file())


def stdin_file() -> io.FileIO:
    file = io.FileIO(0, closefd=False)
    file.name = "<stdin>"
    return file


def open_stdin(binary: Any) -> None:
    stream: Any = io.TextIOWrapper(binary, encoding="utf-8", errors="surrogateescape")
    stream.mode = "r"
    sys.stdin = sys.__stdin__ = stream  # type: ignore[misc]


def is_open(stream: Any) -> bool:
    try:
        return stream is not None and not getattr(stream, "closed", False)
    except ValueError:  # its buffer has been detached
        return False


class Outbox:
    """The worker's side of the control socket, for sending."""

    control_fd: int

    def __init__(self) -> None:
        # What a call needs is at hand: code may have replaced it.
        self._lock = _thread.allocate_lock()
        self._get_ident = _thread.get_ident
        self._main_thread = _thread.get_ident()
        self._held = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a frame whole: an interrupt in the middle of it waits until after it."""
        data = encode_frame(message)
        if self._get_ident() != self._main_thread:
            self._write(data)
            return
        data, self._held = self._held + data, b""
        late: list[int] = []

        def note(number: int, _frame: object) -> None:
            late.append(number)

        previous = set_handler(signal.SIGINT, note)
        try:
            self._write(data)
        finally:
            set_handler(signal.SIGINT, previous)
        if late and callable(previous):
            previous(signal.SIGINT, None)

    def _write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(self.control_fd, data) :]

    def note(self, text: str) -> None:
        """Add a sentence to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "note", "text": text})

    def report_import(self, module: str, seconds: float) -> None:
        """Add the time of an import to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "imported", "module": module, "seconds": seconds})

    def hold(self, message: Mapping[str, Any]) -> None:
        """Send a frame with what comes next, which after a trailing expression is the end."""
        if self._get_ident() == self._main_thread:
            self._held += encode_frame(message)
        else:
            self.send(message)

    def send_last(self, message: Mapping[str, Any]) -> None:
        """Send what was held and a frame, when no code runs."""
        held, self._held = self._held, b""
        self._write(held + encode_frame(message))
