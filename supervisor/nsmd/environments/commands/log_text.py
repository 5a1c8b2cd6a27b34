"""Lines of a log, cleaned for people; standard library only."""

from __future__ import annotations

import re
from typing import Protocol

from nsmd.environments.commands.progress import CommandProgress

MAX_LINE_CHARS = 4096
"""Largest part of a log line to keep; builders print whole files in one line."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class LogReader(Protocol):
    """Reader of the log of one command. What it reads may come from anybody."""

    def take(self, line: bytes, /) -> list[str]:
        """Read a line without its end. Returns cleaned lines for people; mostly one or none."""
        ...

    @property
    def error(self) -> str:
        """The command's error messages; empty if there are none."""
        ...

    @property
    def progress(self) -> CommandProgress:
        """Progress of the command."""
        ...


def lines_of(text: str) -> list[str]:
    """Lines of a text, without empty ones, cleaned and cut."""
    # Of a progress bar that is redrawn, the last state.
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = (clean(line)[:MAX_LINE_CHARS].rstrip() for line in shown)
    return [line for line in cleaned if line]


def clean(text: str) -> str:
    """Remove terminal control sequences."""
    if text.isprintable():
        return text
    text = _ESCAPES.sub("", text).expandtabs()
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
