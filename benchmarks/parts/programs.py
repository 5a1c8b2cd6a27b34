"""Programs in fresh interpreters of a session that stands, against cold jails.

One client has as many of them run at once as there are processors; beside it, as many clients start
cold jails. A single program is timed with pauses, from one client to another.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from bench import Bench, connect, settle, supervisor
from load import clients, load
from machine import Counters, CountersMissingError, cores
from measure import Comparison, Findings, LeftOut, Target, Timer, alternate_all, timed, timer
from parts.clients import distribution, in_turn, rate_row
from parts.costs import Budgets, cost, rows
from parts.fresh import CALLS_PER_ROUND, COLD_NAME
from peers.cold import Cold

RATE_TARGET = Target(bound="≥", value=4)
TIME_TARGET = Target(bound="≥", value=7)
"""2 ms where a cold jail takes 14."""

BUDGETS = Budgets(cpu=Target(bound="≤", value=0.25), faults=900, thread_ms=0.35)
NAME = "program in a fresh interpreter"
SESSION = "programs"


def measure(bench: Bench) -> Findings:
    """Measure how many there are a second, what each takes, and how long one takes alone."""
    with ExitStack() as stack:
        counters = None
        try:
            counters = stack.enter_context(Counters())
        except CountersMissingError as error:
            yield LeftOut(what=f"usage of the processes of a {NAME}", why=str(error))
        variables = stack.enter_context(supervisor())
        client = stack.enter_context(connect(variables))
        with (
            load("map", [variables["NSM_SOCKET"]]) as ours,
            load("cold", [bench.python] * cores()) as theirs,
        ):
            taken = in_turn(bench, client, ours, theirs)
            sides = [partial(cost, client, counters, side) for side in (ours, theirs)]
            costs = alternate_all(sides, rounds=bench.some_rounds(0.2))
    row = rate_row(f"{NAME}, a second, {cores()} at once", COLD_NAME, *taken)
    yield replace(row, target=RATE_TARGET)
    yield distribution(f"{NAME}, {clients(1)}", taken[0])
    yield from rows(NAME, *costs, budgets=BUDGETS)
    yield from alone(bench)


def alone(bench: Bench) -> Findings:
    """One program at a time, with pauses."""
    cold = Cold(bench.python)
    with bench.client() as client:

        def program() -> None:
            assert client.run("print(1 + 1)", env="python", session=SESSION, fresh=True).stdout

        def cold_start() -> float:
            settle(client)
            took = timed(cold.once)
            cold.reap()
            return took

        program()
        ours = timer(program, calls=CALLS_PER_ROUND)
        theirs = Timer(once=cold_start, calls=CALLS_PER_ROUND)
        taken = alternate_all([ours, theirs], rounds=bench.rounds)
    yield Comparison(
        name=f"{NAME}, alone",
        peer=COLD_NAME,
        pairs=tuple(zip(*taken, strict=True)),
        unit="ms",
        target=TIME_TARGET,
        more=True,
    )
    yield ours.distribution(f"{NAME}, alone")
