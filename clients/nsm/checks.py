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


def render_text(checks: Sequence[Check]) -> str:
    """Aligned lines for people, fixes below what they fix."""
    width = max(len(check.name) for check in checks)
    margin = " " * (len("warn  ") + width + len("  "))
    text = ""
    for check in checks:
        detail = check.detail.replace("\n", f"\n{margin}")
        text += f"{check.status:<4}  {check.name:<{width}}  {detail}\n"
        if check.fix:
            text += f"{margin}-> {check.fix}\n"
    return text
