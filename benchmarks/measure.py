"""Pairs of measurements and their ratios.

What is compared is measured alternately in one run, so that both sides see the same machine in the
same state. A ratio says something on another machine too; a duration does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

Pair = tuple[float, float]
"""One measurement of ours and one of the peer's, in the same unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the ratio has to be, a budget that the design has to keep."""

    bound: Literal["≤", "≥"]
    value: float

    def met(self, ratio: float) -> bool:
        """Whether `ratio` is within the bound."""
        return ratio <= self.value if self.bound == "≤" else ratio >= self.value

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
        faster: the ratio is how many times faster ours is, instead of ours by the peer's.
    """

    name: str
    peer: str
    pairs: tuple[Pair, ...]
    unit: Literal["ms", "MB"]
    target: Target | None = None
    faster: bool = False

    @property
    def ratios(self) -> list[float]:
        """One ratio for each pair."""
        return [peer / ours if self.faster else ours / peer for ours, peer in self.pairs]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(self.ratios)

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.target is None:
            return "reported"
        return "met" if self.target.met(self.ratio) else "MISSED"


def alternate(
    ours: Callable[[], float], peer: Callable[[], float], *, rounds: int
) -> tuple[Pair, ...]:
    """Measure both sides in turn, each round beginning with the other one.

    A first round is thrown away: it fills caches.
    """
    pairs: list[Pair] = []
    for number in range(rounds + 1):
        if number % 2:
            second = peer()
            first = ours()
        else:
            first = ours()
            second = peer()
        pairs.append((first, second))
    return tuple(pairs[1:])


def timed(action: Callable[[], object]) -> float:
    """How long `action` takes, milliseconds."""
    started_s = time.perf_counter()
    action()
    return (time.perf_counter() - started_s) * 1000


def pss_mb(pid: int) -> float:
    """A process's proportional share of memory, MB (proc_pid_smaps_rollup(5))."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("smaps_rollup has no Pss line")
