"""What code in a jail must not be able to do, tried; each attempt succeeds in a weakened jail."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from isolation import probes_files, probes_privileges, probes_processes
from isolation.harness import CANARY, CANARY_VARIABLE, Probe, Stage, open_stage, run_probe
from nsmd.values import Environment
from realjail import environments, needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap]

PROBES = (*probes_files.PROBES, *probes_processes.PROBES, *probes_privileges.PROBES)


@pytest.fixture
def stage() -> Generator[Stage, None, None]:
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def known() -> dict[str, Environment]:
    return environments()


@pytest.fixture(autouse=True)
def secret_in_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)


def usable(probe: Probe, known: dict[str, Environment]) -> Environment:
    environment = known[probe.interpreter]
    if environment.problem is not None:
        pytest.skip(f"{probe.interpreter} is missing: {environment.problem}")
    return environment


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
async def test_held(probe: Probe, stage: Stage, known: dict[str, Environment]) -> None:
    assert await run_probe(probe, stage, usable(probe, known)) == "HELD"


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
async def test_detects_success(probe: Probe, stage: Stage, known: dict[str, Environment]) -> None:
    verdict = await run_probe(probe, stage, usable(probe, known), probe.weakness)
    assert verdict.startswith("BROKEN: ")


def test_names_are_unique() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)
