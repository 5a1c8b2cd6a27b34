"""Measurements as values: pairs and their ratios, distributions, curves.

What is compared is measured alternately in one run, so that both sides see the same machine in the
same state. A ratio says something on another machine too; a duration does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Pair = tuple[float, float]
"""One measurement of ours and one of the peer's, in the same unit."""

Unit = Literal["ms", "MB", "s", "a second"]

NEAR = 0.15
"""A ratio this close to its target may miss it in another run, and is called near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Bound of a ratio: a budget that the design has to keep."""

    bound: Literal["≤", "≥"]
    value: float

    def met(self, ratio: float) -> bool:
        """Return whether `ratio` is within the bound."""
        return ratio <= self.value if self.bound == "≤" else ratio >= self.value

    def near(self, ratio: float) -> bool:
        """Return whether `ratio` is within the bound, but only just."""
        return self.met(ratio) and abs(ratio - self.value) <= NEAR * self.value

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of the table.

    Attributes:
        name: what is measured.
        peer: what it is compared with.
        pairs: at least one; (ours, the peer's).
        unit: of the pairs, for people.
        target: None where the ratio is only reported.
        more: the ratio is how many times better ours is. For a time or a size that is the peer's
            by ours, for a rate ours by the peer's. Without it, ours by the peer's.
        floor: what the row above cannot be better than, whatever its code does.
    """

    name: str
    peer: str
    pairs: tuple[Pair, ...]
    unit: Unit
    target: Target | None = None
    more: bool = False
    floor: bool = False

    @property
    def ratios(self) -> list[float]:
        """One ratio for each pair."""
        inverse = self.more and self.unit != "a second"
        return [peer / ours if inverse else ours / peer for ours, peer in self.pairs]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(self.ratios)

    @property
    def verdict(self) -> str:
        """Words that say whether the target is met."""
        if self.floor:
            return "floor"
        if self.target is None:
            return "reported"
        if not self.target.met(self.ratio):
            return "MISSED"
        return "met, near" if self.target.near(self.ratio) else "met"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How long each of many calls took, for the plot of latencies.

    Attributes:
        name: the call.
        samples: milliseconds, in the order in which they were taken.
        reference: the plot shows all others as multiples of this one's median.
    """

    name: str
    samples: tuple[float, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cost against scale.

    Attributes:
        plot: which plot it belongs to (`plots.PLOTS`).
        name: of the line.
        points: (how many, cost), by how many; the cost is a multiple of something in that plot.
    """

    plot: str
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that could not be measured here.

    Attributes:
        what: as in a table.
        why: and what to do about it.
    """

    what: str
    why: str

    def __str__(self) -> str:
        return f"left out: {self.what}: {self.why}"


Finding = Comparison | Distribution | Curve | LeftOut
Findings = Iterator[Finding]


def alternate(
    ours: Callable[[], float], peer: Callable[[], float], *, rounds: int
) -> tuple[Pair, ...]:
    """Measure both sides in turn, each round beginning with the other one.

    A first round is thrown away: it fills caches.
    """
    both = alternate_all([ours, peer], rounds=rounds)
    return tuple(zip(*both, strict=True))


def alternate_all(sides: Sequence[Callable[[], float]], *, rounds: int) -> list[tuple[float, ...]]:
    """Measure any number of sides in turn, forwards and backwards.

    A first round is thrown away: it fills caches.

    Returns:
        For each side, one measurement a round.
    """
    taken: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        order = range(len(sides))
        for index in reversed(order) if number % 2 else order:
            taken[index].append(sides[index]())
    return [tuple(values[1:]) for values in taken]


def timed(action: Callable[[], object]) -> float:
    """How long `action` takes, milliseconds."""
    started_s = time.perf_counter()
    action()
    return (time.perf_counter() - started_s) * 1000


@dataclass(slots=True, kw_only=True)
class Timer:
    """Times something again and again, and keeps every time for a distribution.

    Attributes:
        once: takes one time, milliseconds.
        calls: how many make one measurement, which is their median.
        samples: every time so far.
    """

    once: Callable[[], float]
    calls: int
    samples: list[float] = field(default_factory=list[float])

    def __call__(self) -> float:
        """One measurement."""
        taken = [self.once() for _ in range(self.calls)]
        self.samples += taken
        return median(taken)

    def distribution(self, name: str, *, reference: bool = False) -> Distribution:
        """All that was timed."""
        return Distribution(name=name, samples=tuple(self.samples), reference=reference)


def timer(action: Callable[[], object], *, calls: int) -> Timer:
    """A `Timer` of an action."""
    return Timer(once=lambda: timed(action), calls=calls)
