"""Frames to the agent."""

from __future__ import annotations

import _thread
import os
import signal

from sandbox.framing import encode_frame
from sandbox.linux import set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Outbox:
    """The worker's side of the control socket, for sending.

    Attributes:
        control_fd: the socket.
    """

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
