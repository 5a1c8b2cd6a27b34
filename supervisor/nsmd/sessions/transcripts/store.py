"""Transcripts of all live sessions, and of as many ended ones as there is room for.

They are in the supervisor's memory only, and gone with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from nsmd.model.values import Environment, Tenancy
from nsmd.sessions.transcripts.transcript import Item, Subject, Transcript

MAX_ENDED_KEPT = 1000
"""Largest number of ended sessions whose transcripts are kept; the oldest go first."""

MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Total size of all kept transcripts; the oldest executions go first."""


class TranscriptStore:
    """Transcripts of all sessions.

    Attributes:
        size_bytes: approximate size of everything in memory.
    """

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Transcript] = OrderedDict()  # by session id
        # In the order of their ends.
        self._items: OrderedDict[Item, Transcript] = OrderedDict()
        self.size_bytes = 0

    def open(
        self, session_id: str, environment: Environment, tenancy: Tenancy | None
    ) -> Transcript:
        """Open the transcript of a session that begins; `tenancy` is None for a spare."""
        return Transcript(
            Subject(
                id=session_id,
                name=tenancy.name if tenancy else None,
                env=environment.name,
                interpreter=environment.interpreter,
                client=tenancy.client if tenancy else "",
                scope=tenancy.scope if tenancy else "",
                labels=tenancy.labels if tenancy else (),
            ),
            self,
        )

    def close(self, transcript: Transcript, reason: str) -> None:
        """Note that its session has ended."""
        transcript.close(reason)
        self._ended[transcript.subject.id] = transcript
        if len(self._ended) > MAX_ENDED_KEPT:
            _, oldest = self._ended.popitem(last=False)
            oldest.clear()

    def ended(self) -> Iterator[Transcript]:
        """Yield the transcripts of ended sessions, the newest last."""
        return iter(self._ended.values())

    def find(self, target: str) -> Transcript | None:
        """Find the ended session of that id, or the last one of that name or ``scope/name``."""
        if target in self._ended:
            return self._ended[target]
        return next((t for t in reversed(self._ended.values()) if t.subject.means(target)), None)

    # For `TranscriptBudget`.

    def grown(self, transcript: Transcript, item: Item) -> None:
        """An item has its final size."""
        self._items[item] = transcript
        self.size_bytes += item.size_bytes
        while self.size_bytes > MAX_TOTAL_BYTES:
            oldest, owner = next(iter(self._items.items()))
            owner.drop(oldest)

    def freed(self, size_bytes: int) -> None:
        """Part of an item was dropped."""
        self.size_bytes -= size_bytes

    def shrunk(self, item: Item) -> None:
        """An item was dropped."""
        del self._items[item]
        self.size_bytes -= item.size_bytes
