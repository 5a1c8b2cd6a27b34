"""Memory of the host: what is available, and the response when it is short; Linux only.

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
import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from nsm.dataclass import dataclass
from nsmd.host.processes import read_proc, share_of, tree_of
from nsmd.model.events import EventKind, Events, SupervisorEvent
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import MemoryPressureSettings
from nsmd.pool.policy import CALM_PERCENT, HIGH_PERCENT, MemorySeen

if TYPE_CHECKING:
    from nsmd.pool.pool import Pool
    from nsmd.sessions.session import Session

log = logging.getLogger(__name__)


PRESSURE = "proc/pressure/memory"

TRIGGER = b"some 100000 2000000\0"
"""Wakes us when programs waited for memory during 100 ms of 2 s. Ordinary users may ask for windows
of multiples of 2 s (since Linux 6.5).
"""

PRESSURE_PAUSE_S = 10.0
"""Pause between two wake-ups, since the average that is read is one over 10 s."""

FRESH_S = 1.0
"""Seconds for which a reading counts as current."""

_READ_BYTES = 65536


@dataclass(slots=True)
class _Read:
    at_s: float
    seen: MemorySeen


class HostMemory:
    """The memory of this host; `root` has `/proc` and `/sys`, other than `/` in tests only."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._watched = False
        self._last: _Read | None = None

    def seen(self) -> MemorySeen:
        """Read the memory figures, at most once in `FRESH_S`; some 50 microseconds."""
        now = trio.current_time()
        if self._last is None or now - self._last.at_s > FRESH_S:
            self._last = _Read(now, self._look())
        return self._last.seen

    def _look(self) -> MemorySeen:
        total, available = _host_memory(_text(self._root + "proc/meminfo"))
        for limit, used in self._group_limits():
            room = max(0, limit - used)
            total = min(total, limit) if total else limit
            available = room if available is None else min(available, room)
        return MemorySeen(
            total_bytes=total,
            available_bytes=available,
            pressure_percent=_pressure(_text(self._root + PRESSURE)),
            watched=self._watched,
        )

    def _group_limits(self) -> list[tuple[int, int]]:
        """Limit and use of each limited control group that we are in (version 2)."""
        found: list[tuple[int, int]] = []
        group = _own_group(_text(self._root + "proc/self/cgroup"))
        while group:
            folder = f"{self._root}sys/fs/cgroup{group}"
            limit, used = _text(f"{folder}/memory.max"), _text(f"{folder}/memory.current")
            if limit.strip().isdigit() and used.strip().isdigit():
                found.append((int(limit), int(used)))
            group = group.rpartition("/")[0]
        return found

    async def cost_bytes(self, pid: int) -> int | None:
        """Measure a jail's memory as `cost_of` does, in a thread."""
        return await trio.to_thread.run_sync(self.cost_of, pid)

    def cost_of(self, pid: int) -> int | None:
        """Measure the memory of a process and those below it; None if it is gone.

        It uses the proportional share (PSS) of each process that we may read. An ordinary user
        cannot read that of an agent, and neither may the code that the agent runs; for an agent,
        resident memory that is not shared counts. Up to 3 ms per process.
        """
        costs = [
            cost
            for each in tree_of(pid, f"{self._root}proc")
            if (cost := share_of(each, f"{self._root}proc"))
        ]
        return sum(costs) if costs else None

    async def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` when programs begin to wait for memory; returns if nobody can know.

        Cancellation: the usual way to end it; closes the trigger.
        """
        trigger = self._open_trigger()
        if trigger is None:
            return
        try:
            with select.epoll() as poll:
                poll.register(trigger, select.EPOLLPRI)
                self._watched, self._last = True, None
                while True:
                    # trio waits for readable and writable only; an epoll with an event is readable.
                    await trio.lowlevel.wait_readable(poll.fileno())
                    poll.poll(0)
                    self._last = None
                    tell()
                    await trio.sleep(PRESSURE_PAUSE_S)
        finally:
            self._watched = False
            os.close(trigger)

    def _open_trigger(self) -> int | None:
        try:
            fd = os.open(self._root + PRESSURE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            os.write(fd, TRIGGER)
        except OSError:  # an older kernel, for an ordinary user
            os.close(fd)
            return None
        return fd


def _text(path: str) -> str:
    with suppress(OSError):
        return read_proc(path, _READ_BYTES).decode(errors="replace")
    return ""


def _host_memory(text: str) -> tuple[int, int | None]:
    """Total and available bytes in the text of `/proc/meminfo`."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number = value.removesuffix("kB").strip()
        if name in ("MemTotal", "MemAvailable") and number.isdigit():
            values[name] = int(number) * 1024
    return values.get("MemTotal", 0), values.get("MemAvailable")


def _pressure(text: str) -> float | None:
    """`some avg10` in the text of `/proc/pressure/memory`, percent."""
    for line in text.splitlines():
        kind, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if (kind, name) == ("some", "avg10"):
                try:
                    return float(value)
                except ValueError:
                    return None
    return None


def _own_group(text: str) -> str:
    """Path of our control group in the text of `/proc/self/cgroup`; empty without one."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line[len("0::") :].rstrip("/")
    return ""


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
                self.reclaim()
        finally:
            unsubscribe()

    def reclaim(self) -> None:
        """Take a step if memory is short, and if it is time for one."""
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
            self.reclaim()

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
