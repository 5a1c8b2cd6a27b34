"""Number of spares that each kind should have: a pure function of an observation.

It is a reorder point, as in stock keeping: calls arrive while a refill is under way, so there
should be as many spares as calls come in that time, and some more for chance. The same rule asks
for five spares of a kind with cold starts where two of a forked kind are enough; the times are
measured, not assumed.

1. *Demand*: rate x time + `SAFETY` x sqrt(rate x time), the mean of random arrivals and twice
   their standard deviation; or the largest recent burst, if that is more, since models call
   in bursts. At least `min_spares`.
2. *Use*: none of a kind that nobody used for `keep_seconds`; one of a kind that a new client
   will probably use; no more of a kind that fails to start until its pause is over.
3. *Room*: the kinds get their first spares in the order of their last use, then their second ones,
   and so on, up to `max_spares`, and up to a share of the available memory; the share shrinks
   with the pressure on memory. A kind that does not fit is not skipped: so more room never takes a
   spare away from any kind.

A fixed number would be too many spares for one kind and too few for a burst of another. One
person's calls show no pattern by the time of day that a forecast could use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nsm.dataclass import dataclass
from nsmd.model.settings import PoolSettings

SAFETY = 2.0
"""Standard deviations of a Poisson process: about one refill time in forty has more arrivals."""

UNKNOWN_REFILL_S = 0.1
"""Assumed time of a refill until one was measured: a cold start on a busy machine."""

UNKNOWN_COST_BYTES = 16 << 20
"""Assumed memory of a spare until one was measured: a cold Python with its agent."""

EXPECTED_S = 300.0
"""How long a kind is kept ready for a client that was expected to use it but has not."""

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0

CALM_PERCENT, HIGH_PERCENT = 1.0, 10.0
"""Pressure on memory (`some avg10` of PSI) up to which spares have their whole share, and from
which on they have none. Systems that kill programs to free memory act at some tens of percent.
"""

RESERVE_SHARE = 0.05
"""Share of all memory that stays free even without spares."""

MOST_AT_ONCE = 4
"""Starts at once that refills take part in; callers may start as many at once."""

SOONEST_S = 0.001
"""Shortest time before the next look."""

DECAY_LOOK_S = 30.0
"""Time between looks while more than the minimum is wanted: demand fades with time alone."""

MEMORY_LOOK_S = 60.0
"""The same for memory, if it has been short or the kernel does not report that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSeen:
    """Observation of one kind of session.

    Attributes:
        spares: starting ones included.
        rate_per_s: sessions taken per second, averaged over about the last minute.
        burst: largest number taken within the time of one refill, fading.
        refill_s: from start to ready, usually; None before the first.
        idle_s: seconds since its last use; infinite if never used.
        expected_s: seconds since a client connected that will probably use it.
        failures: starts that failed in a row; `failed_s` seconds since the last of them.
        cost_bytes: memory of one spare; None before one was measured.
    """

    spares: int = 0
    rate_per_s: float = 0.0
    burst: float = 0.0
    refill_s: float | None = None
    idle_s: float = math.inf
    expected_s: float = math.inf
    cost_bytes: int | None = None
    failures: int = 0
    failed_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySeen:
    """The host's memory.

    Attributes:
        total_bytes: memory of the host or limit of its control group; 0 if unknown.
        available_bytes: memory that programs can still get without pushing others out; None if
            unknown, for no limit.
        pressure_percent: time in which some program waited for memory; None if unknown.
        watched: the kernel reports when pressure begins.
    """

    total_bytes: int = 0
    available_bytes: int | None = None
    pressure_percent: float | None = None
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All facts that decide how many spares there should be."""

    settings: PoolSettings
    kinds: Sequence[KindSeen]
    memory: MemorySeen = MemorySeen()


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPlan:
    """Number of spares that a kind should have, and why, in words."""

    wanted: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Actions for an observation.

    Attributes:
        kinds: in the order of the observation's.
        starts: the kind's index for each session to start, the most urgent first.
        budget_bytes: memory for all spares; None without a limit.
        again_s: seconds until another plan may be right although nothing happened; infinite for
            never.
    """

    kinds: tuple[KindPlan, ...]
    starts: tuple[int, ...]
    budget_bytes: int | None
    again_s: float


