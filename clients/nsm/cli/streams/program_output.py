"""A program's output as it was told, line by line, and what its result has besides. Pure.

Unlike code in a session (`nsm.cli.streams.live_output`), a program may run for minutes after a
flood: what comes after a gap is shown as it comes, too.
"""

from __future__ import annotations

import re

from nsm.cli.render import formats
from nsm.cli.streams.live_output import Live

_LINES_LEFT_OUT = re.compile(r"\[\.\.\. \d+ lines? left out \.\.\.]\n")
"""Line in place of lines that came too fast to be sent."""


LEFT_OUT = "some of it is left out: it came faster than it was read"


class ShownOutput:
    """Shown part of one stream."""

    def __init__(self) -> None:
        self._live = Live()
        self._gap = ""  # that was told last, with nothing after it yet
        self._gaps = False
        self._within_a_line = False
        self._behind = False

    def take(self, text: str, skipped: int) -> str:
        """Take a piece and return the part to show.

        Args:
            text: a line with its end, a piece of a longer one, or nothing.
            skipped: characters that were left out before it, since whoever reads is too slow.
        """
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
        """Return the text left to show, and a note of lost text; empty where there is none.

        Args:
            final: the result's text: all of the output, or head and tail of it.
            omitted_bytes: how many bytes lie between these.
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
