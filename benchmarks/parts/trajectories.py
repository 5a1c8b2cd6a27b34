"""Trajectories of a reinforcement learner: fifty actions in each of many sandboxes."""

from __future__ import annotations

import trajectories
from bench import Bench
from machine import cores
from measure import Distribution, Findings
from providers import NsmProvider


def measure(bench: Bench) -> Findings:
    """Measure as many trajectories as there are rounds, two at once for each core."""
    provider = NsmProvider(bench.socket_path)
    taken = trajectories.run(
        provider, trajectories=bench.rounds, actions=trajectories.ACTIONS, at_once=2 * cores()
    )
    assert not taken.failures, taken.failures[0]
    name = f"{trajectories.ACTIONS} actions in a sandbox, {2 * cores()} at once"
    for what, samples in (
        ("creation and first action", taken.creations_ms),
        ("each further action", taken.actions_ms),
    ):
        yield Distribution(name=f"{name}: {what}", samples=tuple(samples), plotted=False)
