"""How far a long copy has come, for a person who waits."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from nsm.cli.render import formats

if TYPE_CHECKING:
    from typing import Self

_FIRST_S = 1.0
"""Nobody waits for what takes less."""

_EVERY_S = 0.2
_NAME_CHARS = 40


class ProgressLine:
    """A line on standard error that comes late, changes, and goes; none if that is no terminal.

    Args:
        name: name of the copied file.
    """

    def __init__(self, name: str) -> None:
        self._name = formats.visible(name)[-_NAME_CHARS:]
        self._wanted = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + _FIRST_S
        self._shown = False

    def show(self, done_bytes: int, total_bytes: int | None) -> None:
        """Show how many bytes were copied, of all if that is known; not each time."""
        now_s = time.monotonic()
        if self._wanted and now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self._shown = True
            self._say(line(self._name, done_bytes, total_bytes, now_s - self._begun_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._shown:
            self._say("")

    @staticmethod
    def _say(text: str) -> None:
        # Back to the line's beginning, and what was behind it is erased (ECMA-48, EL).
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()


def line(name: str, done_bytes: int, total_bytes: int | None, took_s: float) -> str:
    """Make the line to show, without moving the cursor: how much, how fast, and the time left."""
    rate = done_bytes / took_s if took_s > 0 else 0.0
    speed = f"{formats.memory(int(rate))}/s"
    if not total_bytes:
        return f"{name}  {formats.memory(done_bytes)}  {speed}"
    share = min(100, done_bytes * 100 // total_bytes)
    shown = f"{name}  {formats.memory(done_bytes)} of {formats.memory(total_bytes)}  {share} %"
    if not rate:
        return shown
    return f"{shown}  {speed}  {formats.duration(max(0, total_bytes - done_bytes) / rate)} left"
