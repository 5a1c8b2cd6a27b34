"""The policy of sessions in artifacts that Nix has built is what holds in there."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from artifact_files import environment_of
from nsmd.jail.templates import open_templates
from policy.checks import LOOK, check_devices, check_file, check_limits, check_mounts, check_rights
from realjail import needs_bwrap, open_cold, open_directory, open_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.mark.parametrize("forked", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_the_policy_of_a_nix_session_holds(
    built: Callable[[str], Path], forked: bool
) -> None:
    environment = environment_of(built("presets.python"))
    async with AsyncExitStack() as stack:
        home = stack.enter_context(open_directory())
        cold = await stack.enter_async_context(open_cold(str(home)))
        launcher = await stack.enter_async_context(open_templates(cold, enabled=forked))
        session = await stack.enter_async_context(open_session(environment, launcher=launcher))
        outcome = await session.run(LOOK)
        policy = session.jail.policy
    assert outcome.stderr == ""
    found: dict[str, Any] = json.loads(outcome.stdout)
    assert policy is not None
    assert found["policy"] == policy.as_json()
    assert policy.kind == ("artifact-forked" if forked else "artifact")
    check_file(found)
    check_mounts(found["policy"], found)
    check_devices(found["policy"], found)
    check_rights(found["policy"], found)
    check_limits(found["policy"], found)
    # A wrapper starts nixpkgs' Python.
    its_own = {"PYTHONNOUSERSITE", "SHLVL", "_"}
    assert set(found["variables"]) - its_own == set(found["policy"]["variables"])
    assert found["interfaces"] == ["lo"]
