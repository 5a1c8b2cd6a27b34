"""Measurements as values: pairs and their ratios, distributions, curves.

What is compared is measured alternately in one run, so that both sides see the same machine in the
same state. A ratio says something on another machine too; a duration does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar

Measured = TypeVar("Measured")

Pair = tuple[float, float]
"""One measurement of ours and one of the peer's, in the same unit."""

Unit = Literal["ms", "MB", "s", "a second", "faults"]

BUDGET = "its budget"
"""Name in place of a peer, in rows that compare a value with a limit of the design."""

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
    def medians(self) -> Pair:
        """The median of ours, and of the peer's."""
        ours, peers = zip(*self.pairs, strict=True)
        return median(ours), median(peers)

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
    """Durations of many calls.

    Attributes:
        name: the call.
        samples: milliseconds, in the order in which they were taken.
        plotted: the plot of latencies has it; all are in the table of percentiles.
    """

    name: str
    samples: tuple[float, ...]
    plotted: bool = True

    def percentile(self, percent: float) -> float:
        """The smallest sample that so many percent of all do not exceed, milliseconds."""
        return percentile(self.samples, percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cost against scale.

    Attributes:
        plot: which plot it belongs to (`plots.PLOTS`).
        name: of the line.
        points: (how many, cost), by how many; the plot says in which unit.
    """

    plot: str
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine and programs that durations and sizes hold for.

    Attributes:
        cores: number of cores that we may use.
        memory_gb: size of the memory, in units of 1,000,000,000 bytes.
        processor, kernel, python: models and versions.
        user: "root" or "an ordinary user", whose jails differ.
    """

    cores: int
    memory_gb: float
    processor: str
    kernel: str
    python: str
    user: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores of {self.processor}, {self.memory_gb:.0f} GB of memory, "
            f"Linux {self.kernel}, Python {self.python}, {self.user}"
        )


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


Finding = Comparison | Distribution | Curve | LeftOut | Machine
Findings = Iterator[Finding]


def alternate(
    ours: Callable[[], float], peer: Callable[[], float], *, rounds: int
) -> tuple[Pair, ...]:
    """Measure both sides in turn, each round beginning with the other one.

    A first round is thrown away: it fills caches.
    """
    both = alternate_all([ours, peer], rounds=rounds)
    return tuple(zip(*both, strict=True))


def alternate_all(
    sides: Sequence[Callable[[], Measured]], *, rounds: int, warm_up: bool = True
) -> list[tuple[Measured, ...]]:
    """Measure any number of sides in turn, forwards and backwards.

    Args:
        warm_up: begin with a round that is thrown away: it fills caches.

    Returns:
        For each side, one measurement a round.
    """
    taken: list[list[Measured]] = [[] for _ in sides]
    for number in range(rounds + warm_up):
        order = range(len(sides))
        for index in reversed(order) if number % 2 else order:
            taken[index].append(sides[index]())
    return [tuple(values[warm_up:]) for values in taken]


def against_budget(
    name: str, values: Iterable[float], budget: float, unit: Unit, *, least: bool = False
) -> Comparison:
    """Make a row that compares values with a limit.

    Args:
        least: the budget is a lower limit.
    """
    return Comparison(
        name=name,
        peer=BUDGET,
        pairs=tuple((value, budget) for value in values),
        unit=unit,
        target=Target(bound="≥" if least else "≤", value=1),
        more=least,
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that so many percent of all do not exceed."""
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


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

    def distribution(self, name: str) -> Distribution:
        """All that was timed."""
        return Distribution(name=name, samples=tuple(self.samples))


def timer(action: Callable[[], object], *, calls: int) -> Timer:
    """A `Timer` of an action."""
    return Timer(once=lambda: timed(action), calls=calls)
