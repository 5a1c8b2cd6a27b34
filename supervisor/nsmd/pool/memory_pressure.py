"""Response when the machine is short of memory: first spares go, then the sessions that are idle
longest.

Short means that programs wait for memory (PSI) while little of it is left; waiting alone may come
from one session at its own limit. There is one step at a time, with 10 s to show its effect. First
spares go, by the pool's own rule. Only when there are none, a session ends, and with each step more
of them than before, until the pressure is gone. A session stays if it runs code or has done so
lately, has background processes, or is watched by somebody.

The kernel wakes us (Linux 6.5 and newer, for ordinary users). Elsewhere we look when something
happens in the supervisor anyway: an idle one does not wake for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import trio

from nsmd.model.events import EventKind, Events, SupervisorEvent
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import MemoryPressureSettings
from nsmd.pool.host_memory import HostMemory
from nsmd.pool.policy import CALM_PERCENT, HIGH_PERCENT, MemorySeen
from nsmd.pool.pool import Pool
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

REASON = "the machine was short of memory"
"""Reason of a session's end, for its owner."""

STEP_S = 10.0
"""Time between two steps, since the average that is read is one over that time."""

LOW_SHARE = 0.15
"""Share of all memory: if more is available, programs that wait do so at a limit of their own."""

EMPTY_SHARE = 0.04
"""The same share if the kernel does not tell who waits."""

GROWTH: Sequence[EventKind] = ("session_started", "execution_finished")
"""Events after which memory may be short where the kernel does not wake us."""

MOST_AT_ONCE = 16
"""Largest number of sessions to ask in one step."""


class Pressure:
    """Response to memory pressure: the pool's spares go first, then long-idle sessions.

    Args:
        events: reports what happens in the supervisor, and gets the pressure, too.
        live_sessions: gives sessions that belong to clients, and may end.
    """

    def __init__(
        self,
        settings: MemoryPressureSettings,
        memory: HostMemory,
        pool: Pool,
        events: Events,
        live_sessions: Callable[[], Sequence[Session]],
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._events = events
        self._live_sessions = live_sessions
        self._pool = pool
        self._next_s = -math.inf
        self._due_s = math.inf
        self._sleep: trio.CancelScope | None = None
        self._event_s = -math.inf
        # Of the present shortage.
        self._short = False
        self._asked: set[Session] = set()

    def __repr__(self) -> str:
        return f"<Pressure {'short' if self._short else 'none'}, {len(self._asked)} sessions asked>"

    async def run(self) -> None:
        """Watch until cancelled."""
        unsubscribe = self._events.subscribe(self._happened, GROWTH)
        try:
            while True:
                with trio.CancelScope(deadline=self._due_s) as self._sleep:
                    await trio.sleep_forever()
                self._due_s = math.inf
                self.look()
        finally:
            unsubscribe()

    def look(self) -> None:
        """Memory may be short: take a step if it is, and it is time for one."""
        now = trio.current_time()
        if now < self._next_s:
            return
        self._next_s = now + STEP_S
        seen = self._memory.seen()
        already, self._short = self._short, is_short(seen, already=self._short)
        if not self._short:
            self._asked.clear()
            return
        self._wake_at(self._next_s)
        spares = self._pool.spares
        ended = [] if spares or not self._settings.end_idle_sessions else self._end_some(now)
        self._pool.look_soon()
        if already and not spares and not ended:
            return  # nothing can be done, and that was logged
        log.warning(
            "short of memory (pressure %s %%, %d MiB available): %d spares, %d sessions may end",
            seen.pressure_percent,
            (seen.available_bytes or 0) >> 20,
            spares,
            len(ended),
        )
        self._events.publish(
            "memory_pressure",
            pressure_percent=seen.pressure_percent,
            available_bytes=seen.available_bytes,
            spares=spares,
            sessions=len(ended),
        )

    def _end_some(self, now: float) -> list[Session]:
        idle = [each for each in self._live_sessions() if self._may_end(each, now)]
        idle.sort(key=lambda session: session.active_s)
        chosen = idle[: min(MOST_AT_ONCE, max(1, len(self._asked)))]
        for session in chosen:
            self._asked.add(session)  # once: a session with background work is not asked again
            session.end_if_unused(REASON)
        return chosen

    def _may_end(self, session: Session, now: float) -> bool:
        return (
            session.state is SessionState.IDLE
            and session.name is not None
            and now - session.active_s >= self._settings.idle_seconds
            and not session.transcript.followers
            and session not in self._asked
        )

    def _happened(self, event: SupervisorEvent) -> None:
        if event.at_s < self._event_s:
            return
        self._event_s = event.at_s + STEP_S
        if not self._memory.seen().watched:
            self.look()

    def _wake_at(self, when_s: float) -> None:
        self._due_s = when_s
        if self._sleep is not None:
            self._sleep.deadline = when_s


def is_short(seen: MemorySeen, *, already: bool) -> bool:
    """Return whether memory has to be given back. If it was short a moment ago, `already`, it stays
    so until the pressure is gone.
    """
    if seen.available_bytes is None or not seen.total_bytes:
        return False
    left = seen.available_bytes / seen.total_bytes
    if seen.pressure_percent is None:
        return left < EMPTY_SHARE
    return left < LOW_SHARE and seen.pressure_percent >= (CALM_PERCENT if already else HIGH_PERCENT)
