"""Events of the supervisor and their listeners: the audit, counters, `nsm events`.

Publishing is synchronous and must cost next to nothing: a call passes here twice. Listeners store
or count; what takes longer they do in tasks of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import trio

log = logging.getLogger(__name__)

EventKind = Literal[
    "session_started",
    "session_ready",
    "session_claimed",
    "session_ended",
    "session_taken_up",
    "execution_started",
    "execution_finished",
    "execution_interrupted",
    "client_came",
    "client_left",
    "limit_hit",
    "pool_hit",
    "pool_miss",
    "pool_refilled",
    "memory_pressure",
    "configuration_reloaded",
    "operation",
    "draining",
    "restarted",
    "box_opened",
    "box_ended",
    "program_started",
    "program_ended",
]


@dataclass(slots=True)  # frozen, each would take a microsecond more
class Happening:
    """One thing that happened.

    Attributes:
        kind: what.
        at_s: when, on trio's clock.
        session: id of the session that it concerns; empty for none.
        facts: what else there is to say, plain values; never code, output or variables.
        subject: the object itself (a session, an execution), for listeners within the supervisor.
    """

    kind: EventKind
    at_s: float
    session: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    subject: object = field(default=None, compare=False, repr=False)


Listener = Callable[[Happening], None]


class Events:
    """Tells listeners in the order in which they came. One that raises is logged, and stays."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def __repr__(self) -> str:
        return f"<Events for {len(self._listeners)} listeners>"

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a function called with whatever happens from now on.

        Args:
            listener: quick; it neither waits nor raises.

        Returns:
            Ends that; may be called again.
        """
        self._listeners = [*self._listeners, listener]

        def unsubscribe() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return unsubscribe

    def publish(
        self, kind: EventKind, *, session: str = "", subject: object = None, **facts: Any
    ) -> None:
        """Something has happened."""
        if not self._listeners:
            return
        happening = Happening(kind, trio.current_time(), session, facts, subject)
        for listener in self._listeners:
            try:
                listener(happening)
            except Exception:  # what listens must not cost what it listens to
                log.exception("a listener of events failed at %s", kind)
