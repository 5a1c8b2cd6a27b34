"""Sessions kept ready, so that a call finds its jail already there.

A *kind* is a jail specification. Sessions of a kind are interchangeable, and those that wait to be
taken are its *spares*. `nsmd.pool.policy` decides how many there should be. This module observes
and carries its plan out: when a session was taken and its call answered, when a refill is ready or
failed, when memory gets short, and at times that the plan named. In between it sleeps.

The figures of a kind have no clock: callers pass times. A note costs a microsecond, and memory does
not grow.
"""

from __future__ import annotations

import logging
import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable

import trio

from nsm.dataclass import dataclass, field, replace
from nsmd.model.events import EventKind, Events
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import PoolSettings
from nsmd.model.values import Environment, JailSpec
from nsmd.pool import policy
from nsmd.pool.memory import HostMemory
from nsmd.pool.policy import KindPlan, KindSeen, MemorySeen, Observation
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)


RATE_S = 60.0
"""Time constant of the average rate."""

BURST_HALF_LIFE_S = 120.0
"""A model's next burst comes minutes after the last one; after ten minutes little of it remains."""

LONGEST_BURST_S = 5.0
"""Calls further apart are no burst, even if a refill takes longer."""

MAX_BURST = 1024
"""Calls that count in one burst: nobody needs more spares than that."""

REMEMBERED = 32
"""Number of refills that the times are computed from."""


class Demand:
    """Record of when sessions of one kind were taken."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._burst = 0.0
        self._last_s = -math.inf
        self._lately: deque[float] = deque(maxlen=MAX_BURST)

    def add(self, now_s: float, lead_s: float) -> None:
        """Note that a session was taken; calls within the time of a refill are one burst."""
        self._weight = self._weight * self._faded(now_s, RATE_S) + 1.0
        lately = self._lately
        lately.append(now_s)
        begin = now_s - min(lead_s, LONGEST_BURST_S)
        while lately[0] < begin:
            lately.popleft()
        self._burst = max(self.burst(now_s), float(len(lately)))
        self._last_s = now_s

    def rate(self, now_s: float) -> float:
        """Sessions taken per second."""
        return self._weight * self._faded(now_s, RATE_S) / RATE_S

    def burst(self, now_s: float) -> float:
        """Largest number of sessions taken within the time of a refill; halves every
        `BURST_HALF_LIFE_S`.
        """
        return self._burst * self._faded(now_s, BURST_HALF_LIFE_S / math.log(2))

    def _faded(self, now_s: float, constant_s: float) -> float:
        return math.exp((self._last_s - now_s) / constant_s)


class Refills:
    """Durations of the last starts, from the decision to a session that is ready.

    The usual one is that which half of them did not exceed; None before the first. The slowest do
    not count: the first of a kind may have waited for their template.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        self._ordered: list[float] = []
        self.usual: float | None = None

    def __len__(self) -> int:
        return len(self._times)

    def add(self, seconds: float) -> None:
        """Note a session that is ready."""
        self._times.append(seconds)
        self._ordered = sorted(self._times)
        self.usual = self.quantile(0.5)

    def quantile(self, share: float) -> float | None:
        """The duration that this share of starts did not exceed; None before the first."""
        ordered = self._ordered
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


UNPLANNED = KindPlan(wanted=0, why="it has just come up")


@dataclass(slots=True, kw_only=True)
class Kind:
    """Sessions and figures of one kind.

    Attributes:
        ready: spares, the newest last: it is taken first, since its memory is still in caches.
        starting: refills that start.
        hits, misses: calls that found a spare ready, and those that had to wait for a start.
        used_s, expected_s, failed_s: on trio's clock, minus infinity for never.
        failures: failures in a row.
    """

    spec: JailSpec
    ready: list[Session] = field(default_factory=list[Session])
    starting: list[Session] = field(default_factory=list[Session])
    demand: Demand = field(default_factory=Demand)
    refills: Refills = field(default_factory=Refills)
    hits: int = 0
    misses: int = 0
    used_s: float = -math.inf
    expected_s: float = -math.inf
    failures: int = 0
    failed_s: float = -math.inf
    cost_bytes: int | None = None
    measured_s: float = -math.inf
    plan: KindPlan = UNPLANNED
    _variants: dict[bool, JailSpec] = field(default_factory=dict[bool, JailSpec])

    def variant(self, *, rehearsed: bool) -> JailSpec:
        """The specification, rehearsed or not; always the same object, which compares quickly."""
        found = self._variants.get(rehearsed)
        if found is None:
            found = self._variants[rehearsed] = replace(self.spec, rehearsed=rehearsed)
        return found

    @property
    def spares(self) -> int:
        """Number of spares, starting ones included."""
        return len(self.ready) + len(self.starting)

    @property
    def lead_s(self) -> float:
        """Time that a refill takes, in seconds."""
        usual = self.refills.usual
        return policy.UNKNOWN_REFILL_S if usual is None else usual

    def seen(self, now: float) -> KindSeen:
        """Make the observation for the policy."""
        return KindSeen(
            spares=self.spares,
            rate_per_s=self.demand.rate(now),
            burst=self.demand.burst(now),
            refill_s=self.refills.usual,
            idle_s=now - self.used_s,
            expected_s=now - self.expected_s,
            cost_bytes=self.cost_bytes,
            failures=self.failures,
            failed_s=now - self.failed_s,
        )


