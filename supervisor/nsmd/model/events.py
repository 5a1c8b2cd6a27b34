"""Events of the supervisor and their listeners: the audit, counters, `nsm events`.

Publishing is synchronous and must cost almost nothing: a call passes here twice. Listeners store or
count; longer work they do in tasks of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import trio

from nsm.dataclass import dataclass, field

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
    "job_started",
    "job_ended",
    "fresh_finished",
    "fresh_idle",
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
    "port_opened",
    "port_closed",
    "secret_granted",
    "secret_used",
    "secret_refused",
    "secret_revoked",
    "program_started",
    "program_ended",
]


@dataclass(slots=True)  # frozen, each would take a microsecond more
class SupervisorEvent:
    """One event.

    Attributes:
        facts: further facts as plain values; never code, output or variables.
        subject: the object itself (a session, an execution), for listeners within the supervisor.
        at_s: time on trio's clock.
        session: id of the session that it concerns; empty for none.
    """

    kind: EventKind
    at_s: float
    session: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    subject: object = field(default=None, compare=False, repr=False)


Listener = Callable[[SupervisorEvent], None]


class Events:
    """Bus of events: calls listeners in the order of their subscription. If one raises, that is
    logged, and it stays subscribed.
    """

    def __init__(self) -> None:
        self._subscriptions: list[tuple[Listener, Collection[EventKind] | None]] = []
        self._by_kind: dict[EventKind, list[Listener]] = {}
        self._now: Callable[[], float] | None = None  # the event loop's clock

    def __repr__(self) -> str:
        return f"<Events for {len(self._subscriptions)} listeners>"

    def subscribe(
        self, listener: Listener, kinds: Collection[EventKind] | None = None
    ) -> Callable[[], None]:
        """Call a function with every event from now on.

        Args:
            listener: must be quick; it neither waits nor raises.
        """
        subscription = listener, kinds
        self._subscriptions.append(subscription)
        self._by_kind = {}

        def unsubscribe() -> None:
            self._subscriptions = [each for each in self._subscriptions if each is not subscription]
            self._by_kind = {}

        return unsubscribe

    def _listeners_of(self, kind: EventKind) -> list[Listener]:
        found = [each for each, kinds in self._subscriptions if kinds is None or kind in kinds]
        self._by_kind[kind] = found
        return found

    def publish(
        self, kind: EventKind, *, session: str = "", subject: object = None, **facts: Any
    ) -> None:
        """Publish an event."""
        listeners = self._by_kind.get(kind)
        if listeners is None:
            listeners = self._listeners_of(kind)
        if not listeners:
            return
        if self._now is None:
            self._now = trio.lowlevel.current_clock().current_time
        event = SupervisorEvent(kind, self._now(), session, facts, subject)
        for listener in listeners:
            try:
                listener(event)
            except Exception:  # a listener must not harm the part that it listens to
                log.exception("a listener of events failed at %s", kind)