def plan(seen: Observation) -> PoolPlan:
    """Decide how many spares of each kind there should be."""
    asked = [_asked(kind, seen.settings) for kind in seen.kinds]
    budget = _budget(seen)
    granted = [0] * len(asked)
    starts: list[int] = []
    left, limit = budget, ""
    for index in _turns(seen.kinds, [kind.wanted for kind in asked]):
        cost = _cost(seen.kinds[index])
        if sum(granted) >= seen.settings.max_spares:
            limit = f"no more than max_spares = {seen.settings.max_spares} in all"
            break
        if left is not None and cost > left:
            limit = _memory_limit(seen.memory, budget or 0)
            break
        left = None if left is None else left - cost
        granted[index] += 1
        if granted[index] > seen.kinds[index].spares:
            starts.append(index)
    kinds = tuple(
        want
        if got == want.wanted
        else KindPlan(wanted=got, why=f"{limit}; else {want.wanted}: {want.why}")
        for want, got in zip(asked, granted, strict=True)
    )
    return PoolPlan(
        kinds=kinds,
        starts=tuple(starts),
        budget_bytes=budget,
        again_s=_again(seen, asked, short="memory" in limit),
    )


def backoff_s(failures: int) -> float:
    """Seconds to leave a kind alone after so many failures in a row."""
    # The exponent is bounded first, because 2 to the 2000 does not fit into a float.
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30)) if failures else 0.0


def refill_at(
    *,
    now_s: float,
    stocked: bool,
    lead_s: float,
    unanswered_s: float,
    answered_s: float,
    short_s: float,
) -> float:
    """Time of the next refill, chosen so that it does not slow a call that is about to be answered.

    A start takes processor time from running code. So it waits until the calls that took spares
    have been answered, and a moment longer, in which the next call may come. It does not wait long,
    because calls may run for minutes; and less if no spare is left, since the next call would wait
    for a whole start.

    Args:
        stocked: a spare of the kind is ready.
        lead_s: time of a refill.
        unanswered_s: time of the last call that took a session and has no answer yet.
        answered_s: time when such a call was last answered.
        short_s: time since which there are fewer spares than wanted.

    Returns:
        A time on the clock of the arguments; `now_s` for at once.
    """
    patience = min(0.1, 2 * lead_s) if stocked else min(0.01, lead_s / 2)
    moment = 0.002 if stocked else 0.0003
    quiet = max(answered_s + moment, unanswered_s + patience)
    return max(now_s, min(quiet, short_s + patience))


