"""Tables, sizes, durations and foreign text, for people. Pure.

Names, paths and messages come from other programs, some of them jailed: whatever a terminal would
take for more than a character to show is made visible.
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_HINTS = {
    errno.EACCES: "Check its owner and mode, and those of the directories above it.",
    errno.EPERM: "Check its owner and mode, and those of the directories above it.",
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there, or have your quota raised.",
    errno.EISDIR: "Name a file, not a directory.",
    errno.ENOTDIR: "A part of that path is not a directory: check its spelling.",
    errno.EROFS: "Its file system is read-only: name another place.",
    errno.ENOENT: "Check its spelling.",
}
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MEBIBYTE = 1024 * 1024


def visible(text: str) -> str:
    """The text with everything but printable characters escaped: ``\\\\x1b``, ``\\\\u202e``."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def visible_lines(text: str) -> str:
    """Like `visible`, but keep line breaks: messages quote the words of other programs."""
    return "\n".join(visible(line.expandtabs()) for line in text.rstrip().split("\n"))


def error(message: str, hint: str) -> str:
    """A message and, on a line of its own, what to do next."""
    return visible_lines(message) + (f"\n{visible_lines(hint)}" if hint else "")


def os_error(problem: OSError, what: str = "") -> str:
    """An error of the kernel: which file it is about (`what`, if it names none), why, and what to
    do."""
    if problem.errno is None:
        return error(str(problem), "")
    name: object = problem.filename if problem.filename is not None else what
    text = f"{name}: {problem.strerror}" if name not in ("", None) else str(problem.strerror)
    return error(text, _HINTS.get(problem.errno, ""))


def duration(seconds: float) -> str:
    """Seconds as people say them: ``12s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def limit(seconds: float) -> str:
    """A time limit: one of less than a second is not none."""
    return f"{seconds:g}s" if seconds < _MINUTE else duration(seconds)


def processor_time(seconds: float | None) -> str:
    """CPU time: finer than an age while it is short."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f}s" if seconds < _MINUTE else duration(seconds)


def milliseconds(seconds: float | None) -> str:
    """A short time."""
    return "-" if seconds is None else f"{seconds * 1000:.0f}ms"


def short_time(seconds: float | None) -> str:
    """A duration with two or three digits, whatever its size."""
    if seconds is None:
        return "-"
    if seconds < 0.0995e-2:
        return f"{seconds * 1e6:.0f}us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{0 if seconds >= 0.0995 else 1}f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)


def memory(size_bytes: int | None) -> str:
    """Bytes as mebibytes."""
    return "-" if size_bytes is None else f"{size_bytes / _MEBIBYTE:.1f} MiB"


def of_limit(used: int | None, limit: int) -> str:
    """A number in use and its limit: ``12/4096``."""
    return f"{'-' if used is None else used}/{limit}"


def memory_of_limit(used_bytes: int | None, limit_bytes: int) -> str:
    """Memory in use and its limit: ``210/18000 MiB``."""
    used = None if used_bytes is None else used_bytes // _MEBIBYTE
    return f"{of_limit(used, limit_bytes // _MEBIBYTE)} MiB"


def size(size_bytes: int) -> str:
    """An amount of output."""
    if size_bytes < 10 * 1024:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1024:.0f} KiB" if size_bytes < _MEBIBYTE else memory(size_bytes)


def count(number: int, noun: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: str = "",
    *,
    width: int | None = None,
    least: str = "",
) -> str:
    """Aligned columns, two spaces apart, nothing after the last.

    Args:
        header: one word a column.
        rows: texts as they come; they are made visible here.
        right: the names of columns that are aligned to the right, separated by spaces. These are
            never cut.
        width: width of the terminal; None for no limit. If the table is wider, its widest texts are
            cut, and if that is not enough, columns are left out.
        least: the names of columns that are left out, the first one first.
    """
    lines = [list(header), *map(_visible_cells, rows)]
    if width is not None:
        lines, right = _narrowed(lines, right.split(), width, least.split())
    header = lines[0]
    widths = list(map(_widest, zip(*lines, strict=True)))
    to_the_right = [name in right.split() for name in header]
    # There may be ten thousand lines, of which nearly all are ASCII.
    aligned = "  ".join(
        f"{{:{'>' if flush else '<'}{width}}}"
        for width, flush in zip(widths, to_the_right, strict=True)
    )
    texts: list[str] = []
    for line in lines:
        if "".join(line).isascii():
            texts.append(aligned.format(*line).rstrip())
            continue
        cells = [
            " " * (width - columns(cell)) + cell if flush else cell + " " * (width - columns(cell))
            for cell, width, flush in zip(line, widths, to_the_right, strict=True)
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _visible_cells(row: Sequence[str]) -> list[str]:
    return list(row) if "".join(row).isprintable() else [visible(cell) for cell in row]


def _widest(column: Sequence[str]) -> int:
    return max(map(len if "".join(column).isascii() else columns, column))


_PATHS = ("PROJECT", "SOURCE", "DIRECTORY")
"""Columns of paths, of which the end tells more than the beginning."""

_FEWEST = 12
"""Columns that a text is cut to before others are left out."""


def _narrowed(
    lines: list[list[str]], right: list[str], width: int, least: list[str]
) -> tuple[list[list[str]], str]:
    while True:
        header = lines[0]
        widths = list(map(_widest, zip(*lines, strict=True)))
        # The last column is the most telling one: notes, reasons.
        fewest = [
            own
            if name in right
            else min(own, max(len(name), _FEWEST * (1 + (place == len(header) - 1))))
            for place, (name, own) in enumerate(zip(header, widths, strict=True))
        ]
        gaps = 2 * (len(header) - 1)
        dropped = next((name for name in least if name in header), None)
        if sum(fewest) + gaps <= width or dropped is None:
            break
        place = header.index(dropped)
        lines = [line[:place] + line[place + 1 :] for line in lines]
    while sum(widths) + gaps > width:
        spare = [own - few for own, few in zip(widths, fewest, strict=True)]
        if not any(spare):
            break
        widest = max(range(len(widths)), key=lambda place: widths[place] * (spare[place] > 0))
        widths[widest] -= 1
    cut = [
        [
            shortened(cell, own, keep_end=name in _PATHS)
            for cell, own, name in zip(line, widths, header, strict=True)
        ]
        for line in lines
    ]
    return cut, " ".join(right)


def shortened(text: str, width: int, *, keep_end: bool = False) -> str:
    """The text in so many columns: with an ellipsis in place of its end, or of its beginning."""
    if columns(text) <= width:
        return text
    while text and columns(text) > width - 1:
        text = text[1:] if keep_end else text[:-1]
    return f"\N{HORIZONTAL ELLIPSIS}{text}" if keep_end else f"{text}\N{HORIZONTAL ELLIPSIS}"


def listing(lines: Sequence[tuple[str, str]]) -> str:
    """Names and texts, aligned."""
    width = max((len(name) for name, _ in lines), default=0) + 2
    return "\n".join(f"{name:<{width}}{visible(text)}" for name, text in lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def below_home(path: str, home: str) -> str:
    """A path, with ``~`` for the home directory."""
    if path == home:
        return "~"
    return "~" + path[len(home) :] if path.startswith(home.rstrip("/") + "/") else path


def columns(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415  # rarely needed

    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


def date(unix_time: float) -> str:
    """A time as a local date and time of day."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_time))
    except (ValueError, OverflowError, OSError):  # no date that a calendar has
        return "-"
