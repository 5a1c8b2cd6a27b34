"""Writing above the prompt, or where there is none.

While the person types, whole lines go above the prompt, at most some 20 times a second, because
each time the prompt is taken off the screen and drawn again. Without a prompt, text is written as
it comes.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prompt_toolkit.application import run_in_terminal

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TextIO

    from prompt_toolkit.application import Application

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
