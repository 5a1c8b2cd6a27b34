"""Streamed output and the final text put together: every byte once, in order.

What streams is a preview of the bytes that the result holds again, whole or as head and tail. A
preview has no gaps until it says `skipped` (this reader was too slow): from there on nothing more
of it is shown, and the result brings the rest. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

_KEPT_BYTES = 16 * 1024 * 1024
"""How much of what was shown is kept to compare: no result is larger (`MAX_FRAME_BYTES`)."""

_CHECKED_BYTES = 64
"""How many bytes before a cut must agree with what was shown."""


class Rest(NamedTuple):
    """What is still to be shown of one stream, and how many bytes before it never will be."""

    text: str
    left_out_bytes: int


class Live:
    """What has been shown of one stream."""

    def __init__(self) -> None:
        self._begin = bytearray()
        self._end = b""
        self._shown_bytes = 0
        self._behind = False

    def take(self, text: str, *, skipped: bool) -> str:
        """The part of a streamed piece that is to be shown now: all, or nothing.

        Args:
            skipped: something before this piece was left out.
        """
        self._behind = self._behind or skipped
        if self._behind:
            return ""
        data = text.encode()
        self._begin += data[: _KEPT_BYTES - len(self._begin)]
        self._end = (self._end + data)[-_CHECKED_BYTES:]
        self._shown_bytes += len(data)
        return text

    def rest(self, final: str, omitted_bytes: int) -> Rest:
        """What is left to show.

        Args:
            final: the result's text; with `omitted_bytes` left out, head and tail of the output.
        """
        text = final.encode()
        common = _common_prefix(text, self._begin)
        if common == self._shown_bytes:
            return Rest(_decode(text[common:]), omitted_bytes)
        left = len(text) + omitted_bytes - self._shown_bytes
        if left <= 0:
            return Rest("", 0)
        cut = len(text) - left
        if cut <= common:  # shown: the head and some of what the result leaves out
            return Rest(_decode(text[common:]), left - (len(text) - common))
        # Shown: all up to some place in the tail. Bytes that were no UTF-8 are counted
        # differently in text and output; then the cut is elsewhere, and nothing is repeated.
        before = text[max(common, cut - _CHECKED_BYTES) : cut]
        return Rest(_decode(text[cut:]), 0) if self._end.endswith(before) else Rest("", left)


def _common_prefix(one: bytes, other: bytes | bytearray) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")
