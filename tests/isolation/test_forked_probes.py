"""What code in a fork must not be able to do, tried; each attempt succeeds in a weakened fork."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial

import pytest

from isolation import probes_calls
from isolation.background import Background
from isolation.harness import Probe, Weakness, forking, launcher_for, run_with
from isolation.probes import PROBES, named
from isolation.stage import Stage
from isolation.weaken import NO_FILTER
from nsmd.values import Environment
from realjail import needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]


def weakness_of(probe: Probe) -> Weakness:
    return probe.fork_weakness or probe.weakness


def group_of(probe: Probe) -> tuple[str, int]:
    return probe.place, id(weakness_of(probe))


def grouped(probes: Iterable[Probe]) -> list[Probe]:
    """By group, in an order that is the same in every process: workers compare it."""
    groups: dict[tuple[str, int], list[Probe]] = {}
    for probe in probes:
        groups.setdefault(group_of(probe), []).append(probe)
    return [probe for group in groups.values() for probe in group]


GROUPED = grouped(PROBES)
"""Those that can be forks of the same template, one after the other."""


async def run_forked(
    background: Background,
    probe: Probe,
    stage: Stage,
    environment: Environment,
    weakness: Weakness | None = None,
) -> str:
    """The verdict of a probe in a fork of the template that the last one was a fork of, if it
    may be."""
    key: Hashable = (id(weakness), probe.name if probe.place == "agent" else "", stage)
    cold = launcher_for("forked", probe, stage, weakness)
    launcher = await background.launcher(key, partial(forking, cold))
    return await run_with(launcher, probe, stage, environment)


@pytest.mark.parametrize("probe", GROUPED, ids=named)
def test_held(
    probe: Probe, untouched: Stage, environment: Environment, background: Background
) -> None:
    assert background.run(run_forked, background, probe, untouched, environment) == "HELD"


@pytest.mark.parametrize("probe", GROUPED, ids=named)
def test_detects_success(
    probe: Probe, spoilt: Stage, environment: Environment, background: Background
) -> None:
    weakness = weakness_of(probe)
    verdict = background.run(run_forked, background, probe, spoilt, environment, weakness)
    assert verdict.startswith("BROKEN: ")


OF_OTHERS = [probe for probe in GROUPED if probe not in probes_calls.PROBES]
UNFILTERED = Weakness(template=NO_FILTER)


@pytest.mark.parametrize("probe", OF_OTHERS, ids=named)
def test_held_without_the_filter(
    probe: Probe, untouched: Stage, environment: Environment, background: Background
) -> None:
    verdict = background.run(run_forked, background, probe, untouched, environment, UNFILTERED)
    assert verdict == "HELD"


TWICE = [
    pytest.param(probe, weakness, id=f"{probe.name}-{name}")
    for probe in PROBES
    for name, weakness in probe.fork_held_twice.items()
]


@pytest.mark.parametrize(("probe", "weakness"), TWICE)
def test_one_layer_is_enough(
    probe: Probe,
    weakness: Weakness,
    untouched: Stage,
    environment: Environment,
    background: Background,
) -> None:
    verdict = background.run(run_forked, background, probe, untouched, environment, weakness)
    assert verdict == "HELD"
