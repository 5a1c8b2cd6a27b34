"""A thousand small programs with a test each, as graders run them; all verdicts have to be right.

`small_programs.py` makes them. They go through `client.map`, one-shots, the adapters of frameworks
that grade, and cold jails of bubblewrap, in turns; as many at once as there are processors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import load
from bench import Bench, connect, supervisor
from image_world import Layout, programs_layer, python_layer
from integrations import Framework, UnavailableError
from machine import Counters, CountersMissingError, cores
from measure import Comparison, Curve, Findings, LeftOut, against_budget, alternate_all
from parts.clients import client_numbers
from parts.costs import Cost, cost
from parts.programs import BUDGETS

NUMBER, NUMBER_IN_IMAGE = 1000, 50
"""Programs; for verifiers fewer, since an image's Python starts anew for each."""

PROGRAM = Path(load.PROGRAM).with_name("evals_client.py")
OURS = ("map", "one-shot", "cold")
FRAMEWORKS = ("inspect-ai", "nemo-gym", "smolagents", "verifiers")
COLD_NAME = "cold bwrap + python for each"


def measure(bench: Bench) -> Findings:
    """Measure each way three times."""
    with ExitStack() as stack:
        counters = None
        try:
            counters = stack.enter_context(Counters())
        except CountersMissingError as error:
            yield LeftOut(what="usage of the processes of small programs", why=str(error))
        pythons: dict[str, str] = dict.fromkeys(OURS, sys.executable)
        for name in FRAMEWORKS:
            try:
                pythons[name] = str(Framework(name).prepare())
            except UnavailableError as error:
                yield LeftOut(what=f"small programs through {name}", why=str(error))
        variables = stack.enter_context(supervisor())
        client = stack.enter_context(connect(variables))
        layout = Layout(Path(variables["XDG_STATE_HOME"]).parent / "images")
        layout.add([programs_layer("sh"), python_layer()], Env=["PATH=/bin:/opt/python/bin"])
        places = {"cold": bench.python, "verifiers": f"oci:{layout.place}"}
        sides: dict[str, partial[Cost]] = {}
        for way, python in pythons.items():
            place = places.get(way, variables["NSM_SOCKET"])
            number = str(NUMBER_IN_IMAGE if way == "verifiers" else NUMBER)
            command = [python, str(PROGRAM), way, place, number]
            clients = stack.enter_context(load.started([command], {**os.environ, **variables}))
            sides[way] = partial(cost, client, counters, clients)
        turns = [partial(side, cores()) for side in sides.values()]
        taken = dict(zip(sides, alternate_all(turns, rounds=3, warm_up=False), strict=True))
        for way in [way for way in sides if way != "cold"]:
            yield from rows(f"small programs through {way}", taken[way], taken["cold"])
        for way in ("map", "cold"):
            points = {n: sides[way](n).rate for n in client_numbers(cores()) if n != cores()}
            points[cores()] = median(each.rate for each in taken[way])
            yield Curve(plot="evals", name=way, points=tuple(sorted(points.items())))


def rows(name: str, ours: Sequence[Cost], theirs: Sequence[Cost]) -> Findings:
    """Rows of one way."""
    pairs = list(zip(ours, theirs, strict=True))
    rates = tuple((mine.rate, other.rate) for mine, other in pairs)
    usages = [
        (mine.processes or mine.machine, other.processes or other.machine) for mine, other in pairs
    ]
    cpu = tuple((mine.cpu_s * 1000, other.cpu_s * 1000) for mine, other in usages)
    faults = tuple((mine.faults, other.faults) for mine, other in usages)
    yield Comparison(
        name=f"{name}, {cores()} at once", peer=COLD_NAME, pairs=rates, unit="a second", more=True
    )
    yield Comparison(name=f"{name}: processor time", peer=COLD_NAME, pairs=cpu, unit="ms")
    yield Comparison(name=f"{name}: page faults", peer=COLD_NAME, pairs=faults, unit="faults")
    threads = [each.thread_ms for each in ours]
    row = against_budget(f"{name}: nsm's busiest thread", threads, BUDGETS.thread_ms, "ms")
    yield replace(row, target=None)
