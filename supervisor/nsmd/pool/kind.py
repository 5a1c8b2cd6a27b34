"""Sessions and figures of one kind of session that the pool keeps ready."""

from __future__ import annotations

import math

from nsm.dataclass import dataclass, field, replace
from nsmd.model.values import JailSpec
from nsmd.pool import policy
from nsmd.pool.demand import Demand, Refills
from nsmd.pool.policy import KindPlan, KindSeen
from nsmd.sessions.session import Session

UNPLANNED = KindPlan(wanted=0, why="it has just come up")


@dataclass(slots=True, kw_only=True)
class Kind:
    """Sessions and figures of one kind.

    Attributes:
        ready: spares, the newest last: it is taken first, since its memory is still in caches.
        starting: refills that start.
        hits: calls that found a spare ready.
        misses: calls that had to wait for a start.
        used_s, expected_s, failed_s: on trio's clock, minus infinity for never.
        failures: failures in a row.
        plan: the last plan.
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
