"""One execution of the person's own: what it prints as it comes, then what the result adds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsm.cli.render import formats
from nsm.cli.render.results import ELSEWHERE, display, run_notes
from nsm.cli.streams.escapes import Harmless, harmless
from nsm.cli.streams.live_output import Live

if TYPE_CHECKING:
    from nsm.cli.attach.feed import Sink
    from nsm.cli.render.results import Display, Folder
    from nsm.wire.code import RunResult
    from nsm.wire.transcripts import OutputPiece


class OwnExecution:
    """Shows one execution; see `nsm.cli.attach.feed.Viewer`.

    Attributes:
        has_started: the transcript has shown that it runs.
        over: set when the transcript has told that it has ended.
    """

    def __init__(self, sink: Sink, folder: Folder) -> None:
        """Show it on `sink`; displayed pictures go to files in `folder`."""
        self.has_started = False
        self.over = asyncio.Event()
        self._finished = False
        self._sink = sink
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
        self._sink.write(filter_.take(live.take(piece.text, skipped=bool(piece.skipped))))

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
            self._sink.write(filter_.take(rest.text) + filter_.end())
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
            self._sink.lines(f"nsm: {note}")

    def _show_display(self, shown: Display, stem: str) -> None:
        notes = [note.removesuffix(ELSEWHERE) for note in shown.notes]
        if shown.picture is not None:
            try:
                notes.append(f"{shown.picture.what}: {self._folder.write(shown.picture, stem)}")
            except OSError as error:
                notes.append(f"{shown.picture.what}, cannot be written: {formats.os_error(error)}")
        self._sink.lines(harmless(shown.text))
        for note in notes:
            self._sink.lines(f"nsm: {formats.visible_lines(note)}")
