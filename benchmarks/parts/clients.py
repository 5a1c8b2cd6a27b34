"""How many calls a second 1, 4 and 16 clients get done, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench import Bench, settle
from load import Kind, load
from measure import Comparison, Curve, Findings, LeftOut, Target, alternate_all
from parts.fresh import COLD_NAME
from peers.floors import FloorMissingError, fork_floor
from peers.kernels import NAME as KERNEL_NAME
from peers.kernels import KernelsMissingError

CLIENTS = (1, 4, 16)
WINDOW = 4
"""Clients at once for the row of the table: twice the processors of a small machine."""
SPELL_S = 1.0
"""How long one measurement lasts; a pool is empty within a few hundredths of that."""
LONG_SPELL_S = 2.0
"""The same for the row of the table."""


def measure(bench: Bench) -> Findings:
    """Fresh sessions, then calls in live ones."""
    yield from fresh_sessions(bench)
    yield from live_sessions(bench)


def fresh_sessions(bench: Bench) -> Findings:
    """One-shot runs against cold starts, as many at once."""
    ours: list[float] = []
    theirs: list[float] = []
    with bench.client() as client, fork_floor(bench.python) as floor:
        floors = forks(floor.rate)
        try:
            floor.time("session")
        except FloorMissingError as error:
            yield LeftOut(what="floor of fresh sessions a second", why=str(error))
            floors = []
        for number in CLIENTS:
            in_row = number == WINDOW
            taken = together(
                bench,
                ("fresh", [bench.socket_path] * number),
                ("cold", [bench.python] * number),
                further=floors if in_row else [],
                spell_s=LONG_SPELL_S if in_row else SPELL_S,
                before=lambda: settle(client),
            )
            ours.append(median(taken[0]))
            theirs.append(median(taken[1]))
            if in_row:
                yield from fresh_rows(taken)
    for name, rates in (("one-shot runs", ours), (COLD_NAME, theirs)):
        yield Curve(plot="fresh", name=name, points=multiples(rates, theirs[0]))


def forks(rate: Callable[..., float]) -> list[Callable[[], float]]:
    """The floors of fresh sessions."""
    return [
        lambda: rate("session", window=WINDOW, seconds=SPELL_S),
        lambda: rate("fork", window=WINDOW, seconds=SPELL_S),
    ]


def fresh_rows(taken: list[tuple[float, ...]]) -> Findings:
    """The row of the table, with its floors."""
    yield Comparison(
        name=f"fresh Python sessions a second, sustained, {WINDOW} at once",
        peer=COLD_NAME,
        pairs=tuple(zip(taken[0], taken[1], strict=True)),
        unit="a second",
        target=Target(bound="≥", value=5),
        more=True,
    )
    names = ("forks with a session's namespaces and mounts alone", "forks alone")
    for name, rates in zip(names, taken[2:], strict=False):
        yield Comparison(
            name=name,
            peer=COLD_NAME,
            pairs=tuple(zip(rates, taken[1], strict=True)),
            unit="a second",
            more=True,
            floor=True,
        )


def live_sessions(bench: Bench) -> Findings:
    """Calls in live sessions against calls in live kernels, as many at once."""
    ours: list[float] = []
    theirs: list[float] = []
    try:
        kernels = bench.kernels.at_least(max(CLIENTS))
    except KernelsMissingError as error:
        yield LeftOut(what=f"calls a second against {KERNEL_NAME}", why=str(error))
        return
    for number in CLIENTS:
        taken = together(
            bench,
            ("exec", [bench.socket_path] * number),
            ("kernel", [kernel.connection_file for kernel in kernels[:number]]),
            spell_s=SPELL_S,
        )
        ours.append(median(taken[0]))
        theirs.append(median(taken[1]))
        if number == max(CLIENTS):
            yield Comparison(
                name=f"calls a second in live sessions, {number} clients at once",
                peer=f"as many {KERNEL_NAME} clients",
                pairs=tuple(zip(taken[0], taken[1], strict=True)),
                unit="a second",
                more=True,
            )
    for name, rates in (("calls in live sessions", ours), (f"calls in {KERNEL_NAME}s", theirs)):
        yield Curve(plot="exec", name=name, points=multiples(rates, theirs[0]))


Side = tuple[Kind, list[str]]


def together(
    bench: Bench,
    our_side: Side,
    their_side: Side,
    *,
    further: list[Callable[[], float]] | None = None,
    spell_s: float,
    before: Callable[[], object] = lambda: None,
) -> list[tuple[float, ...]]:
    """Rates of clients that all work at once, ours and theirs in turn.

    Args:
        further: more sides.
        spell_s: how long each works.
        before: waits until nothing is left of what was measured before.
    """
    with load(*our_side) as ours, load(*their_side) as theirs:

        def after(rate: Callable[[], float]) -> Callable[[], float]:
            def once() -> float:
                before()
                return rate()

            return once

        sides = [lambda: ours.rate(spell_s), lambda: theirs.rate(spell_s), *(further or [])]
        return alternate_all([after(side) for side in sides], rounds=bench.some_rounds(0.2))


def multiples(rates: list[float], unit: float) -> tuple[tuple[float, float], ...]:
    """A curve's points."""
    return tuple((number, rate / unit) for number, rate in zip(CLIENTS, rates, strict=True))
