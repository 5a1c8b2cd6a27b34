"""The probes of `tests/isolation` in jails of the presets: a session, a fork, one execution.

That each can succeed is shown there, where layers can be taken away.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isolation.background import Background
from isolation.probe import Kind, Probe, program_of, program_of_all, verdict_of
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
    **{probe.name: "there is no agent in it" for probe in IN_CODE if probe.group == "agent"},
    **dict.fromkeys(
        ("host-processes", "host-paths-in-command-lines"),
        "the code, which names what it looks for, is an argument",
    ),
    "policy-file-by-another-name": "there is no policy in it",
    **dict.fromkeys(
        (
            *("private-memory", "processes", "open-files", "locked-memory", "pending-signals"),
            "raised-limits",
        ),
        "the agent sets limits; here they are those of who starts it",
    ),
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


TRIED = [probe for probe in IN_CODE if probe.name not in WITHOUT_AGENT]
ALONE = [probe for probe in TRIED if probe.interpreter != "python" or probe.spoils]
TOGETHER = [probe for probe in TRIED if probe not in ALONE]
AT_ONCE = 12
"""Each execution takes a tenth of a second, and its code is one argument: 128 KiB at most."""


@pytest.mark.parametrize("first", range(0, len(TOGETHER), AT_ONCE))
def test_held_in_one_execution(first: int, built: Callable[[str], Path], stage: Stage) -> None:
    there = [p for p in TOGETHER[first : first + AT_ONCE] if getattr(stage, p.needs)]
    artifact = built("presets.python")
    output = said_by(artifact, stage, program_of_all(there, stage, store_of(artifact)))
    verdicts = {name: verdict_of(told) for name, told in json.loads(output).items()}
    assert verdicts.keys() == {probe.name for probe in there}
    assert {name: words for name, words in verdicts.items() if words.startswith("BROKEN: ")} == {}
    assert "HELD" in verdicts.values()


@pytest.mark.parametrize("probe", ALONE, ids=named)
def test_held_in_an_execution_of_its_own(
    probe: Probe, built: Callable[[str], Path], stage: Stage
) -> None:
    if not getattr(stage, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    artifact = built(f"presets.{probe.interpreter}")
    output = said_by(artifact, stage, program_of(probe, stage, store_of(artifact)))
    assert not verdict_of(output).startswith("BROKEN: ")


def said_by(artifact: Path, stage: Stage, program: str) -> str:
    """What one execution prints, which complains of nothing."""
    done = subprocess.run(
        [str(artifact / "bin/run")],
        input=program,
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
    assert not done.stderr, done
    return done.stdout


def store_of(artifact: Path) -> str:
    """Where its jails show what it consists of."""
    return os.path.dirname(os.path.realpath(artifact))
