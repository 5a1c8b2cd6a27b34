"""Processor time and page faults of a one-shot run, against a cold start.

The kernel counts (perf_event_open(2)) for everything that the benchmarks have started, until the
pool has refilled. Sums of `/proc/PID/stat` or getrusage(2) would be wrong: nobody waits for the
processes that the kernel kills at the end of a PID namespace. "Whole machine" is `/proc/stat` and
`/proc/vmstat`, with whatever else runs; on an idle machine both are close.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import nsm
from bench import Bench, connect, settle, supervisor, supervisor_pid
from load import Load, clients, load
from machine import (
    Counters,
    CountersMissingError,
    Usage,
    cores,
    threads_cpu_s,
    usage_of_machine,
)
from measure import Comparison, Findings, LeftOut, Target, against_budget, alternate_all
from parts.fresh import COLD_NAME

RUN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Bounds of the rows of one kind of call.

    Attributes:
        thread_ms: time of nsm's busiest thread: with 0.5, one thread makes 2,000 a second.
    """

    cpu: Target
    faults: float
    thread_ms: float


BUDGETS = Budgets(cpu=Target(bound="≤", value=0.45), faults=900, thread_ms=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Usage of one call, the mean of many.

    Attributes:
        processes: of all processes that the benchmarks have started, clients and ended ones
            included; None if the kernel does not count that for us.
        machine: of everything that runs here.
        thread_ms: processor time of the thread of nsm that used most.
        rate: calls a second.
    """

    processes: Usage | None
    machine: Usage
    thread_ms: float
    rate: float


def measure(bench: Bench) -> Findings:
    """Measure the costs with one client, and with twice as many as there are cores."""
    python = bench.python
    with ExitStack() as stack:
        counters = None
        try:
            counters = stack.enter_context(Counters())
        except CountersMissingError as error:
            yield LeftOut(what="usage of the processes of a one-shot run", why=str(error))
        variables = stack.enter_context(supervisor())
        client = stack.enter_context(connect(variables))
        for number in (1, 2 * cores()):
            with (
                load("fresh", [variables["NSM_SOCKET"]] * number) as ours,
                load("cold", [python] * number) as theirs,
            ):
                sides = [partial(cost, client, counters, side) for side in (ours, theirs)]
                taken = alternate_all(sides, rounds=bench.some_rounds(0.2))
            yield from rows(f"one-shot run, {clients(number)}", *taken, budgets=BUDGETS)


def cost(client: nsm.Client, counters: Counters | None, load: Load, told: float = RUN_S) -> Cost:
    """Let clients work, and measure what that takes until the pool is full again.

    Args:
        told: number that clients are told: for how many seconds, or as they take it.
    """
    pid = supervisor_pid(client)
    settle(client)
    processes = counters.usage() if counters else None
    machine, threads = usage_of_machine(), threads_cpu_s([pid])
    run = load.run(told)
    calls = len(run.samples)
    settle(client)
    later = threads_cpu_s([pid])
    thread_s = max(later[thread] - threads.get(thread, 0.0) for thread in later)
    return Cost(
        processes=(counters.usage() - processes) / calls if counters and processes else None,
        machine=(usage_of_machine() - machine) / calls,
        thread_ms=thread_s * 1000 / calls,
        rate=run.rate,
    )


def rows(name: str, ours: Sequence[Cost], theirs: Sequence[Cost], *, budgets: Budgets) -> Findings:
    """Make rows for processes and the machine. Without the former, the latter have the targets."""
    processes = [
        (mine.processes, other.processes)
        for mine, other in zip(ours, theirs, strict=True)
        if mine.processes and other.processes
    ]
    machine = [(mine.machine, other.machine) for mine, other in zip(ours, theirs, strict=True)]
    for whose, pairs, judged in (
        ("all processes", processes, True),
        ("whole machine", machine, not processes),
    ):
        if not pairs:
            continue
        yield Comparison(
            name=f"{name}: processor time, {whose}",
            peer=COLD_NAME,
            pairs=tuple((mine.cpu_s * 1000, other.cpu_s * 1000) for mine, other in pairs),
            unit="ms",
            target=budgets.cpu if judged else None,
        )
        faults = Comparison(
            name=f"{name}: page faults, {whose}",
            peer=COLD_NAME,
            pairs=tuple((mine.faults, other.faults) for mine, other in pairs),
            unit="faults",
        )
        yield faults
        if judged:
            values = [mine for mine, _ in faults.pairs]
            yield against_budget(faults.name, values, budgets.faults, "faults")
    yield against_budget(
        f"{name}: processor time, nsm's busiest thread",
        [each.thread_ms for each in ours],
        budgets.thread_ms,
        "ms",
    )
