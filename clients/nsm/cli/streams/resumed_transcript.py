"""A transcript that is read over several connections: each entry once. Pure.

Where the supervisor was replaced, its next one tells from the beginning what it knows: of what ran
before, nothing or all, and of what runs, what was printed since, or all. Which of the two it is
shows in the time at which the execution began for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.retry import RECONNECTED

if TYPE_CHECKING:
    from nsm.wire.messages import Event

_REMEMBERED = 10_000
"""Executions that have ended, and jobs; a supervisor keeps the transcripts of fewer."""


class Continued:
    """Takes the events of `logs`, of one session.

    After a `gap`, something may be missing before the next entry. Whoever has told that to somebody
    sets it back."""

    def __init__(self) -> None:
        self.gap = False
        self._several = False  # connections
        self._session: object = None
        self._ended: dict[object, None] = {}
        self._begun: dict[object, _Begun] = {}
        self._jobs: dict[object, None] = {}

    def take(self, event: Event) -> Event | None:
        """The event as it is to be shown, or None where it has been shown before."""
        if event.event == RECONNECTED:
            self.gap = self._several = True
            return None
        if event.event == "session":
            return self._take_session(event)
        if event.event in ("job", "job_ended"):
            return self._take_job(event)
        known = event.data.get("execution_id")
        if self._several and known in self._ended:
            return None
        begun = self._begun.get(known)
        if event.event == "execution":
            began = event.data.get("started_at")
            if begun is None or not self._several:
                self._begun[known] = _Begun(began)
                return event
            begun.again(began)
            return None
        if event.event == "output" and begun is not None:
            return begun.output(event)
        if event.event == "finished":
            self._begun.pop(known, None)
            _remember(self._ended, known)
        return event

    def _take_session(self, event: Event) -> Event | None:
        known = event.data.get("id")
        if known == self._session:
            return None
        self._session = known
        self._ended, self._begun, self._jobs = {}, {}, {}
        return event

    def _take_job(self, event: Event) -> Event | None:
        known = event.event, event.data.get("job")
        if known in self._jobs:
            return None
        _remember(self._jobs, known)
        return event


def _remember(among: dict[object, None], known: object) -> None:
    among[known] = None
    if len(among) > _REMEMBERED:
        del among[next(iter(among))]


class _Begun:
    """An execution that runs: when it began, and how much of it was shown of each stream."""

    def __init__(self, began: object) -> None:
        self._began = began
        self._shown: dict[object, int] = {}
        self._repeated: dict[object, int] = {}

    def again(self, began: object) -> None:
        """Begin anew: in the same transcript, what it printed is told once more as well."""
        if began != self._began:
            self._shown = {}
        self._repeated = dict(self._shown)
        self._began = began

    def output(self, event: Event) -> Event | None:
        """Return the part of a piece that has not been shown."""
        data = event.data
        stream, text, skipped = data.get("stream"), data.get("text"), data.get("skipped") or 0
        if not isinstance(text, str) or not isinstance(skipped, int):
            return event  # whoever shows it says what is wrong with it
        size = skipped + len(text)
        covered = min(self._repeated.get(stream, 0), size)
        if covered:
            self._repeated[stream] -= covered
        if covered == size:
            return None
        self._shown[stream] = self._shown.get(stream, 0) + size - covered
        if not covered:
            return event
        rest = {"skipped": max(0, skipped - covered), "text": text[max(0, covered - skipped) :]}
        return event._replace(data={**data, **rest})
