"""Spare sessions of one kind, and its figures: how often and in what bursts they are taken, and how
long one takes to start.

The figures have no clock: callers pass times. A note costs a microsecond, and memory does not grow.
"""

from __future__ import annotations

import math
from collections import deque

from nsm.dataclass import dataclass, field, replace
from nsmd.model.values import JailSpec
from nsmd.pool import policy
from nsmd.pool.policy import KindPlan, KindSeen
from nsmd.sessions.session import Session

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

    def note(self, now_s: float, lead_s: float) -> None:
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

    def note(self, seconds: float) -> None:
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
