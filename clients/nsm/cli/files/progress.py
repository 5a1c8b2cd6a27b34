"""How far a long copy has come, for a person who waits."""

from __future__ import annotations

import sys
import time

from nsm.cli.render import formats

_FIRST_S = 1.0
"""Nobody waits for what takes less."""

_EVERY_S = 0.2
_NAME_CHARS = 40


class ProgressLine:
    """A line on standard error that comes late, changes, and goes.

    Args:
        name: name of the copied file.
        total_bytes: None where it is not known.
        wanted: it may be shown; but it is not if standard error is no terminal.
    """

    def __init__(self, name: str, total_bytes: int | None, *, wanted: bool = True) -> None:
        self._name = formats.visible(name)[-_NAME_CHARS:]
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._wanted = wanted and sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + _FIRST_S
        self._shown = False

    def expect(self, total_bytes: int) -> None:
        """Set the size of the whole copy."""
        self._total_bytes = total_bytes

    def add(self, size_bytes: int) -> None:
        """Add copied bytes."""
        self._done_bytes += size_bytes
        now_s = time.monotonic()
        if self._wanted and now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self._shown = True
            took_s = now_s - self._begun_s
            self._say(line(self._name, self._done_bytes, self._total_bytes, took_s))

    def end(self) -> None:
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
