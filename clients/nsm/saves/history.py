"""Transcripts that go back beyond the save from which a session was restored."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from nsm.saves import kept
from nsm.saves.reports import RESTORED_FROM, SaveError
from nsm.saves.save_file import opened
from nsm.transcripts.document import MAX_FILE_BYTES, Gatherer, TranscriptError, read_transcript
from nsm.wire import transcripts
from nsm.wire.code import logs
from nsm.wire.frames import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.client.blocking import Client
    from nsm.transcripts.document import SessionTranscript
    from nsm.wire.messages import Event

MAX_LABEL_CHARS = 200

MAX_EARLIER_BYTES = 16 * 1024 * 1024
"""Largest transcript of a save that is continued: else a session that is saved and restored again
and again would have a longer and longer one."""

Line = dict[str, Any]


def label_of(path: str) -> dict[str, str]:
    """Labels of a session that is restored from a file."""
    name = kept.name_of(path) if kept.is_kept(path) else os.path.abspath(path)
    if len(name) > MAX_LABEL_CHARS or not name.isprintable():
        return {}
    return {RESTORED_FROM: name}


class History:
    """Transcript of a session, and before that of the save from which it was restored.

    Attributes:
        missing: why the earlier part is missing; empty if it is there, or if there is none.
    """

    def __init__(self, client: Client, target: str) -> None:
        self._lines: list[Line] = []
        client.ask(logs(target), self._take)
        self.missing = ""
        self._from_file = False
        source = self._header().get("labels", {}).get(RESTORED_FROM)
        if source is not None:
            self._continue(source)

    def _take(self, event: Event) -> None:
        if event.event == "session":
            self._lines.clear()  # it starts again if the connection was lost
        self._lines.append({"event": event.event, **event.data})

    def _header(self) -> Mapping[str, Any]:
        return self._lines[0] if self._lines else {}

    @property
    def interpreter(self) -> str:
        """The interpreter of the session."""
        return str(self._header().get("interpreter", ""))

    @property
    def gaps(self) -> list[str]:
        """Sentences on what ran in the session and is not in its transcript."""
        header = self._header()
        gaps: list[str] = []
        if header.get("after_restart"):
            gaps.append("the transcript begins with a restart of the supervisor")
        if dropped := header.get("dropped"):
            gaps.append(f"the transcript lacks the {dropped} oldest executions")
        if self.missing:
            gaps.append(f"the transcript lacks what ran before the restore: {self.missing}")
        return gaps

    def _continue(self, source: str) -> None:
        """Put the transcript of a save before that of the session."""
        try:
            path = kept.found(source)
            self._from_file = not kept.is_kept(path)
            earlier = _saved_lines(path)
        except (SaveError, OSError) as error:
            self.missing = str(error)
            return
        executions = [line for line in earlier if line["event"] == "execution"]
        last = max((line["number"] for line in executions), default=0)
        known = {line["execution_id"] for line in executions}
        own = self._lines[1:]
        lines = [dict(self._header()), *earlier[1:]]
        lines[0]["dropped"] = earlier[0].get("dropped", 0)
        for line in own:
            if line.get("execution_id") in known:
                continue  # the save is one of this session itself
            if line["event"] == "execution":
                last += 1
                line["number"] = last
            lines.append(line)
        self._lines = lines

    def lines(self) -> list[str]:
        """Return the entries as lines of JSON, as `nsm logs --json` prints them."""
        return [json.dumps(line) + "\n" for line in self._lines]

    def transcript(self) -> SessionTranscript:
        """Return it as a value. Like any file, a save that is not kept here is not trusted."""
        gatherer = Gatherer()
        for line in self._lines:
            if (entry := transcripts.entry(line["event"], line)) is not None:
                gatherer.take(entry)
        return gatherer.transcript(from_file=self._from_file)


def _saved_lines(path: str) -> list[Line]:
    """Read the entries of a save's transcript."""
    content = bytearray()

    def take(read: Any) -> None:
        while piece := read(1024 * 1024):
            content.extend(piece)

    with opened(path) as save:
        if save.manifest.parts["transcript.jsonl"].size > min(MAX_EARLIER_BYTES, MAX_FILE_BYTES):
            raise SaveError("the transcript in the save is too long")
        save.read_part("transcript.jsonl", take)
    try:
        import io  # noqa: PLC0415  # few sessions were restored

        read_transcript(io.BytesIO(content), "the transcript in the save")  # checks it
        return [json.loads(line) for line in content.splitlines()]
    except (TranscriptError, RemoteProtocolError) as error:
        raise SaveError(str(error)) from error
