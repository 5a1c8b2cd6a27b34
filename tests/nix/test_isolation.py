"""The probes of `tests/isolation` in jails of the presets: a session, a fork, one execution.

That each can succeed is shown there, where layers can be taken away.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isolation.background import Background
from isolation.probe import Kind, Probe, program_of, verdict_of
from isolation.probes import PROBES, named
from isolation.rooms import ArtifactRoom, Prober
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from realjail import SIZES, needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.jail, needs_bwrap]

RUN_TIMEOUT_S = 60

IN_CODE = [probe for probe in PROBES if probe.place == "code"]
"""The others take the agent's place, which is in the store."""

WITHOUT_AGENT: dict[str, str] = {
    **dict.fromkeys(
        ("agent-from-python", "agent-from-bash", "agent-from-node"), "there is no agent in it"
    ),
    "host-processes": "the code, which names what it looks for, is an argument",
}
"""What one execution is not attacked by, and why."""


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage]:
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def prober() -> Generator[Prober]:
    background = Background()
    try:
        yield Prober(background)
    finally:
        background.close()


@pytest.fixture
def stage(untouched: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """What probes look for is there."""
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)
    return untouched


@pytest.mark.parametrize("probe", IN_CODE, ids=named)
@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held_in_a_session(
    probe: Probe, kind: Kind, built: Callable[[str], Path], stage: Stage, prober: Prober
) -> None:
    artifact = built(f"presets.{probe.interpreter}")
    room = ArtifactRoom(
        kind=kind, stage=stage, artifacts={probe.interpreter: artifact}, store=store_of(artifact)
    )
    prober.expect("HELD", room, probe, IN_CODE)


@pytest.mark.parametrize(
    "probe", [probe for probe in IN_CODE if probe.name not in WITHOUT_AGENT], ids=named
)
def test_held_in_one_execution(probe: Probe, built: Callable[[str], Path], stage: Stage) -> None:
    if not getattr(stage, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    artifact = built(f"presets.{probe.interpreter}")
    done = subprocess.run(
        [str(artifact / "bin/run")],
        input=program_of(probe, stage, store_of(artifact)),
        env={
            CANARY_VARIABLE: CANARY,
            "PROJECT_DIR": stage.project.path,
            "NSM_SHM_MB": str(SIZES.shm_mb),
            "NSM_TMP_MB": str(SIZES.tmp_mb),
            "NSM_WORKSPACE_MB": str(SIZES.workspace_mb),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert not verdict_of(done.stdout, done.stderr).startswith("BROKEN: ")
    assert not done.stderr


def store_of(artifact: Path) -> str:
    """Where its jails show what it consists of."""
    return os.path.dirname(os.path.realpath(artifact))
