"""The transcript as it comes: whose code runs, and what is to be shown of it.

One stream of entries is the order of everything on the screen, the person's own output included:
what two streams said at the same time could not be told apart any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, assert_never

from nsm.cli.render import formats, transcript
from nsm.cli.render.results import ELSEWHERE, display, run_notes
from nsm.cli.render.transcript import TranscriptPrinter
from nsm.cli.streams.escapes import Harmless, colourless, harmless
from nsm.cli.streams.live_output import Live
from nsm.wire.transcripts import (
    ExecutionEnd,
    ExecutionStart,
    FreshRun,
    JobEnd,
    JobStart,
    OutputPiece,
    SessionStart,
)

if TYPE_CHECKING:
    from nsm.cli.attach.screen import AttachScreen
    from nsm.cli.render.results import Display, Folder
    from nsm.wire.code import RunResult
    from nsm.wire.transcripts import Entry, StreamName


HEAD_CHARS = 8 * 1024
"""Beginning that is shown at once: some 100 full lines, a few screens."""

TAIL_CHARS = 2 * 1024
"""End that is shown: a screen, since an error's traceback is there."""


MAX_LINE_CHARS = 4 * 1024
"""An unfinished line that is longer is shown as it is."""


class OutputExcerpt:
    """Whole lines out of one execution's output, as they stand when they are whole.

    A progress bar writes its line over and over; only the last state counts. `unfinished` is the
    line that is being written, as it stands now."""

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
    """Shown part of one execution's output; `kept_back` counts what is not shown (yet)."""

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


class OwnExecution:
    """One execution of the person's own: what it prints as it comes, then what the result adds.

    The transcript tells that it runs (`has_started`), and that it has ended (`over`)."""

    def __init__(self, screen: AttachScreen, folder: Folder) -> None:
        """Show it on `screen`; displayed pictures go to files in `folder`."""
        self.has_started = False
        self.over = asyncio.Event()
        self._finished = False
        self._screen = screen
        self._folder = folder
        self._streams = {"stdout": (Live(), Harmless()), "stderr": (Live(), Harmless())}

    def started(self) -> None:
        """Do nothing: the person has just typed the code."""
        self.has_started = True

    def output(self, piece: OutputPiece) -> None:
        """Show what it printed, unless the result has come first."""
        if self._finished:
            return
        live, filter_ = self._streams[piece.stream]
        self._screen.write(filter_.take(live.take(piece.text, skipped=bool(piece.skipped))))

    def missed(self) -> None:
        """Note that output was missed: from here on only the result knows the order."""
        for live, _ in self._streams.values():
            live.miss()

    def ended(self) -> None:
        """The transcript has nothing more of it."""
        self.over.set()

    def finish(self, result: RunResult) -> None:
        """Show what of the result has not been shown."""
        self._finished = True
        left_out: dict[str, int] = {}
        finals = {"stdout": result.stdout, "stderr": result.stderr}
        for name, (live, filter_) in self._streams.items():
            truncation = result.truncated.get(name)
            rest = live.rest(finals[name], truncation.omitted_bytes if truncation else 0)
            self._screen.write(filter_.take(rest.text) + filter_.end())
            if rest.left_out_bytes:
                left_out[name] = rest.left_out_bytes
        for bundle in result.displays:
            self._show_display(display(bundle), result.session.name or result.env)
        notes = run_notes(result, fresh_name=False, left_out=left_out)
        # Python and Node have said why.
        told = result.timed_out or result.interrupted or (result.exit_code == 1 and result.stderr)
        if result.exit_code and not told:
            notes.append(f"exit code {result.exit_code}")
        for note in notes:
            self._screen.lines(f"nsm: {note}")

    def _show_display(self, shown: Display, stem: str) -> None:
        notes = [note.removesuffix(ELSEWHERE) for note in shown.notes]
        if shown.picture is not None:
            try:
                notes.append(f"{shown.picture.what}: {self._folder.write(shown.picture, stem)}")
            except OSError as error:
                notes.append(f"{shown.picture.what}, cannot be written: {formats.os_error(error)}")
        self._screen.lines(harmless(shown.text))
        for note in notes:
            self._screen.lines(f"nsm: {formats.visible_lines(note)}")


