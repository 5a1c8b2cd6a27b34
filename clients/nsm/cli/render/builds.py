"""Environments that Nix builds, as text; and how a build comes along, for a person who waits."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from nsm.cli.render import formats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nsm.wire.environments import BuildProgress, BuiltRow

_EVERY_S = 0.2
_NOTICEABLE_S = 1.0
_WIDTH = 100

_LOCAL = re.compile(r"(path:|git\+file:(?://)?)?(\.{1,2}(?:/[^#?]*)?)([#?].*)?", re.DOTALL)
"""A scheme if there is one, a path that begins here, and the rest."""


def absolute(reference: str) -> str:
    """A reference that begins in this directory as one that the supervisor understands; any other
    text as it is."""
    match = _LOCAL.fullmatch(reference)
    if match is None:
        return reference
    scheme, path, rest = match.groups(default="")
    if scheme.startswith("git+file"):
        scheme = "git+file://"
    return scheme + quote(os.path.abspath(path)) + rest


def table(rows: Sequence[BuiltRow]) -> str:
    """The table of `nsm env builds`."""
    if not rows:
        return (
            "None was added. `nsm env add REF#NAME` builds one; `nsm env` lists all environments."
        )
    now_s = time.time()
    return formats.table(
        "NAME STATE BUILT REFERENCE NOTE".split(),
        (
            (
                row.name,
                row.state,
                "-" if row.built_at is None else f"{formats.duration(now_s - row.built_at)} ago",
                row.reference,
                _note(row),
            )
            for row in rows
        ),
    )


def _note(row: BuiltRow) -> str:
    if row.progress is not None:
        return _state(row, row.progress)
    if row.state == "failed":
        kept = "" if row.path is None else " (the one built before is used)"
        return f"{row.cause or 'its build failed'}{kept}"
    if row.note:
        return row.note
    others = [who for who in row.wanted_by if who != "nsm env add"]
    return "" if not others else f"named by {', '.join(others)}"


def detail(row: BuiltRow) -> list[tuple[str, str]]:
    """Lines of `nsm env show NAME` on how an environment was built, as names and texts."""
    lines = [("reference", row.reference), ("build", row.state)]
    if row.progress is not None:
        lines.append(("", _state(row, row.progress)))
    if row.path is not None:
        lines.append(("store path", row.path))
    if row.built_at is not None:
        lines.append(("built", f"{formats.duration(time.time() - row.built_at)} ago"))
    if row.lock:
        lines.append(("lock", row.lock))
    if row.note:
        lines.append(("note", row.note))
    if row.wanted_by:
        lines.append(("named by", ", ".join(row.wanted_by)))
    return lines


def added(row: BuiltRow) -> str:
    """Make the last message of `nsm env add`."""
    note = f"\nnote: {formats.visible(row.note)}" if row.note else ""
    return f"{formats.visible(row.name)} is ready: {formats.visible(row.path or '')}{note}"


def updated(row: BuiltRow, before: str | None) -> str:
    """Make the last message of `nsm env update` about one environment.

    Args:
        before: its store path before; None where there was none.
    """
    name, path = formats.visible(row.name), formats.visible(row.path or "")
    if row.path == before:
        return f"{name} is up to date"
    return f"{name} is new: {path}"


def visible_log(text: str) -> str:
    """A piece of a log; nsm cleaned it before, but its file may have been anybody's since."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def line(row: BuiltRow) -> str:
    """How a build comes along, in a line; empty where none does."""
    if row.progress is None:
        return ""
    return formats.visible(f"{row.name}: {_state(row, row.progress)}")[:_WIDTH]


def _state(row: BuiltRow, progress: BuildProgress) -> str:
    for_so_long = formats.duration(row.since_s or 0)
    if row.state == "queued":
        return f"waits for other builds, {for_so_long}"
    parts = [progress.activity or progress.phase]
    if progress.to_build:
        parts.append(f"{progress.built} of {progress.to_build} built")
    if progress.to_download_bytes:
        done, total = progress.downloaded_bytes, progress.to_download_bytes
        parts.append(f"{formats.memory(done)} of {formats.memory(total)}")
    elif progress.downloaded_bytes:
        parts.append(f"{formats.memory(progress.downloaded_bytes)} received")
    return ", ".join([*parts, for_so_long])


class BuildProgressLine:
    """How builds come along, on standard error: a line that changes on a terminal; else a line for
    each phase."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._phases: dict[str, str] = {}
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._draw("")

    def show(self, row: BuiltRow) -> None:
        """Show how one is now."""
        if row.progress is None:
            return
        if self._on_terminal:
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + _EVERY_S
                self._shown = True
                self._draw(line(row))
            return
        waits = row.state == "queued"
        if waits and (row.since_s or 0) < _NOTICEABLE_S:
            return
        phase = "waiting for other builds" if waits else row.progress.phase
        if self._phases.get(row.reference) != phase:
            self._phases[row.reference] = phase
            sys.stderr.write(f"nsm: {formats.visible(f'{row.name}: {phase}')}\n")
            sys.stderr.flush()

    @staticmethod
    def _draw(text: str) -> None:
        # Back to the line's beginning, and what was behind it is erased (ECMA-48, EL).
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
