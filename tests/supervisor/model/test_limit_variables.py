"""Variables by which programs know the limits of a session."""

from __future__ import annotations

import pytest

from nsmd.model.policy import jail_variables, limit_variables
from nsmd.model.values import NO_NETWORK, Artifact, Environment


@pytest.mark.parametrize(
    ("memory_mb", "processors", "threads"),
    [(512, 64, "4"), (512, 2, "2"), (16, 64, "1"), (65536, 64, "64")],
)
def test_threads_fit_the_memory_and_the_processors(
    memory_mb: int, processors: int, threads: str
) -> None:
    found = limit_variables(memory_mb, processors)
    assert found["OMP_NUM_THREADS"] == found["GOMAXPROCS"] == threads
    assert (
        f"-XX:ActiveProcessorCount={threads} -XX:MaxRAM={memory_mb}m "
        in (found["JAVA_TOOL_OPTIONS"])
    )
    assert found["NODE_OPTIONS"] == f"--max-old-space-size={memory_mb * 3 // 4}"


def test_variables_of_the_user_win() -> None:
    environment = Environment(
        name="python", interpreter="python", variables=(("GOMAXPROCS", "7"),), memory_mb=1024
    )
    found = dict(jail_variables(environment, NO_NETWORK))
    assert found["GOMAXPROCS"] == "7"
    assert found["NODE_OPTIONS"] == "--max-old-space-size=768"


@pytest.mark.parametrize("takes", [frozenset(("policy", "variables")), frozenset(("policy",))])
def test_artifacts_that_can_set_variables_have_them(takes: frozenset[str]) -> None:
    artifact = Artifact(run="/nix/run", schema=1, takes=takes)
    environment = Environment(name="python", interpreter="python", artifact=artifact)
    found = dict(jail_variables(environment, NO_NETWORK))
    assert ("OMP_NUM_THREADS" in found) is ("variables" in takes)
