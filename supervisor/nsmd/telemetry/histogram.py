"""Distribution of durations in fixed buckets: cheap to add to, with percentiles later."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
"""Ten steps per decade: ISO 3, the R10 series of preferred numbers."""

_DECADES = range(-5, 4)

BOUNDS: tuple[float, ...] = tuple(
    float(f"{step}e{decade}") for decade in _DECADES for step in _STEPS
)
"""Upper bounds of the buckets, in seconds, from 10 us to more than two hours. Each is some 25 %
above the one before it, so the error of a percentile is at most that.
"""

SHOWN: tuple[int, ...] = tuple(
    index
    for index, bound in enumerate(BOUNDS)
    if 1e-4 <= bound <= 5e3 and index % len(_STEPS) in (0, 4, 7)
)
"""Positions in `BOUNDS` of those that Prometheus gets: 1, 2.5 and 5 of each decade."""


class Histogram:
    """Durations in seconds.

    Attributes:
        counts: counts by bucket; the last is for durations longer than all bounds.
        sum_s: sum of all durations.
        max_s: longest duration; 0 before the first.
    """

    __slots__ = ("counts", "max_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum_s = 0.0
        self.max_s = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, at most {self.max_s:g} s>"

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """Copy its present state."""
        other = Histogram()
        other.counts, other.sum_s, other.max_s = self.counts.copy(), self.sum_s, self.max_s
        return other

    def add(self, seconds: float) -> None:
        """Add a duration; a negative one counts as 0."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        if seconds > 0:
            self.sum_s += seconds
            if seconds > self.max_s:
                self.max_s = seconds

    def quantile(self, share: float) -> float | None:
        """Estimate the duration that this share of them did not exceed; None before the first.

        Args:
            share: above 0, at most 1.
        """
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                lower = BOUNDS[index - 1] if index else 0.0
                upper = BOUNDS[index] if index < len(BOUNDS) else self.max_s
                upper = min(upper, self.max_s)
                return max(0.0, lower + (upper - lower) * (wanted - seen) / count)
            seen += count
        return None

    def shown(self) -> Iterator[tuple[float, int]]:
        """Yield bounds, and the number of durations up to each, for Prometheus; without infinity,
        which would have all.
        """
        seen, index = 0, 0
        for shown in SHOWN:
            seen += sum(self.counts[index : shown + 1])
            index = shown + 1
            yield BOUNDS[shown], seen


def together(histograms: Iterable[Histogram]) -> Histogram:
    """Combine several histograms into one."""
    whole = Histogram()
    for histogram in histograms:
        whole.counts = _added(whole.counts, histogram.counts)
        whole.sum_s += histogram.sum_s
        whole.max_s = max(whole.max_s, histogram.max_s)
    return whole


def _added(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip(some, others, strict=True)]