def starts_at_once(*, stocked: bool, processors: int, rate_per_s: float, lead_s: float) -> int:
    """Number of sessions that may be starting, callers' own included, when a refill begins.

    A start is nearly all processor time: more at once take it from calls, and each takes longer. So
    this is half of the processors, or all of them if no spare is left, and always enough to keep up
    with the calls: as many as come in the time of one start (Little's law).
    """
    needed = math.ceil(min(rate_per_s * lead_s, MOST_AT_ONCE))
    usual = max(1, processors // 2) if stocked else max(processors, needed + 1)
    return min(MOST_AT_ONCE, max(usual, needed))


def _asked(kind: KindSeen, settings: PoolSettings) -> KindPlan:
    """Plan one kind as if there were room for everything."""
    used = kind.idle_s < settings.keep_seconds
    expected = kind.expected_s < min(EXPECTED_S, settings.keep_seconds)
    if used:
        want = _demanded(kind, settings)
    elif expected and settings.min_spares:
        want = KindPlan(wanted=1, why="a client came that is likely to use it")
    elif math.isinf(kind.idle_s):
        return KindPlan(wanted=0, why="nobody used it")
    else:
        return KindPlan(wanted=0, why=f"nobody used it for {settings.keep_seconds:.0f} s")
    if kind.failed_s < backoff_s(kind.failures) and want.wanted > kind.spares:
        pause = f"tried again after {backoff_s(kind.failures):.0f} s"
        return KindPlan(wanted=kind.spares, why=f"{kind.failures} failed in a row; {pause}")
    if kind.failures and want.wanted > max(kind.spares, 1):
        return KindPlan(
            wanted=max(kind.spares, 1), why=f"{kind.failures} failed in a row; one is tried again"
        )
    return want


def _demanded(kind: KindSeen, settings: PoolSettings) -> KindPlan:
    lead_s = UNKNOWN_REFILL_S if kind.refill_s is None else kind.refill_s
    arrivals = kind.rate_per_s * lead_s
    by_rate = _round(arrivals + SAFETY * math.sqrt(arrivals))
    by_burst = _round(kind.burst)
    wanted = min(max(by_rate, by_burst, settings.min_spares), settings.max_spares)
    if wanted <= settings.min_spares:
        return KindPlan(wanted=wanted, why="the least of a kind in use")
    if by_burst >= by_rate:
        return KindPlan(wanted=wanted, why=f"up to {by_burst} calls came at once")
    return KindPlan(
        wanted=wanted,
        why=f"{kind.rate_per_s:.1f} calls a second, {lead_s * 1000:.0f} ms to replace one",
    )


def _round(number: float) -> int:
    return math.floor(number + 0.5)


def _cost(kind: KindSeen) -> int:
    return UNKNOWN_COST_BYTES if kind.cost_bytes is None else kind.cost_bytes


def _budget(seen: Observation) -> int | None:
    """Bytes for all spares together. The memory of existing spares counts as available."""
    memory = seen.memory
    if memory.available_bytes is None:
        return None
    own = sum(kind.spares * _cost(kind) for kind in seen.kinds)
    free = max(0.0, memory.available_bytes + own - RESERVE_SHARE * memory.total_bytes)
    return int(free * seen.settings.memory_percent / 100 * _relief(memory))


def _relief(memory: MemorySeen) -> float:
    """Share that is left to spares: 1 without pressure on memory, 0 under high pressure."""
    if memory.pressure_percent is None:
        return 1.0
    above = (memory.pressure_percent - CALM_PERCENT) / (HIGH_PERCENT - CALM_PERCENT)
    return 1.0 - min(1.0, max(0.0, above))


def _memory_limit(memory: MemorySeen, budget: int) -> str:
    share = f"memory for spares is {budget / (1 << 20):.0f} MiB"
    if _relief(memory) < 1.0:
        return f"{share}, under a pressure of {memory.pressure_percent:.0f} %"
    return share


def _turns(kinds: Sequence[KindSeen], wanted: Sequence[int]) -> list[int]:
    """Order in which the kinds get spares, one at a time, as indexes."""
    latest = sorted(range(len(kinds)), key=lambda i: min(kinds[i].idle_s, kinds[i].expected_s))
    return [i for turn in range(max(wanted, default=0)) for i in latest if wanted[i] > turn]


def _again(seen: Observation, asked: Sequence[KindPlan], *, short: bool) -> float:
    """Seconds until another plan may be right although nothing happened."""
    settings, times = seen.settings, [math.inf]
    for kind, want in zip(seen.kinds, asked, strict=True):
        if kind.failures:
            times.append(backoff_s(kind.failures) - kind.failed_s)
        if want.wanted or kind.spares:
            times.append(settings.keep_seconds - kind.idle_s)
            times.append(min(EXPECTED_S, settings.keep_seconds) - kind.expected_s)
        if want.wanted > settings.min_spares:
            times.append(DECAY_LOOK_S)
    known = seen.memory.available_bytes is not None
    if known and (short or (not seen.memory.watched and any(kind.spares for kind in seen.kinds))):
        times.append(MEMORY_LOOK_S)
    # At least a moment later: adding a tiny time to a clock gives the same clock.
    return max(SOONEST_S, min(time for time in times if time > 0))
