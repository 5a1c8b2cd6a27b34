"""A program's output as it was told, line by line, and what its result has besides. Pure.

Unlike code in a session (`nsm.cli.live`), a program may run for minutes after a flood: what comes
after a gap is shown as it comes, too.
"""

from __future__ import annotations

import re

from nsm.cli import render
from nsm.cli.live import Live

_LINES_LEFT_OUT = re.compile(r"\[\.\.\. \d+ lines? left out \.\.\.]\n")
"""What stands for lines that came too fast to be told."""


class Told:
    """What has been shown of one stream."""

    def __init__(self) -> None:
        self._live = Live()
        self._skipped = 0
        self._gaps = False
        self._behind = False

    def take(self, text: str, skipped: int) -> str:
        """What is to be shown of a piece.

        Args:
            text: a line with its end, a piece of a longer one, or nothing.
            skipped: characters that were left out before it, since whoever reads is too slow.
        """
        if self._behind:
            return ""
        if skipped and (text or self._gaps):
            self._gaps = True
            self._skipped += skipped
            return f"[... {skipped} characters left out ...]\n{text}"
        if skipped:  # and nothing comes any more
            self.miss()
        if _LINES_LEFT_OUT.fullmatch(text):
            self._gaps = True
        return self._live.take(text, skipped=False)

    def miss(self) -> None:
        """From here on the result has to tell."""
        self._behind = True
        self._live.miss()

    def rest(self, final: str, omitted_bytes: int) -> tuple[str, str]:
        """What is left to show, and what to note of what never will be, empty where there is none.

        Args:
            final: the result's text: all of the output, or head and tail of it.
            omitted_bytes: how many bytes lie between these.
        """
        if self._skipped:
            return "", f"{self._skipped} characters left out: what reads it was too slow"
        if self._gaps:
            missed = "some of it left out; --json has its beginning and its end"
            return "", missed if self._behind else ""
        if omitted_bytes and not self._behind:
            return "", ""  # all of it was told
        rest = self._live.rest(final.replace("\r\n", "\n"), omitted_bytes)  # as lines are told
        if self._behind and rest.left_out_bytes:
            return rest.text, f"{render.size(rest.left_out_bytes)} left out"
        return rest.text, ""