MAX_KINDS = 256
"""Largest number of remembered kinds; the least recently used one goes first."""

COST_FRESH_S = 300.0
"""How long the measured memory of a spare counts for its kind."""

SAME_FAILURE_S = 0.5
"""Spares that die within that time have one cause, which counts as one failure. It is shorter than
the first pause after a failure, so that the next attempt counts separately.
"""

PLAN_FRESH_S = 0.05
"""Time for which a plan is used while calls come. Each call changes the demand a little, but a new
plan for each would cost a twentieth of a call.
"""

START = Callable[[JailSpec], Session]


@dataclass(slots=True)
class _Start:
    """A session that starts: since when, and whether it is a refill."""

    since_s: float
    refill: bool


class Pool:
    """Spare sessions of all kinds.

    Args:
        start: makes a session of a kind and starts its task.
        nursery: owns the pool's two tasks; cancelling it stops refills.
        memory: memory figures of the host; None if they are unknown, so that they set no limit.
        processors: processors that starts can use; None for those that this process may use.
        events: gets an event for each session taken or refilled.

    Attributes:
        on_pressure: called when memory gets short, after the pool's own reaction.
    """

    def __init__(
        self,
        settings: PoolSettings,
        start: START,
        nursery: trio.Nursery,
        memory: HostMemory | None = None,
        processors: int | None = None,
        events: Events | None = None,
    ) -> None:
        self._settings = settings
        self._start = start
        self._nursery = nursery
        self._now = trio.lowlevel.current_clock().current_time
        self._events = events or Events()
        self._memory = memory
        self._processors = processors or len(os.sched_getaffinity(0))
        self._kinds: OrderedDict[JailSpec, Kind] = OrderedDict()
        # For sessions, spares and taken ones.
        self._kind_of: dict[Session, Kind] = {}
        self._starts: dict[Session, _Start] = {}
        # Taken sessions without an answer yet, the newest last: since when.
        self._unanswered: dict[Session, float] = {}
        self._answered_s = -math.inf
        self._short_s: float | None = None
        self._closed = False  # sessions still end, and nobody needs others in their place
        self._hurried = False  # calls come faster than refills
        self._budget_bytes: int | None = None
        self.hits = 0
        self.misses = 0
        # Kinds that lack spares, as often as each lacks one, the most urgent first.
        self._missing: deque[Kind] = deque()
        # When the plan was made, when another is due at the latest, and whether a call came since.
        self._planned_s = -math.inf
        self._again_s = -math.inf
        self._outdated = False
        self._due_s = math.inf
        self._sleep: trio.CancelScope | None = None
        nursery.start_soon(self._run)
        self.on_pressure: Callable[[], None] = _nothing
        if memory is not None:
            nursery.start_soon(memory.watch, self._memory_short)

    def __repr__(self) -> str:
        return f"<Pool {self.spares} spares of {len(self._kinds)} kinds>"

    @property
    def spares(self) -> int:
        """Number of sessions that wait to be taken, starting ones included."""
        return sum(kind.spares for kind in self._kinds.values())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sessions, the most recently used last."""
        return tuple(self._kinds.values())

    @property
    def memory(self) -> MemorySeen:
        """The host's memory, as the pool sees it."""
        return MemorySeen() if self._memory is None else self._memory.seen()

    @property
    def budget_bytes(self) -> int | None:
        """Memory that all spares together may use, by the last plan; None without a limit."""
        return self._budget_bytes

    # Events. All of this is quick; the pool's task decides what follows from it.

    def take_spare(self, spec: JailSpec) -> Session:
        """Take a session of that kind, ready or still starting. It belongs to the caller from now
        on.
        """
        now = self._now()
        kind = self._kind(spec)
        # If calls come faster than refills, there is no calm moment to delay refills to.
        lead_s = kind.lead_s
        self._hurried = now - kind.used_s < lead_s
        kind.used_s = now
        kind.demand.add(now, lead_s)
        session = _newest(kind.ready)
        if session is not None:
            kind.hits += 1
            self.hits += 1
        else:
            kind.misses += 1
            self.misses += 1
            session = _oldest(kind.starting) or self._begin(kind, now, refill=False)
        taken: EventKind = "pool_miss" if session.state is SessionState.STARTING else "pool_hit"
        self._events.publish(taken, session=session.id, subject=session)
        self._unanswered[session] = now
        self._outdated = True
        if kind.spares < kind.plan.wanted:
            self._missing.appendleft(kind)
        if self._short_s is None:
            self._short_s = now
        self._look_at(self._refill_at(kind, now))
        return session

    def answered(self, session: Session) -> None:
        """A taken session has its first answer: refills that waited for it may begin."""
        if self._unanswered.pop(session, None) is None:
            return
        now = self._answered_s = self._now()
        kind = self._kind_of.get(session)
        if kind is None:
            return
        if self._missing and self._hurried:
            self._refill(now)
        elif not kind.ready or kind.cost_bytes is None:
            self._look_at(self._refill_at(kind, now))
        # Else the end of the session is the moment, or the time that `take` has set. To be woken
        # for a time costs as much as a refill.

    def expect(self, spec: JailSpec) -> None:
        """A client connected that will probably ask for that kind."""
        if spec.secrets or spec.network.reads_requests:
            return  # each spare would have a helper, and the secrets' commands run for it
        self._kind(spec).expected_s = self._now()
        self.look_soon()

    def ready(self, session: Session) -> None:
        """A session, spare or taken, can run code now."""
        start = self._starts.pop(session, None)
        kind = self._kind_of.get(session)
        if kind is None or start is None:
            return
        recovered, kind.failures = kind.failures > 0, 0
        # Starts that callers wait for compete with each other, so their times say less.
        if start.refill or not kind.refills:
            kind.refills.add(self._now() - start.since_s)
        if start.refill:
            took_s = self._now() - start.since_s
            self._events.publish(
                "pool_refilled", session=session.id, subject=session, seconds=took_s
            )
        if session in kind.starting:
            kind.starting.remove(session)
            kind.ready.append(session)
        if recovered:
            self.look_soon()
        elif self._missing:
            self._refill(self._now())

    def forget(self, session: Session) -> None:
        """Nothing is left of a session, spare or taken."""
        self._starts.pop(session, None)
        self._unanswered.pop(session, None)
        kind = self._kind_of.pop(session, None)
        if kind is None:
            return
        for spares in (kind.ready, kind.starting):
            if session in spares:
                spares.remove(session)
                self._failed(kind, session)
        if kind.failures:
            self.look_soon()
        elif self._short_s is not None:  # its memory may be enough for another spare
            self._outdated = True
            self._look_at(self._planned_s + PLAN_FRESH_S)
            if not self._unanswered:
                self._refill(self._now(), calm=True)

    def keep_only(self, wanted: Callable[[Environment], bool]) -> None:
        """End spares of other environments, which were removed or replaced: nobody will ask for
        them.
        """
        for spec in [spec for spec in self._kinds if not wanted(spec.environment)]:
            self._shrink(self._kinds.pop(spec), 0, "its environment was removed or replaced")
        self.look_soon()

    def discard(self, session: Session, why: str) -> None:
        """End a spare that nobody should get."""
        kind = self._kind_of.get(session)
        if kind is not None:
            for spares in (kind.ready, kind.starting):
                if session in spares:
                    spares.remove(session)
        session.end(why)
        self.look_soon()

    def configure(self, settings: PoolSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self.look_soon()

    def look_soon(self) -> None:
        """Note a change that may change the plan."""
        self._again_s = -math.inf
        self._look_at(self._now())

    def _memory_short(self) -> None:
        self.look_soon()
        self.on_pressure()

    # The pool's task.

    async def _run(self) -> None:
        try:
            while True:
                with trio.CancelScope(deadline=self._due_s) as self._sleep:
                    await trio.sleep_forever()
                self._due_s = math.inf
                self._look(self._now())
        finally:
            self._closed = True

    def _look_at(self, when_s: float) -> None:
        """Make a plan at that time or earlier."""
        if when_s < self._due_s:
            self._due_s = when_s
            if self._sleep is not None:
                self._sleep.deadline = when_s

    def _look(self, now: float) -> None:
        """Make a plan if the last one no longer holds, and start what is missing."""
        fresh_until_s = self._planned_s + PLAN_FRESH_S if self._outdated else math.inf
        if now >= min(fresh_until_s, self._again_s):
            fresh_until_s = math.inf
            self._plan(now)
        if not self._unanswered:
            self._measure_one(now)
        self._refill(now)
        self._look_at(min(fresh_until_s, self._again_s))

    def _plan(self, now: float) -> None:
        kinds = self.kinds
        plan = policy.plan(
            Observation(
                settings=self._settings,
                kinds=[kind.seen(now) for kind in kinds],
                memory=self.memory,
            )
        )
        self._planned_s, self._again_s, self._outdated = now, now + plan.again_s, False
        self._budget_bytes = plan.budget_bytes
        self._missing = deque(kinds[index] for index in plan.starts)
        for kind, its in zip(kinds, plan.kinds, strict=True):
            kind.plan = its
            self._shrink(kind, its.wanted, its.why)
            if not kind.spares and not its.wanted:
                self._forget_unused(kind, now)

    def _refill(self, now: float, *, calm: bool = False) -> None:
        """Start what is missing, as far as calls and other starts let it; `calm` if no call waits,
        and the last one is over.
        """
        while self._missing and not self._closed:
            kind = self._missing[0]
            known = self._kinds.get(kind.spec) is kind  # it may have gone since the plan was made
            if known and kind.spares < kind.plan.wanted:
                # When a session is ready or a call answered, the task looks again.
                if self._starts and len(self._starts) >= self._starts_at_once(kind, now):
                    return
                if self._short_s is None:
                    self._short_s = now
                due_s = now if self._hurried or calm else self._refill_at(kind, now)
                if due_s > now:
                    self._look_at(due_s)
                    return
                self._short_s = now  # the next refill lets calls go first again
                kind.starting.append(self._begin(kind, now, refill=True))
            self._missing.popleft()
        self._short_s = None

    def _refill_at(self, kind: Kind, now: float) -> float:
        return policy.refill_at(
            now_s=now,
            stocked=bool(kind.ready),
            lead_s=kind.lead_s,
            unanswered_s=next(reversed(self._unanswered.values()), -math.inf),
            answered_s=self._answered_s,
            short_s=now if self._short_s is None else self._short_s,
        )

    def _starts_at_once(self, kind: Kind, now: float) -> int:
        return policy.starts_at_once(
            stocked=bool(kind.ready),
            processors=self._processors,
            rate_per_s=kind.demand.rate(now),
            lead_s=kind.lead_s,
        )

    def _begin(self, kind: Kind, now: float, *, refill: bool) -> Session:
        # Under load a rehearsal would take processor time from calls that wait.
        session = self._start(kind.variant(rehearsed=refill and not self._hurried))
        self._kind_of[session] = kind
        self._starts[session] = _Start(now, refill)
        return session

    def _shrink(self, kind: Kind, most: int, why: str) -> None:
        """End superfluous spares: the oldest first, and ready ones before those that
        just started.
        """
        for spares in (kind.ready, kind.starting):
            while spares and kind.spares > most:
                session = spares.pop(0)
                session.end(f"the pool has no use for it: {why}")

    def _kind(self, spec: JailSpec) -> Kind:
        kind = self._kinds.get(spec)
        if kind is not None:
            self._kinds.move_to_end(spec)
            return kind
        if len(self._kinds) >= MAX_KINDS:
            _, oldest = self._kinds.popitem(last=False)
            self._shrink(oldest, 0, "other kinds were used more recently")
        kind = self._kinds[spec] = Kind(spec=spec)
        return kind

    def _forget_unused(self, kind: Kind, now: float) -> None:
        used_s = max(kind.used_s, kind.expected_s)
        if now - used_s >= self._settings.keep_seconds:
            del self._kinds[kind.spec]

    def _failed(self, kind: Kind, session: Session) -> None:
        now = self._now()
        if now - kind.failed_s > SAME_FAILURE_S or not kind.failures:
            kind.failures += 1
            kind.failed_s = now
        log.warning("a spare of %s ended: %s", kind.spec.environment.name, session.end_reason)

    def _measure_one(self, now: float) -> None:
        """Now and then measure the memory of a spare, while no call waits."""
        if self._memory is None:
            return
        for kind in self._kinds.values():
            if kind.ready and now - kind.measured_s >= COST_FRESH_S:
                kind.measured_s = now
                self._nursery.start_soon(self._measure, self._memory, kind, kind.ready[-1].pid)
                return

    @staticmethod
    async def _measure(memory: HostMemory, kind: Kind, pid: int) -> None:
        cost = await memory.cost_bytes(pid)
        kind.cost_bytes = kind.cost_bytes if cost is None else cost


def _nothing() -> None:
    """Default for `on_pressure`."""


def _newest(ready: list[Session]) -> Session | None:
    while ready:
        session = ready.pop()
        link = session.link
        # Else it is ending, or its jail has just died, and it has not reported that yet.
        if session.state is SessionState.IDLE and link is not None and not link.has_ended:
            return session
    return None


def _oldest(starting: list[Session]) -> Session | None:
    while starting:
        session = starting.pop(0)
        if session.state is SessionState.STARTING:
            return session
    return None
