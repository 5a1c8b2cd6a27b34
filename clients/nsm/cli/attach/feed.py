"""The transcript as it comes: whose code runs, and what is to be shown of it. Pure.

One stream of entries is the order of everything on the screen, the person's own output included:
what two streams said at the same time could not be told apart any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, assert_never

from nsm.cli.attach.excerpt import Excerpt, OutputExcerpt
from nsm.cli.render import formats, transcript
from nsm.cli.render.transcript import TranscriptPrinter
from nsm.cli.streams.escapes import colourless, harmless
from nsm.wire.transcripts import (
    ExecutionEnd,
    ExecutionStart,
    JobEnd,
    JobStart,
    OutputPiece,
    SessionStart,
)

if TYPE_CHECKING:
    from nsm.wire.transcripts import Entry


class Sink(Protocol):
    """Receiver of text."""

    def write(self, text: str) -> None:
        """Show a piece of text."""
        ...

    def lines(self, text: str) -> None:
        """Show lines of their own."""
        ...


class Viewer(Protocol):
    """Shows one execution in a way of its own: the person's, whose answer comes as well."""

    def started(self) -> None:
        """Show that it runs now."""
        ...

    def output(self, piece: OutputPiece) -> None:
        """Show its output."""
        ...

    def missed(self) -> None:
        """Output may be missing before what comes next."""
        ...

    def ended(self) -> None:
        """Show that it has ended; nothing of it follows."""
        ...


class Feed:
    """Events of a session, put on the screen.

    Attributes:
        running: the execution that runs now.
        clients: clients that have run something, according to the entries, in order of appearance.
    """

    def __init__(self, sink: Sink) -> None:
        self.running: ExecutionStart | None = None
        self.clients: list[str] = []
        self._sink = sink
        self._transcript = TranscriptPrinter()
        self._lines, self._excerpt = OutputExcerpt(), Excerpt()
        self._viewers: dict[str, Viewer] = {}

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

    def view(self, execution_id: str, viewer: Viewer) -> None:
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
            case JobStart() | JobEnd():
                self._sink.lines(self._transcript.take(entry))
            case _:
                assert_never(entry)

    def _start(self, start: ExecutionStart) -> None:
        self.running = start
        self._lines, self._excerpt = OutputExcerpt(), Excerpt()
        if start.client not in self.clients:
            self.clients.append(start.client)
        viewer = self._viewers.get(start.execution_id)
        if viewer is None:
            self._sink.lines(self._transcript.take(start))
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
            self._sink.write(self._transcript.take(now))

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
            self._sink.write(self._transcript.take(piece))
        self._sink.lines(self._transcript.take(end))


def label(start: ExecutionStart) -> str:
    """``claude-code's execution 7``."""
    return f"{transcript.one_line(start.client)}'s execution {start.number}"


def others(clients: list[str]) -> str:
    """``claude-code and nsm``, for a sentence; shortened where there are many."""
    names = [formats.visible(name) for name in clients]
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
