"""What code in a session must not be able to do, tried; each attempt succeeds in a weakened one."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from functools import partial

import pytest

from isolation import probes_calls, probes_files, probes_privileges, probes_processes
from isolation.background import Background
from isolation.harness import (
    Kind,
    Probe,
    Weakness,
    forking,
    launcher_for,
    run_probe,
    run_with,
)
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from nsmd.values import Environment
from realjail import environments, needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap]

PROBES = (
    *probes_files.PROBES,
    *probes_processes.PROBES,
    *probes_privileges.PROBES,
    *probes_calls.PROBES,
)


def place(probe: Probe) -> str:
    return probe.place


BY_PLACE = sorted(PROBES, key=place)
"""Each in the place of an agent takes a template of its own; the others share one."""


def named(probe: Probe) -> str:
    return probe.name


def fork_weakness(probe: Probe) -> Weakness:
    return probe.fork_weakness or probe.weakness


@pytest.fixture
def stage() -> Generator[Stage, None, None]:
    """Of one test: what succeeds in a weakened jail changes it."""
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage, None, None]:
    """Of all tests in which nothing can be changed."""
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def known() -> dict[str, Environment]:
    return environments()


@pytest.fixture(scope="module")
def background() -> Generator[Background, None, None]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def secret_in_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)


@pytest.fixture
def environment(probe: Probe, untouched: Stage, known: dict[str, Environment]) -> Environment:
    """What a probe runs in."""
    if not getattr(untouched, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    found = known[probe.interpreter]
    if found.problem is not None:
        pytest.skip(f"{probe.interpreter} is missing: {found.problem}")
    return found


async def in_a_fork(
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


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_held(probe: Probe, untouched: Stage, environment: Environment) -> None:
    assert await run_probe("cold", probe, untouched, environment) == "HELD"


@pytest.mark.parametrize("probe", BY_PLACE, ids=named)
def test_held_in_a_fork(
    probe: Probe, untouched: Stage, environment: Environment, background: Background
) -> None:
    assert background.run(in_a_fork, background, probe, untouched, environment) == "HELD"


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_detects_success(probe: Probe, stage: Stage, environment: Environment) -> None:
    verdict = await run_probe("cold", probe, stage, environment, probe.weakness)
    assert verdict.startswith("BROKEN: ")


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_detects_success_in_a_fork(
    probe: Probe, stage: Stage, environment: Environment
) -> None:
    verdict = await run_probe("forked", probe, stage, environment, fork_weakness(probe))
    assert verdict.startswith("BROKEN: ")


TWICE = [
    pytest.param(probe, weakness, id=f"{probe.name}-{name}")
    for probe in PROBES
    for name, weakness in probe.held_twice.items()
]


@pytest.mark.parametrize(("probe", "weakness"), TWICE)
async def test_one_layer_is_enough(
    probe: Probe, weakness: Weakness, stage: Stage, environment: Environment
) -> None:
    kind: Kind = "forked" if weakness.template else "cold"
    assert await run_probe(kind, probe, stage, environment, weakness) == "HELD"


def test_names_are_unique() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)
