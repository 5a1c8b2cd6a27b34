"""Sandboxes as people compare them: creation with a first command, and trajectories.

A trajectory is what a reinforcement learner does with a sandbox: it makes one, runs a number of
actions in it, one after the other, and ends it. Many run at once.

    python benchmarks/trajectories.py                              # nsm
    python benchmarks/trajectories.py --with e2b --with docker     # others, in turn
    python benchmarks/trajectories.py --trajectories 1000 --at-once 16
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from machine import cores, machine
from measure import percentile
from providers import (
    IMAGE,
    DockerProvider,
    E2bProvider,
    NsmProvider,
    Provider,
    ProviderMissingError,
)
from report import PERCENTILES, aligned, number

ACTIONS = 50
TRAJECTORIES = 1000
CREATIONS = 100
"""Number of sandboxes that ComputeSDK makes (github.com/computesdk/benchmarks, METHODOLOGY.md)."""

STATE = "/tmp/steps"
"""File in which a sandbox without variables keeps its state."""


@dataclass(slots=True, kw_only=True)
class Trajectories:
    """Times of many trajectories.

    Attributes:
        creations_ms: from the creation of a sandbox to the end of its first action.
        actions_ms: of each further action.
        failures: what went wrong, a text for each trajectory that did not come to its end.
        lasted_s: of all together.
    """

    creations_ms: list[float] = field(default_factory=list[float])
    actions_ms: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    lasted_s: float = 0.0

    def add(self, other: Trajectories) -> None:
        """Add the times of others."""
        self.creations_ms += other.creations_ms
        self.actions_ms += other.actions_ms
        self.failures += other.failures


def action(step: int, *, keeps_variables: bool) -> str:
    """Code that goes on from the action before, and prints how many there were."""
    if keeps_variables:
        return "steps = [0]; print(1)" if step == 1 else f"steps.append({step}); print(len(steps))"
    return f"open({STATE!r}, 'a').write('x'); print(len(open({STATE!r}).read()))  # action {step}"


def one_trajectory(provider: Provider, actions: int) -> Trajectories:
    """Make a sandbox, run the actions, and end it."""
    taken = Trajectories()
    try:
        began_s = time.perf_counter()
        sandbox = provider.create()
        try:
            for step in range(1, actions + 1):
                printed = sandbox.run(action(step, keeps_variables=provider.keeps_variables))
                took_ms = (time.perf_counter() - began_s) * 1000
                assert printed.strip() == str(step), f"action {step} printed {printed!r}"
                (taken.actions_ms if step > 1 else taken.creations_ms).append(took_ms)
                began_s = time.perf_counter()
        finally:
            sandbox.end()
    except Exception as error:  # noqa: BLE001 - a failure is a result
        taken.failures.append(f"{type(error).__name__}: {error}")
    return taken


def run(provider: Provider, *, trajectories: int, actions: int, at_once: int) -> Trajectories:
    """Run many trajectories, so many at once."""
    together = Trajectories()
    began_s = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        begun = [threads.submit(one_trajectory, provider, actions) for _ in range(trajectories)]
        for each in begun:
            together.add(each.result())
    together.lasted_s = time.perf_counter() - began_s
    return together


def rows(name: str, created: Trajectories, worked: Trajectories) -> list[list[str]]:
    """Lines of the table for one provider."""
    times = {
        "create + first command, one after another": created.creations_ms,
        "create + first action, many at once": worked.creations_ms,
        "each further action": worked.actions_ms,
    }
    lines: list[list[str]] = []
    for what, samples in times.items():
        found = [number(percentile(samples, each)) if samples else "" for each in PERCENTILES]
        lines.append([name, f"{what}, ms", f"{len(samples):,}", *found])
    ended = len(worked.creations_ms) / worked.lasted_s / cores()
    failed = len(created.failures) + len(worked.failures)
    lines.append([name, "sandboxes a second per core", number(ended), "", "", ""])
    lines.append([name, "failures", str(failed), "", "", ""])
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen providers; 1 if one was missing or something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--with", dest="names", action="append", choices=("nsm", "e2b", "docker"), metavar="NAME"
    )
    parser.add_argument("--image", default=IMAGE, help="image for Docker (%(default)s)")
    parser.add_argument("--creations", type=int, default=CREATIONS, metavar="N")
    parser.add_argument("--trajectories", type=int, default=TRAJECTORIES, metavar="N")
    parser.add_argument("--actions", type=int, default=ACTIONS, metavar="N")
    parser.add_argument("--at-once", type=int, default=16, metavar="N")
    options = parser.parse_args(argv)
    makers: Mapping[str, Callable[[], Provider]] = {
        "nsm": NsmProvider,
        "e2b": E2bProvider,
        "docker": lambda: DockerProvider(options.image),
    }
    table = [["sandboxes of", "what", "count", *(f"p{each}" for each in PERCENTILES)]]
    missing: list[str] = []
    failures: list[str] = []
    for name in options.names or ["nsm"]:
        try:
            provider = makers[name]()
        except ProviderMissingError as error:
            missing.append(f"{name}: {error}")
            continue
        created = run(provider, trajectories=options.creations, actions=1, at_once=1)
        worked = run(
            provider,
            trajectories=options.trajectories,
            actions=options.actions,
            at_once=options.at_once,
        )
        table += rows(name, created, worked)
        failures += [f"{name}: {each}" for each in created.failures + worked.failures]
    print(f"{machine()}\n{aligned(table)}")
    for line in [*missing, *sorted(set(failures))]:
        print(f"trajectories: {line}", file=sys.stderr)
    return 1 if missing or failures else 0


if __name__ == "__main__":
    sys.exit(main())
