"""Results of checks as rows of a table: the doctor's, and those of `--check`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Literal

from nsm.dataclass import dataclass, replace

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """Result of one check.

    Attributes:
        name: name of the checked thing, for people and programs. `rows` puts the row's name before
            it, which is the whole name if there is only one thing.
        status: `fail` means that nsm cannot work, `warn` that part of it does not.
        detail: the finding.
        fix: what to do; empty when there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


def ok(detail: str, fix: str = "", *, of: str = "") -> HostCheck:
    return HostCheck(name=of, status="ok", detail=detail, fix=fix)


def warn(detail: str, fix: str = "", *, of: str = "") -> HostCheck:
    return HostCheck(name=of, status="warn", detail=detail, fix=fix)


def fail(detail: str, fix: str = "", *, of: str = "") -> HostCheck:
    return HostCheck(name=of, status="fail", detail=detail, fix=fix)


def rows(*table: tuple[str, HostCheck | Iterable[HostCheck] | None]) -> list[HostCheck]:
    """Make the rows of a table.

    Args:
        table: name of a row, and the result of its check; several results make several rows, and
            None makes none.
    """
    return [
        replace(check, name=f"{name} {check.name}".rstrip())
        for name, found in table
        for check in ([found] if isinstance(found, HostCheck) else found or ())
    ]


def render_text(checks: Sequence[HostCheck], columns: int | None = None) -> str:
    """Aligned lines for people, fixes below what they fix, wrapped at a terminal's width if any."""
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


def render_json(checks: Sequence[HostCheck]) -> str:
    """JSON for programs: `{"ok": bool, "checks": [{name, status, detail, fix}]}`."""
    well = all(check.status != "fail" for check in checks)
    return json.dumps({"ok": well, "checks": [asdict(check) for check in checks]}, indent=2) + "\n"


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
