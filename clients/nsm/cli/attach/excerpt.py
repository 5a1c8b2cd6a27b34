"""Others' output in short: a flood or a progress bar must not bury a person's screen. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nsm.wire.transcripts import OutputPiece

if TYPE_CHECKING:
    from nsm.wire.transcripts import StreamName

HEAD_CHARS = 8 * 1024
"""Beginning that is shown at once: some 100 full lines, a few screens."""

TAIL_CHARS = 2 * 1024
"""End that is shown: a screen, since an error's traceback is there."""


MAX_LINE_CHARS = 4 * 1024
"""An unfinished line that is longer is shown as it is."""


class OutputExcerpt:
    """Whole lines out of one execution's output, as they stand when they are whole.

    A progress bar writes its line over and over; only the last state counts.

    Attributes:
        unfinished: the line that is being written, as it stands now.
    """

    def __init__(self) -> None:
        self._rests: dict[StreamName, str] = {}
        self.unfinished = ""

    def take(self, piece: OutputPiece) -> OutputPiece:
        """The lines that end with a piece; its text may be empty."""
        text = self._rests.get(piece.stream, "") + piece.text
        whole, newline, rest = text.rpartition("\n")
        whole, rest = _final(whole) + newline, _final(rest)
        if len(rest) > MAX_LINE_CHARS:
            whole, rest = whole + rest, ""
        self._rests[piece.stream] = rest
        self.unfinished = rest.rstrip("\r")
        return piece._replace(text=whole)

    def rest(self, execution_id: str) -> list[OutputPiece]:
        """Return the text that never became a whole line."""
        rests, self._rests, self.unfinished = self._rests, {}, ""
        return [OutputPiece(execution_id, name, text, 0) for name, text in rests.items() if text]


def _final(text: str) -> str:
    """Lines without what was written over."""
    if "\r" not in text:
        return text
    return "\n".join(
        line[line.rstrip("\r").rfind("\r") + 1 :] if "\r" in line else line
        for line in text.split("\n")
    )


class Excerpt:
    """Shown part of one execution's output.

    Attributes:
        kept_back: characters that have come and are not shown (yet).
    """

    def __init__(self, head_chars: int = HEAD_CHARS, tail_chars: int = TAIL_CHARS) -> None:
        self._room = head_chars
        self._tail_chars = tail_chars
        self._tail: deque[OutputPiece] = deque()
        self._in_tail = 0
        self._left_out = 0

    @property
    def kept_back(self) -> int:
        return self._left_out + self._in_tail

    def take(self, piece: OutputPiece) -> OutputPiece | None:
        """Take a piece and return the part to show at once."""
        room = self._room
        self._room = max(0, room - len(piece.text))
        if len(piece.text) <= room:
            return piece
        now = piece._replace(text=piece.text[:room]) if room else None
        skipped = 0 if room else piece.skipped
        later = piece._replace(text=piece.text[room:][-self._tail_chars :], skipped=0)
        self._left_out += skipped + len(piece.text) - room - len(later.text)
        self._tail.append(later)
        self._in_tail += len(later.text)
        while self._in_tail > self._tail_chars:
            self._drop(min(self._in_tail - self._tail_chars, len(self._tail[0].text)))
        return now

    def rest(self) -> list[OutputPiece]:
        """Return the text to show at the end; the first piece says how much is left out before
        it."""
        pieces, self._tail, self._in_tail = list(self._tail), deque(), 0
        if pieces:
            pieces[0] = pieces[0]._replace(skipped=self._left_out)
            self._left_out = 0
        return pieces

    def _drop(self, characters: int) -> None:
        """Leave out the beginning of the tail."""
        first = self._tail.popleft()
        self._in_tail -= characters
        self._left_out += characters
        if len(first.text) > characters:
            self._tail.appendleft(first._replace(text=first.text[characters:]))
