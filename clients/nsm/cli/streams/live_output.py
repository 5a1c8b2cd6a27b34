"""Streamed output and the final text put together: every byte once, in order.

What streams is a preview of the bytes that the result holds again, whole or as head and tail. A
preview has no gaps until something was printed faster than it could be sent on: then the agent
puts a mark into its text, or the supervisor says `skipped`. Another gap is the time between two
supervisors. From there on nothing more of it is shown, and the result brings the rest. (Code that
prints such a mark itself is shown later, no more.) Pure.
"""

from __future__ import annotations

import re

from nsm.cli.render import formats
from nsm.wire.tuples import NamedTuple

_KEPT_BYTES = 16 * 1024 * 1024
"""Amount of what was shown that is kept to compare: no result is larger (`MAX_FRAME_BYTES`)."""

_CHECKED_BYTES = 64
"""Number of bytes before a place in the tail that must agree with what was shown last."""

_ANY_MARK = re.compile(r"\n\[\.\.\. \d+ bytes left out \.\.\.]\n")


class Rest(NamedTuple):
    """Text still to show of one stream, and how many bytes before it are lost."""

    text: str
    left_out_bytes: int


class Live:
    """Shown part of one stream."""

    def __init__(self) -> None:
        self._begin = bytearray()
        self._end = b""
        self._shown_bytes = 0
        self._behind = False

    def take(self, text: str, *, skipped: bool) -> str:
        """The part of a streamed piece that is to be shown now: all, until something was left out
        (`skipped`) before one."""
        self._behind = self._behind or skipped
        if self._behind:
            return ""
        if (gap := _ANY_MARK.search(text)) is not None:
            self._behind = True
            text = text[: gap.start()]
        data = _encode(text)
        self._begin += data[: _KEPT_BYTES - len(self._begin)]
        self._end = (self._end + data)[-_CHECKED_BYTES:]
        self._shown_bytes += len(data)
        return text

    def miss(self) -> None:
        """Note that an unknown amount may be missing before the next piece."""
        self._behind = True

    def rest(self, final: str, omitted_bytes: int) -> Rest:
        """Return the text left to show. Where bytes were omitted, the result's text is head and
        tail of the output and the agent's mark between them."""
        mark = _mark(omitted_bytes) if omitted_bytes else ""
        head, found, tail = final.partition(mark) if mark else (final, "", "")
        head_bytes, tail_bytes = _encode(head), _encode(tail)
        shown = self._shown_bytes
        if shown <= len(head_bytes):
            if not head_bytes.startswith(self._begin):
                return Rest("", len(head_bytes) - shown + omitted_bytes + len(tail_bytes))
            return Rest(_decode(head_bytes[shown:]) + found + tail, omitted_bytes)
        missing = len(head_bytes) + omitted_bytes - shown
        if missing > 0:
            return Rest(_mark(missing) + tail, missing)
        # From an older supervisor, bytes that were no UTF-8 have another length than as U+FFFD.
        # Then this place is not where showing ended; rather than repeat something, nothing more
        # is shown.
        place = -missing
        seen, unseen = tail_bytes[:place], tail_bytes[place:]
        if not self._end.endswith(seen[-_CHECKED_BYTES:]):
            return Rest("", len(unseen))
        return Rest(_decode(unseen), 0)


def _mark(omitted_bytes: int) -> str:
    return f"\n[... {omitted_bytes} bytes left out ...]\n"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


_LINES_LEFT_OUT = re.compile(r"\[\.\.\. \d+ lines? left out \.\.\.]\n")
"""Line in place of lines that came too fast to be sent."""


LEFT_OUT = "some of it is left out: it came faster than it was read"


class ShownOutput:
    """Shown part of one stream of a program of the bridge, line by line.

    Unlike code in a session, a program may run for minutes after a flood: what comes after a gap is
    shown as it comes, too.
    """

    def __init__(self) -> None:
        self._live = Live()
        self._gap = ""  # that was told last, with nothing after it yet
        self._gaps = False
        self._within_a_line = False
        self._behind = False

    def take(self, text: str, skipped: int) -> str:
        """Take a piece and return the part to show: a line with its end, a piece of a longer one,
        or nothing. So many characters were left out before it, since whoever reads is too slow."""
        if self._behind:
            return ""
        if skipped:
            self._gap += f"[... {skipped} characters left out ...]\n"
        if _LINES_LEFT_OUT.fullmatch(text):
            self._gap += text
            text = ""
        if not text:
            return ""
        shown = self._gap_shown() + text
        if not self._gaps:
            self._live.take(text, skipped=False)
        self._within_a_line = not text.endswith("\n")
        return shown

    def _gap_shown(self) -> str:
        gap, self._gap = self._gap, ""
        self._gaps = self._gaps or bool(gap)
        return f"\n{gap}" if gap and self._within_a_line else gap

    def miss(self) -> None:
        """Note that output was missed, over an earlier connection: the result has to supply it."""
        self._behind = True

    def rest(self, final: str, omitted_bytes: int) -> tuple[str, str]:
        """Return the text left to show, and a note of lost text; empty where there is none. The
        result's text is all of the output, or head and tail of it with so many bytes between these.
        """
        if self._gaps:
            return self._gap_shown(), LEFT_OUT
        missing = self._behind or self._gap
        if omitted_bytes and not missing:
            return "", ""  # all of it was told
        rest = self._live.rest(final.replace("\r\n", "\n"), omitted_bytes)  # as lines are told
        if missing and rest.left_out_bytes:
            return rest.text, f"{formats.size(rest.left_out_bytes)} left out"
        return rest.text, ""