class Feed:
    """Events of a session, put on the screen: what runs now, and the clients that have run
    something."""

    def __init__(self, screen: AttachScreen) -> None:
        self.running: ExecutionStart | None = None
        self.clients: list[str] = []
        self._screen = screen
        self._transcript = TranscriptPrinter()
        self._lines, self._excerpt = OutputExcerpt(), Excerpt()
        self._viewers: dict[str, OwnExecution] = {}

    @property
    def of_others(self) -> ExecutionStart | None:
        """The execution that runs now, if nobody here waits for it."""
        running = self.running
        return None if running is None or running.execution_id in self._viewers else running

    @property
    def status(self) -> str:
        """A line on what runs, for the prompt; empty when nothing does."""
        running = self.of_others
        if running is None:
            return ""
        kept_back = self._excerpt.kept_back
        much = f", {kept_back:,} characters not shown" if kept_back else ""
        return f"{label(running)} is running{much}"

    @property
    def unfinished(self) -> str:
        """The line that somebody else's execution is writing; a progress bar, often."""
        return transcript.one_line(colourless(harmless(self._lines.unfinished)))

    def view(self, execution_id: str, viewer: OwnExecution) -> None:
        """Let somebody else show an execution that is about to be sent."""
        self._viewers[execution_id] = viewer

    def unview(self, execution_id: str) -> None:
        """Show what is still to come of it as somebody else's."""
        self._viewers.pop(execution_id, None)

    def miss(self) -> None:
        """Something may be missing before the next entry."""
        for viewer in self._viewers.values():
            viewer.missed()

    def take(self, entry: Entry) -> None:
        """The next entry."""
        match entry:
            case SessionStart():
                pass  # the banner says it
            case ExecutionStart():
                self._start(entry)
            case OutputPiece():
                self._output(entry)
            case ExecutionEnd():
                self._end(entry)
            case JobStart() | JobEnd() | FreshRun():
                self._screen.lines(self._transcript.take(entry))
            case _:
                assert_never(entry)

    def _start(self, start: ExecutionStart) -> None:
        self.running = start
        self._lines, self._excerpt = OutputExcerpt(), Excerpt()
        if start.client not in self.clients:
            self.clients.append(start.client)
        viewer = self._viewers.get(start.execution_id)
        if viewer is None:
            self._screen.lines(self._transcript.take(start))
        else:
            viewer.started()

    def _output(self, piece: OutputPiece) -> None:
        viewer = self._viewers.get(piece.execution_id)
        if viewer is not None:
            viewer.output(piece)
        else:
            self._show(self._lines.take(piece))

    def _show(self, piece: OutputPiece) -> None:
        if (now := self._excerpt.take(piece)) is not None:
            self._screen.write(self._transcript.take(now))

    def _end(self, end: ExecutionEnd) -> None:
        if self.running is not None and self.running.execution_id == end.execution_id:
            self.running = None
        viewer = self._viewers.pop(end.execution_id, None)
        if viewer is not None:
            viewer.ended()
            return
        for piece in self._lines.rest(end.execution_id):
            self._show(piece)
        for piece in self._excerpt.rest():
            self._screen.write(self._transcript.take(piece))
        self._screen.lines(self._transcript.take(end))


def label(start: ExecutionStart) -> str:
    """``claude-code's execution 7``."""
    return f"{transcript.one_line(start.client)}'s execution {start.number}"


def others(clients: list[str]) -> str:
    """``claude-code and nsm``, for a sentence; shortened where there are many."""
    names = [formats.visible(name) for name in clients]
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
