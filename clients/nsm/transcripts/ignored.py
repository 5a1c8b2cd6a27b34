"""Numbers that differ from run to run, and mean nothing: addresses, times, durations, rates.

A time is left out only if it is near the moment at which its code ran: the dates of somebody's data
are compared like all else. `kinds_of` tells which kinds were left out.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = rf"(?:{'|'.join(_MONTHS)})"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? {1,2})?"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
_ZONE = r"(?: ?(?:Z|[A-Z]{3,5}|[+-]\d\d:?\d\d)\b)?"

_PATTERNS = {
    "address": re.compile(r"(?<=\bat )0x[0-9a-fA-F]{4,16}\b"),
    "time": re.compile(
        rf"\b(?P<iso>\d{{4}}-\d\d-\d\d)(?:[T ]{_CLOCK}{_ZONE})?"
        rf"|\b{_DAY}(?P<month>{_MONTH}) {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}{_ZONE}(?: \d{{4}})?\b"
        rf"|\b{_DAY}(?P<day2>\d{{1,2}}) (?P<month2>{_MONTH}) \d{{4}} {_CLOCK}{_ZONE}"
        r"|(?<![\w.])(?P<unix>\d{10}(?:\.\d{1,9})?|\d{13})(?![\w.])"
        r"|(?<![\w:.-])(?P<clock>\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?)(?![\w:])"
        r"|(?<=[\[<])(?P<bar>\d\d:\d\d)(?=[<,\]])"
    ),
    "rate": re.compile(r"(?<![\w.])\d{1,15}(?:\.\d{1,20})? ?[A-Za-z%]{1,12}/s(?:ec)?\b"),
    "duration": re.compile(
        r"(?<![\w.])(?:\d{1,6}m)?\d{1,15}(?:\.\d{1,20})?(?:e-?\d{1,3})? ?"
        r"(?:ns|us|\N{MICRO SIGN}s|\N{GREEK SMALL LETTER MU}s|ms|s|secs?|seconds?|min|mins|minutes?"
        r"|h|hrs?|hours?)(?![\w/])"
    ),
}
"""Patterns of what is left out, by kind; each takes time in proportion to the text."""

KINDS = tuple(_PATTERNS)

_OWN_NAME = re.compile(r"<exec[ -]\d{1,9}>")
"""How interpreters call the code of one execution: by its number in its session."""

_NEAR = timedelta(days=1)


def without_own_names(text: str) -> str:
    """A text without the numbers of executions, which nsm gives."""
    return _OWN_NAME.sub("<exec>", text)


def masked(text: str, at: float, *, but: str = "") -> str:
    """A text with the kind of each number that is left out in its place.

    Args:
        at: Unix time at which its code ran.
        but: a kind that stays.
    """
    for kind, pattern in _PATTERNS.items():
        if kind != but:
            text = pattern.sub(_near(at) if kind == "time" else f"<{kind}>", text)
    return text


def kinds_of(first: str, first_at: float, second: str, second_at: float) -> tuple[str, ...]:
    """Return the kinds that must be left out for two texts to be the same."""
    return tuple(
        kind
        for kind in KINDS
        if masked(first, first_at, but=kind) != masked(second, second_at, but=kind)
    )


def _near(at: float) -> Callable[[re.Match[str]], str]:
    """Make the function that masks times around a moment."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return lambda found: found[0]

    def mask(found: re.Match[str]) -> str:
        return "<time>" if _is_near(found, moment) else found[0]

    return mask


def _is_near(found: re.Match[str], moment: datetime) -> bool:
    if found["clock"] or found["bar"]:
        return True  # of no day
    try:
        if found["iso"]:
            return abs(date.fromisoformat(found["iso"]) - moment.date()) <= _NEAR
        if unix := found["unix"]:
            seconds = float(unix) if "." in unix or len(unix) == 10 else float(unix) / 1000
            return abs(datetime.fromtimestamp(seconds, UTC) - moment) <= _NEAR
    except (ValueError, OverflowError, OSError):
        return False
    month, day = found["month"] or found["month2"], found["day"] or found["day2"]
    days = (moment - _NEAR, moment, moment + _NEAR)
    return (_MONTHS.index(month) + 1, int(day)) in {(each.month, each.day) for each in days}
