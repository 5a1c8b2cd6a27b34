"""What code in a session must not be able to do, tried; each attempt succeeds in a weakened jail.

Sessions in jails of their own; forks are in `test_forked_probes.py`.
"""

from __future__ import annotations

import pytest

from isolation.harness import Probe, Weakness, run_cold
from isolation.probes import PROBES, named
from isolation.stage import Stage
from nsmd.values import Environment
from realjail import needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_held(probe: Probe, untouched: Stage, environment: Environment) -> None:
    assert await run_cold(probe, untouched, environment) == "HELD"


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_detects_success(probe: Probe, spoilt: Stage, environment: Environment) -> None:
    verdict = await run_cold(probe, spoilt, environment, probe.weakness)
    assert verdict.startswith("BROKEN: ")


TWICE = [
    pytest.param(probe, weakness, id=f"{probe.name}-{name}")
    for probe in PROBES
    for name, weakness in probe.held_twice.items()
]


@pytest.mark.parametrize(("probe", "weakness"), TWICE)
async def test_one_layer_is_enough(
    probe: Probe, weakness: Weakness, untouched: Stage, environment: Environment
) -> None:
    assert await run_cold(probe, untouched, environment, weakness) == "HELD"


def test_names_are_unique() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)
