"""The probes of tests/isolation in jails that jail.nix makes: one execution, a session, a fork.

That each can succeed is shown there, where layers can be taken away. Of jail.nix and its stand-in
the one that is nearer to what users have; that both make the same is shown by the other tests here.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import standin
from artifact_files import environment_of
from isolation.artifacts import verdict_in
from isolation.background import Background
from isolation.harness import Probe, program_of
from isolation.probes import PROBES, named
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from realjail import SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.jail

RUN_TIMEOUT_S = 60

WITHOUT_AGENT = {
    **dict.fromkeys(
        ("agent-from-python", "agent-from-bash", "agent-from-node"), "there is no agent in it"
    ),
    "host-processes": "the code, which names what it looks for, is an argument",
}
"""What one execution is not attacked by, and why."""

IN_CODE = [probe for probe in PROBES if probe.place == "code"]
"""The others take the agent's place, which is in the store."""


@pytest.fixture(scope="module")
def stage() -> Generator[Stage]:
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def presets(place: standin.Place) -> Callable[[str], Path]:
    """Build the preset of an interpreter."""

    @cache
    def build(interpreter: str) -> Path:
        return standin.build(place, standin.attribute_of(f"presets.{interpreter}"), None)

    return build


@pytest.fixture(scope="module")
def background() -> Generator[Background]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("probe", IN_CODE, ids=named)
@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held_in_a_session(
    kind: Literal["cold", "forked"],
    probe: Probe,
    stage: Stage,
    background: Background,
    presets: Callable[[str], Path],
    place: standin.Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_without_needs(probe, stage)
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)
    environment = environment_of(presets(probe.interpreter))
    store = str(place.store)
    assert verdict_in(background, kind, probe, stage, environment, store) == "HELD"


@pytest.mark.parametrize(
    "probe", [probe for probe in IN_CODE if probe.name not in WITHOUT_AGENT], ids=named
)
def test_held_in_one_execution(
    probe: Probe, stage: Stage, presets: Callable[[str], Path], place: standin.Place
) -> None:
    skip_without_needs(probe, stage)
    done = subprocess.run(
        [str(presets(probe.interpreter) / "bin/run")],
        input=program_of(probe, stage, str(place.store)),
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
    assert (done.stdout.strip(), done.stderr) == ("HELD", "")


def skip_without_needs(probe: Probe, stage: Stage) -> None:
    if not getattr(stage, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
