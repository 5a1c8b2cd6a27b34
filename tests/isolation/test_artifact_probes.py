"""The probes in sessions of an artifact, in jails of their own and as forks.

That each can succeed is shown where nsm makes the jails itself, and can make weak ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from artifact_files import PROGRAMS, STORE, environment_of, write_artifact
from isolation.artifacts import verdict_in
from isolation.background import Background
from isolation.harness import AGENT_OF_FORK, Kind, Probe, program_of
from isolation.probes import PROBES, named
from isolation.stage import Stage
from nsmd.values import Environment
from realjail import needs_bwrap, open_directory

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]

SHOWN = str(STORE.parent)


@pytest.fixture(scope="module")
def artifacts() -> Generator[dict[str, Environment]]:
    """One for each interpreter."""
    with open_directory() as folder:
        yield {
            name: environment_of(write_artifact(folder, name, interpreter=name))
            for name, program in PROGRAMS.items()
            if Path(program).exists()
        }


def with_agent(folder: Path, kind: Kind, probe: Probe, stage: Stage) -> Environment:
    """An artifact with a probe in its agent's place."""
    artifact = write_artifact(folder, "probe")
    program = program_of(probe, stage, SHOWN)
    source = AGENT_OF_FORK.format(code=program) if kind == "forked" else program
    (artifact / "lib" / "agent").write_text(source)
    return environment_of(artifact)


@pytest.mark.parametrize("probe", PROBES, ids=named)
@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held(
    kind: Kind,
    probe: Probe,
    untouched: Stage,
    artifacts: dict[str, Environment],
    background: Background,
) -> None:
    if not getattr(untouched, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    if probe.interpreter not in artifacts:
        pytest.skip(f"not here: {PROGRAMS[probe.interpreter]}")
    with ExitStack() as stack:
        environment = artifacts[probe.interpreter]
        if probe.place == "agent":
            folder = stack.enter_context(open_directory())
            environment = with_agent(folder, kind, probe, untouched)
        assert verdict_in(background, kind, probe, untouched, environment, SHOWN) == "HELD"
