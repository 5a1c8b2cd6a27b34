"""Text on its way to a client: valid Unicode, bounded, with the middle cut out."""

from __future__ import annotations

import re

_MOVES = re.compile(r"(\n|\r|\x1b\[[0-9]*[AK])")
"""Line ends, and sequences by which programs rewrite lines: back to the beginning, up some lines,
erase.
"""


def clean(text: str) -> str:
    """Replace lone surrogates, which a JSON reader may refuse.

    Text from a jail may contain them, as split pairs or alone; pairs are joined, others become
    U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def one_line(text: str, limit: int) -> str:
    """Return the text as one line of at most `limit` characters, without control characters."""
    shown = "".join(c if c.isprintable() else " " for c in clean(text))
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def settled(text: str) -> str:
    """Return the text as a terminal shows it at the end: a progress bar in its last state.

    Text after a carriage return replaces its line. `ESC [ A` goes back to lines above, for bars
    below each other; `ESC [ K` erases.
    """
    if "\r" not in text:
        return text
    lines, row, fresh = [""], 0, False
    for part in _MOVES.split(text):
        if part == "\n":
            row += 1
            fresh = False
            if row == len(lines):
                lines.append("")
        elif part == "\r":
            fresh = True
        elif part[-1:] == "A" and _MOVES.fullmatch(part):
            row = max(0, row - int(part[2:-1][:6] or 1))
        elif part[-1:] == "K" and _MOVES.fullmatch(part):
            if fresh:
                lines[row], fresh = "", False
        elif part:
            lines[row] = part if fresh else lines[row] + part
            fresh = False
    return "\n".join(lines)


def head_and_tail(text: str, limit: int, omitted_bytes: int = 0) -> tuple[str, int]:
    """Shorten a text to its beginning and its end, with a line between them that says how much is
    left out.

    Args:
        text: any text.
        limit: most characters to keep; the line between comes on top.
        omitted_bytes: bytes that are left out of the text already, as a line in it says. If that
            line is left out, the new one counts them, too.

    Returns:
        The text and the number of characters left out, 0 when it fits.
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
