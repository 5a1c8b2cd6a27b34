"""Whole processes against a Python that does nothing.

The cold start ends with the answer to `ping`. `nsm ps` runs with three sessions alive.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import nsm
import private_supervisor
from bench import BIN, PASS_NAME, Bench, run_once, run_pass
from machine import cpu_s, usage_of
from measure import Comparison, Findings, Target, alternate_all, timed

PS_NAME = "nsm ps, the whole process"
BARE = (sys.executable, "-c", "import socket, cbor2")
"""The least that a client of the control socket needs."""
BARE_NAME = "python -c 'import socket, cbor2'"


def measure(bench: Bench) -> Findings:
    """`nsm ps`, and the supervisor."""
    yield from process_list(bench)
    yield from supervisor_start(bench)


def ps(environment: Mapping[str, str]) -> float:
    """How long `nsm ps` takes, milliseconds."""
    return timed(
        lambda: subprocess.run(
            [str(BIN / "nsm"), "ps"], env=environment, check=True, stdout=subprocess.DEVNULL
        )
    )


def run_bare() -> float:
    """How long a Python takes that has only what a client needs, milliseconds."""
    return timed(lambda: subprocess.run(BARE, check=True))


def process_list(bench: Bench) -> Findings:
    """`nsm ps` with a few sessions to show."""
    names = ("one", "two", "three")
    with bench.client() as client:
        for name in names:
            run_once(client, session=name)
        environment = bench.environment
        taken = alternate_all([lambda: ps(environment), run_pass, run_bare], rounds=bench.rounds)
        client.kill(names)
    yield Comparison(
        name=PS_NAME,
        peer=PASS_NAME,
        pairs=tuple(zip(taken[0], taken[1], strict=True)),
        unit="ms",
        target=Target(bound="≤", value=4),
    )
    yield Comparison(
        name=BARE_NAME,
        peer=PASS_NAME,
        pairs=tuple(zip(taken[2], taken[1], strict=True)),
        unit="ms",
        floor=True,
    )


def supervisor_start(bench: Bench) -> Findings:
    """Measure the start of a new supervisor, in its own directory, until its socket answers."""

    def start() -> tuple[float, float]:
        with tempfile.TemporaryDirectory(prefix="nsm-bench-") as path:
            variables = private_supervisor.variables_for(Path(path))
            log = Path(path, "log")
            started_s = time.perf_counter()
            with private_supervisor.interrupts_deferred():
                process, reading = private_supervisor.start(variables, log)
            try:
                with open(reading, "rb") as ready:
                    assert ready.readline() == b"\n", private_supervisor.tail(log)
                with nsm.Client(socket_path=variables["NSM_SOCKET"], autostart=False) as client:
                    client.ping()
                return (time.perf_counter() - started_s) * 1000, cpu_s(process.pid) * 1000
            finally:
                private_supervisor.end(process)

    def python() -> tuple[float, float]:
        before = usage_of(getrusage(RUSAGE_CHILDREN))
        took_ms = run_pass()
        return took_ms, (usage_of(getrusage(RUSAGE_CHILDREN)) - before).cpu_s * 1000

    ours, theirs = alternate_all([start, python], rounds=bench.some_rounds(0.5))
    for name, column, target in (
        ("cold start of the supervisor", 0, None),
        ("cold start of the supervisor, its processor time", 1, Target(bound="≤", value=12)),
    ):
        yield Comparison(
            name=name,
            peer=PASS_NAME,
            pairs=tuple((a[column], b[column]) for a, b in zip(ours, theirs, strict=True)),
            unit="ms",
            target=target,
        )
