"""Memory of one more Python session, against one more Jupyter kernel.

PSS of all processes of a session, a cold jail's bwrap included: the mean over 40 sessions that have
run one statement, five times. The template is not counted. "Whole system" is by how much the
kernel's MemAvailable became less for each, which includes the kernel's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

import nsm
from bench import Bench, connect, run_once, settle, supervisor
from machine import GONE, available_mb, parent_of, pss_mb, pss_of_trees_mb
from measure import Comparison, Curve, Findings, LeftOut, Pair, against_budget
from peers.floors import FloorMissingError, fork_floor
from peers.kernels import NAME as KERNEL_NAME
from peers.kernels import Kernels, KernelsMissingError

BATCHES = 5
SESSIONS_PER_BATCH = 40
KERNELS_PER_BATCH = 3
CODE = "kept = 1"
BUDGET_MB = 3.5
PSS_NAME = "one more Python session after one execution, memory (PSS)"
AVAILABLE_NAME = "one more Python session after one execution, memory (whole system)"


def measure(bench: Bench) -> Findings:
    """In batches, one of ours, then one of theirs."""
    try:
        kernels = bench.kernels
    except KernelsMissingError as error:
        yield LeftOut(what=f"memory against {KERNEL_NAME}", why=str(error))
        return
    kernels.at_least(1)  # what only the first one takes is not counted
    with supervisor() as variables, connect(variables) as client:
        run_once(client, CODE, session="first")
        settle(client)
        pss, available, counted = batches(client, kernels)
    may_look = bool(pss)
    if may_look:
        yield Comparison(
            name=PSS_NAME,
            peer=KERNEL_NAME,
            pairs=pss,
            unit="MB",
        )
        yield from floor(bench, kernels)
        yield against_budget(PSS_NAME, [ours_mb for ours_mb, _ in pss], BUDGET_MB, "MB")
        yield Curve(plot="memory", name=KERNEL_NAME, points=counted)
    else:
        yield LeftOut(what=PSS_NAME, why="we may not look into the agents of jails")
    yield Comparison(
        name=AVAILABLE_NAME,
        peer=KERNEL_NAME,
        pairs=available,
        unit="MB",
    )


def batches(
    client: nsm.Client, kernels: Kernels
) -> tuple[tuple[Pair, ...], tuple[Pair, ...], tuple[Pair, ...]]:
    """Measure the memory of one session and of one kernel, for each batch.

    Returns:
        Pairs by PSS (none where we may not look), pairs by what became unavailable to the whole
        system, and the curve of all kernels together, in kernels.
    """
    pss: list[Pair] = []
    available: list[Pair] = []
    totals: list[Pair] = [total(kernels)]
    for batch in range(BATCHES):
        names = [f"batch-{batch}-{number}" for number in range(SESSIONS_PER_BATCH)]
        before_mb = available_mb()
        for name in names:
            run_once(client, CODE, session=name)
        settle(client)
        ours_mb = (before_mb - available_mb()) / len(names)

        before_mb = available_mb()
        started = kernels.start(KERNELS_PER_BATCH)
        theirs_mb = (before_mb - available_mb()) / len(started)
        available.append((ours_mb, theirs_mb))
        with suppress(PermissionError):
            pss.append(
                (
                    sessions_mb(client, names) / len(names),
                    mean(pss_mb(kernel.pid) for kernel in started),
                )
            )
        totals.append(total(kernels))
    unit_mb = kernel_mb(kernels)
    return tuple(pss), tuple(available), tuple((number, mb / unit_mb) for number, mb in totals)


def total(kernels: Kernels) -> Pair:
    """How many kernels there are, and what they take together (PSS)."""
    return len(kernels.all), sum(pss_mb(kernel.pid) for kernel in kernels.all)


def kernel_mb(kernels: Kernels) -> float:
    """Measure the memory of one of the running kernels."""
    return mean(pss_mb(kernel.pid) for kernel in kernels.all)


def sessions_mb(client: nsm.Client, names: Sequence[str] | None = None) -> float:
    """The memory (PSS) of live sessions together, of all their processes.

    Args:
        names: of the sessions; None for all.

    Raises:
        PermissionError: we are not the owner of the jails' user namespace, nor root.
    """
    wanted = None if names is None else set(names)
    pids = [row.pid for row in client.sessions() if wanted is None or row.name in wanted]
    return pss_of_trees_mb({starter(pid) or pid for pid in pids})


def starter(pid: int) -> int | None:
    """The bwrap that has started a jail and waits for its end: a cold jail has one of its own."""
    parent = parent_of(pid)
    with suppress(*GONE):
        if parent and Path(f"/proc/{parent}/comm").read_text(encoding="utf-8").strip() == "bwrap":
            return parent
    return None


def floor(bench: Bench, kernels: Kernels) -> Findings:
    """Two forked Pythons that have run one statement each: agent and interpreter cannot be less."""
    number = BATCHES * SESSIONS_PER_BATCH
    name = "two forked Pythons that have run one statement"
    unit_mb = kernel_mb(kernels)
    with fork_floor(bench.python) as forks:
        try:
            before_mb = pss_of_trees_mb([forks.pid])
            forks.hold(number)
            taken_mb = (pss_of_trees_mb([forks.pid]) - before_mb) / number
        except (FloorMissingError, PermissionError) as error:
            yield LeftOut(what=name, why=str(error))
            return
    yield Comparison(
        name=name, peer=KERNEL_NAME, pairs=((taken_mb, unit_mb),), unit="MB", floor=True
    )
