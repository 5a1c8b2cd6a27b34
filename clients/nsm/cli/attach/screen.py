"""The terminal while `nsm attach` has it: writing above the prompt, its mode, and its signals.

While the person types, whole lines go above the prompt, at most some 20 times a second, because
each time the prompt is taken off the screen and drawn again. Without a prompt, text is written as
it comes.

Between prompts the terminal does not echo, so that what is typed ahead does not get into the
output, and hands over each character at once, so that the next prompt finds them as they were
typed. Ctrl-C and Ctrl-Z stay signals there. (While a prompt is shown, prompt_toolkit puts the
terminal into raw mode and back.)
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TextIO

    from prompt_toolkit.application import Application
    from prompt_toolkit.input import Input

REDRAW_INTERVAL_S = 0.05
"""Pause between redraws, the same as between pieces of output
(docs/contributing/agent-protocol.md); the eye takes no more.
"""

MAX_PENDING_CHARS = 64 * 1024
"""Largest output that waits for the next redraw. The middle of more is left out: nobody can read
it.
"""


class AttachScreen:
    """The terminal's text, from the top down.

    Everything that comes from a session has to be harmless (`nsm.cli.streams.escapes`) already.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pending = ""
        self._gap_at = 0
        self._left_out = 0
        self._mid_line = False
        self._app: Application[Any] | None = None
        self._writer: asyncio.Task[None] | None = None

    def write(self, text: str) -> None:
        """Show a piece of text, which need not end with its line."""
        if not text:
            return
        self._mid_line = not text.endswith("\n")
        self._pending += text
        if self._app is None:
            self._write_out(len(self._pending))
            return
        if len(self._pending) > MAX_PENDING_CHARS:
            self._shorten()
        if self._writer is None and "\n" in text:
            self._writer = asyncio.ensure_future(self._write_above())

    def lines(self, text: str) -> None:
        """Show lines of their own; an unfinished one is finished first."""
        if text:
            self.write(("\n" if self._mid_line else "") + text.rstrip("\n") + "\n")

    @contextmanager
    def above(self, app: Application[Any]) -> Generator[None]:
        """Write above that prompt as long as the context is open."""
        if self._mid_line:
            self.write("\n")
        self._app = app
        try:
            yield
        finally:
            self._app = None
            if self._writer is not None:
                self._writer.cancel()
                self._writer = None
            self._write_out(len(self._pending))

    async def _write_above(self) -> None:
        while "\n" in self._pending:
            await run_in_terminal(self._write_lines)
            await asyncio.sleep(REDRAW_INTERVAL_S)
        self._writer = None

    def _write_lines(self) -> None:
        self._write_out(self._pending.rfind("\n") + 1)

    def _write_out(self, size: int) -> None:
        text, self._pending = self._pending[:size], self._pending[size:]
        if self._left_out and self._gap_at <= size:
            gap = f"\n[... {self._left_out} characters left out ...]\n"
            text = text[: self._gap_at] + gap + text[self._gap_at :]
            self._left_out = 0
        self._gap_at -= min(size, self._gap_at)
        if text:
            self._stream.write(text)
            self._stream.flush()

    def _shorten(self) -> None:
        half = MAX_PENDING_CHARS // 2
        if not self._left_out:
            self._gap_at = half
        end = max(self._gap_at, len(self._pending) - half)
        self._left_out += end - self._gap_at
        self._pending = self._pending[: self._gap_at] + self._pending[end:]


ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_INPUT_FLAGS, _LOCAL_FLAGS, _CHARACTERS = 0, 3, 6
"""Places in what `termios.tcgetattr` returns."""


@contextmanager
def quiet(descriptor: int) -> Generator[None]:
    """Keep the terminal in the mode between prompts, and give it back as it was. Takes over SIGCONT
    on the running loop, since a shell that the program was suspended to has its own mode."""
    before = termios.tcgetattr(descriptor)

    def set_mode() -> None:
        mode = termios.tcgetattr(descriptor)
        mode[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
        mode[_LOCAL_FLAGS] |= termios.ISIG
        mode[_INPUT_FLAGS] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, set_mode)
    try:
        set_mode()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
        with suppress(termios.error):  # it has been closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def handled(handlers: dict[signal.Signals, Callable[[], object]]) -> Generator[None]:
    """Take over signals on the running loop."""
    loop = asyncio.get_running_loop()
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


@contextmanager
def typing_ahead(keyboard: Input, on_leave: Callable[[], object]) -> Generator[None]:
    """Keep what is typed for the next prompt; Ctrl-D, or a terminal that has gone, is to leave."""

    def read() -> None:
        keys = [key for key in keyboard.read_keys() if key.key != Keys.CPRResponse]
        if keyboard.closed or any(key.key == Keys.ControlD for key in keys):
            on_leave()
        store_typeahead(keyboard, [key for key in keys if key.key != Keys.ControlD])

    with keyboard.attach(read):
        yield


def end_by(number: int) -> None:
    """Die of a signal that was put off until the terminal was restored, so that whoever started
    us is told the truth."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
