"""Lines of a log, cleaned for people, and the progress that a log tells; standard library only."""

from __future__ import annotations

import re

from nsm.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgress:
    """Progress of a build at one moment.

    Attributes:
        phase: of Nix: ``evaluating``, ``fetching`` (inputs of the evaluation), ``downloading``
            (packages that need no build) or ``building``. Of packages: ``resolving``,
            ``installing``, ``compiling`` or ``publishing``.
        activity: present activity, for people, e.g. ``building pandas-2.2 (checkPhase)``; may be
            empty.
        built, to_build: numbers of derivations; the second grows while Nix finds more.
        copied, to_copy: numbers of store paths from elsewhere.
    """

    phase: str = "evaluating"
    activity: str = ""
    built: int = 0
    to_build: int = 0
    copied: int = 0
    to_copy: int = 0
    downloaded_bytes: int = 0
    to_download_bytes: int = 0


MAX_LINE_CHARS = 4096
"""Largest part of a log line to keep; builders print whole files in one line."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class LogReader:
    """Reader of the log of one command, of plain lines. What it reads may come from anybody.

    Attributes:
        error: the command's error messages; empty if there are none.
    """

    @property
    def error(self) -> str:
        return ""

    @property
    def progress(self) -> CommandProgress:
        return CommandProgress()

    def read_line(self, line: bytes) -> list[str]:
        """Read a line without its end. Returns cleaned lines for people; mostly one or none."""
        return lines_of(line.decode(errors="replace"))


def lines_of(text: str) -> list[str]:
    """Lines of a text, without empty ones, cleaned and cut."""
    # Of a progress bar that is redrawn, the last state.
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = (clean(line).rstrip() for line in shown)
    return [line for line in cleaned if line]


def clean(text: str) -> str:
    """Remove terminal control sequences, and cut the text: only its beginning is made printable."""
    if text.isprintable():
        return text[:MAX_LINE_CHARS]
    text = _ESCAPES.sub("", text)[:MAX_LINE_CHARS].expandtabs()[:MAX_LINE_CHARS]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
