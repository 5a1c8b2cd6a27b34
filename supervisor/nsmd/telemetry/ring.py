"""The latest of what happened, for people who watch.

One ring for all readers, each of which remembers how far it is: a slow one holds nobody up and
takes no memory, it only misses what the ring has dropped meanwhile, and is told how much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import trio

from nsmd.events import Happening
from nsmd.execution import Execution
from nsmd.session import Session
from nsmd.telemetry.counts import outcome_of

MAX_KEPT = 4096
"""Happenings; each takes some 500 bytes."""

_MOST_CHARS = 200
"""Of one text. Clients choose their names themselves."""


class Told(NamedTuple):
    """One thing that happened.

    Attributes:
        number: 1, 2, 3, ... since the supervisor started.
        at_s: when, on trio's clock.
        session: id; empty for none.
        facts: plain values.
    """

    number: int
    kind: str
    at_s: float
    session: str
    facts: Mapping[str, Any]


class Ring:
    """See the module.

    Attributes:
        count: how many there have been.
    """

    def __init__(self, size: int = MAX_KEPT) -> None:
        self.count = 0
        self._kept: deque[Told] = deque(maxlen=size)
        self._more: trio.Event | None = None  # made for who waits

    def __repr__(self) -> str:
        return f"<Ring of {len(self._kept)} of {self.count}>"

    def take(self, happening: Happening) -> None:
        """One more (a `Listener` of events)."""
        self.count += 1
        self._kept.append(
            Told(
                self.count,
                happening.kind,
                happening.at_s,
                happening.session,
                _facts(happening),
            )
        )
        if self._more is not None:
            self._more.set()
            self._more = None

    def after(self, number: int) -> Sequence[Told]:
        """Those after that one, as far as they are kept; oldest first."""
        if number >= self.count:
            return ()
        kept = self._kept
        skipped = max(0, number - (self.count - len(kept)))
        return [kept[index] for index in range(skipped, len(kept))]

    async def more(self, number: int) -> None:
        """Wait until there is one after that one."""
        while self.count <= number:
            if self._more is None:
                self._more = trio.Event()
            await self._more.wait()


def _facts(happening: Happening) -> dict[str, Any]:
    """What there is to say: plain values, never code, output or variables."""
    subject = happening.subject
    facts: dict[str, Any] = {}
    if isinstance(subject, Execution):
        facts = {
            "execution_id": subject.id,
            "env": subject.origin.env,
            "name": subject.session.name,
            "client": subject.request.client.name[:_MOST_CHARS],
        }
        if happening.kind == "execution_finished":
            facts["outcome"] = outcome_of(subject.answer)
            facts["duration_s"] = happening.at_s - subject.submitted_s
    elif isinstance(subject, Session):
        facts = {"env": subject.spec.environment.name}
        if (tenancy := subject.tenancy) is not None:
            facts["name"] = tenancy.name
            facts["client"] = tenancy.client[:_MOST_CHARS]
    for name, value in happening.facts.items():
        facts[name] = value if value is None or isinstance(value, int | float) else _text(value)
    return facts


def _text(value: object) -> str:
    return str(value)[:_MOST_CHARS]
