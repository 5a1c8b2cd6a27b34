"""Text on its way to a client: valid Unicode, bounded, with the middle cut out."""

from __future__ import annotations

import re
import unicodedata

from nsm.wire.frames import without_surrogates

_SEQUENCES = re.compile(
    r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])"
    r"|([\n\r\b])"
)
"""Text that a terminal acts on (ECMA-48, and xterm's strings that end with BEL): CSI with its
parameters and final byte, strings such as titles and links, other escape sequences; line ends and
backspace.
"""

_SCREEN_ROWS = 24
_MOST_COLUMNS = 120
"""Largest column to which a sequence moves: few characters must not become many spaces."""

_MOST_SETTLED_CHARS = 1024 * 1024
"""Longest text to settle: of a longer one, which agents send on request only, sequences are just
left out.
"""


def clean(text: str) -> str:
    """Replace lone surrogates, which a JSON reader may refuse.

    Text from a jail may contain them, as split pairs or alone; pairs are joined, others become
    U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return without_surrogates(text)
    return text


def one_line(text: str, limit: int) -> str:
    """Return the text as one line of at most `limit` characters, without control characters."""
    shown = "".join(c if c.isprintable() else " " for c in clean(text))
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def settled(text: str) -> str:
    """Return the text as a terminal shows it at the end: a progress bar in its last state, no
    colours, titles and links.
    """
    if "\x1b" not in text and "\r" not in text and "\b" not in text:
        return text
    if len(text) > _MOST_SETTLED_CHARS:
        return _SEQUENCES.sub(lambda found: found[3] or "", text)
    screen = _Screen()
    place = 0
    for found in _SEQUENCES.finditer(text):
        screen.write(text[place : found.start()])
        place = found.end()
        screen.act(found[3] or found[2] or "", found[1] or "")
    screen.write(text[place:])
    return screen.text()


class _Screen:
    """A terminal's screen and what has left it at the top; lines of any length."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rewritten: set[int] = set()

    def write(self, text: str) -> None:
        """Write text over what is there."""
        if not text:
            return
        line = self._lines[self._row]
        if self._column != len(line):
            self._rewritten.add(self._row)
            line.extend(" " * (self._column - len(line)))
        cells = text if text.isascii() else _cells(text)
        line[self._column : self._column + len(cells)] = cells
        self._column += len(cells)

    def act(self, kind: str, parameters: str) -> None:
        """Act on a control character, or on a sequence with this final byte."""
        first, _, second = parameters.partition(";")
        number, lines = _number(first), self._lines
        count = number or 1
        match kind:
            case "\n":
                self._go(self._row + 1, 0)
            case "\r":
                self._column = 0
            case "\b" | "D":
                self._column = max(0, self._column - count)
            case "A":
                self._go(self._row - count, self._column)
            case "F":
                self._go(self._row - count, 0)
            case "B":
                self._go(min(self._row + count, len(lines) - 1), self._column)
            case "E":
                self._go(min(self._row + count, len(lines) - 1), 0)
            case "C":
                self._go(self._row, self._column + count)
            case "G":
                self._go(self._row, count - 1)
            case "H":
                top = max(0, len(lines) - _SCREEN_ROWS)
                self._go(top + min(count, _SCREEN_ROWS) - 1, max(0, _number(second) - 1))
            case "K" if number != 1:
                del lines[self._row][0 if number else self._column :]
                self._rewritten.add(self._row)
            case "J" if number == 0:
                del lines[self._row][self._column :], lines[self._row + 1 :]
            case "J" if number != 1:
                for line in lines[-_SCREEN_ROWS:]:
                    line.clear()
            case _:  # colours and the like
                pass

    def text(self) -> str:
        """Return all lines. Those that were rewritten have no spaces at their ends."""
        shown = ("".join(line) for line in self._lines)
        return "\n".join(
            line.rstrip(" ") if row in self._rewritten else line for row, line in enumerate(shown)
        )

    def _go(self, row: int, column: int) -> None:
        self._row = max(0, row)
        self._column = min(column, max(self._column, _MOST_COLUMNS))
        while len(self._lines) <= self._row:
            self._lines.append([])


def _cells(text: str) -> list[str]:
    """Return what each column shows: nothing in the second one of a wide character."""
    cells: list[str] = []
    for char in text:
        if unicodedata.combining(char) and cells:
            cells[-1] += char
        else:
            cells += (char, "") if unicodedata.east_asian_width(char) in {"W", "F"} else char
    return cells


def _number(parameter: str) -> int:
    return int(parameter[:6]) if parameter.isdecimal() else 0


def head_and_tail(text: str, limit: int, omitted_bytes: int = 0) -> tuple[str, int]:
    """Shorten a text to its beginning and its end, with a line between them that says how much is
    left out.

    Args:
        omitted_bytes: bytes that are left out of the text already, as a line in it says. If that
            line is left out, the new one counts them, too.
    """
    if len(text) <= limit:
        return text, 0
    begin, end = limit // 2, len(text) - (limit - limit // 2)
    omitted = end - begin
    mark = f"[... {omitted:,} characters left out ...]"
    earlier = f"\n[... {omitted_bytes} bytes left out ...]\n"
    place = text.find(earlier) if omitted_bytes else -1
    if place >= 0 and place < end and place + len(earlier) > begin:
        begin, end = min(begin, place), max(end, place + len(earlier))
        omitted = end - begin - len(earlier)
        omitted_bytes += len(text[begin:end].encode()) - len(earlier)
        mark = f"[... {omitted_bytes:,} bytes left out ...]"
    head, tail = text[:begin], text[end:]
    before = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{before}{mark}\n{tail}", omitted


def shares(sizes: list[int], total: int) -> list[int]:
    """Split a budget: small parts get all they need, large ones share the rest equally."""
    left, granted = total, [0] * len(sizes)
    waiting = sorted(range(len(sizes)), key=lambda index: sizes[index])
    for position, index in enumerate(waiting):
        granted[index] = min(sizes[index], left // (len(waiting) - position))
        left -= granted[index]
    return granted


def line_end(text: str) -> str:
    """Return the text with a newline at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else text + "\n"


def size(size_bytes: int) -> str:
    """Format an amount of data for people and models."""
    if size_bytes < 10_000:
        return f"{size_bytes:,} bytes"
    mebibyte = 1024**2
    if size_bytes < 10 * mebibyte:
        return f"{size_bytes / 1024:,.0f} KiB"
    return f"{size_bytes / mebibyte:,.0f} MiB"
