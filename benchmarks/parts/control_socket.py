"""One statement in a live session against the same in a live Jupyter kernel."""

from __future__ import annotations

from bench import Bench, run_once
from measure import Comparison, Findings, LeftOut, Target, alternate_all, timer
from peers.floors import chain
from peers.kernels import KernelsMissingError

CALLS_PER_ROUND = 20  # of calls that take about a millisecond
PROCESSES = 4  # client, supervisor, agent, interpreter
NAME = "exec in a live session, control socket"
PEER = "ipykernel round trip"


def measure(bench: Bench) -> Findings:
    """By the blocking client, and by jupyter_client's."""
    try:
        (kernel,) = bench.kernels.at_least(1)
    except KernelsMissingError as error:
        yield LeftOut(what=f"{NAME} against {PEER}", why=str(error))
        return
    with bench.client() as client, chain(bench.python, processes=PROCESSES) as hops:
        ours = timer(lambda: run_once(client, session="bench"), calls=CALLS_PER_ROUND)
        theirs = timer(kernel.execute, calls=CALLS_PER_ROUND)
        floor = timer(hops, calls=CALLS_PER_ROUND)
        taken = alternate_all([ours, theirs, floor], rounds=bench.rounds)
        client.kill(["bench"])
    yield Comparison(
        name=NAME,
        peer=PEER,
        pairs=tuple(zip(taken[0], taken[1], strict=True)),
        unit="ms",
        target=Target(bound="≥", value=10),
        more=True,
    )
    yield Comparison(
        name="one message through four Python processes and back",
        peer=PEER,
        pairs=tuple(zip(taken[2], taken[1], strict=True)),
        unit="ms",
        more=True,
        floor=True,
    )
    yield ours.distribution("exec, control socket")
    yield theirs.distribution(PEER)
