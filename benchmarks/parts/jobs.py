"""Short programs in a live session, beside the same on the host."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import nsm
from bench import Bench
from measure import Comparison, Findings, Target, alternate_all, timer

CALLS_PER_ROUND = 20
CLIENTS = 16
SESSION = "jobs"
PROGRAM = ["/bin/true"]
NAME = "exec of /bin/true in a live session, request to exit code"
PEER = "subprocess.run(['/bin/true'])"


def measure(bench: Bench) -> Findings:
    """One after the other, and by 16 clients at once on sessions of their own."""
    with bench.client() as client:
        client.run(":", env="bash", session=SESSION)
        ours = timer(lambda: run_true(client, SESSION), calls=CALLS_PER_ROUND)
        theirs = timer(lambda: subprocess.run(PROGRAM, check=True), calls=CALLS_PER_ROUND)
        taken = alternate_all([ours, theirs], rounds=bench.rounds)
        yield Comparison(
            name=NAME,
            peer=PEER,
            pairs=tuple(zip(taken[0], taken[1], strict=True)),
            unit="ms",
            target=Target(bound="≤", value=1.5),
        )
        yield ours.distribution("exec of /bin/true")
        yield theirs.distribution(PEER)
        names = [f"{SESSION}-{number}" for number in range(CLIENTS)]
        for name in names:
            client.run(":", env="bash", session=name)
        yield Comparison(
            name=f"exec of /bin/true by {CLIENTS} clients at once, on sessions of their own",
            peer="one client",
            pairs=tuple(
                (rate(bench, names), rate(bench, names[:1])) for _ in range(bench.some_rounds(0.25))
            ),
            unit="a second",
            more=True,
        )
        client.kill([SESSION, *names])


def run_true(client: nsm.Client, session: str) -> None:
    """Start the program, and wait for its end."""
    job = client.exec(session, PROGRAM, wait_s=1)
    assert job.wait().exit_code == 0, job.info


def rate(bench: Bench, sessions: list[str]) -> float:
    """Programs a second, by one client for each session."""

    def run(session: str) -> None:
        with bench.client() as client:
            for _ in range(CALLS_PER_ROUND):
                run_true(client, session)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(len(sessions)) as threads:
        list(threads.map(run, sessions))
    return len(sessions) * CALLS_PER_ROUND / (time.perf_counter() - began_s)
