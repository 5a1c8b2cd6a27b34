"""Things that were looked at, as rows of a table: the doctor's, and those of `--check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of the thing, for people and programs.
        status: `fail` means that nsm cannot work, `warn` that part of it does not.
        detail: what was found.
        fix: what to do; empty when there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


def render_text(checks: Sequence[Check], columns: int | None = None) -> str:
    """Aligned lines for people, fixes below what they fix.

    Args:
        columns: of the terminal, in which lines are wrapped; None for no limit.
    """
    width = max(len(check.name) for check in checks)
    margin = " " * (len("warn  ") + width + len("  "))
    room = None if columns is None else max(20, columns - len(margin))
    text = ""
    for check in checks:
        first, *more = _wrapped(check.detail, room)
        text += f"{check.status:<4}  {check.name:<{width}}  {first}\n"
        text += "".join(f"{margin}{line}\n" for line in more)
        if check.fix:
            first, *more = _wrapped(f"-> {check.fix}", room)
            text += "".join(f"{margin}{line}\n" for line in (first, *more))
    return text


def _wrapped(text: str, room: int | None) -> list[str]:
    lines = text.split("\n")
    if room is None:
        return lines
    from textwrap import wrap  # noqa: PLC0415  # for people only

    # A path stays whole, so that it can be copied from the terminal.
    return [
        part
        for line in lines
        for part in wrap(line, room, break_on_hyphens=False, break_long_words=False) or [""]
    ]
