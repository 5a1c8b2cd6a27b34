"""The probes of `tests/isolation` in sessions of the presets that Nix has built."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from artifact_files import environment_of
from isolation.artifacts import verdict_in
from isolation.background import Background
from isolation.harness import Kind, Probe
from isolation.probes import PROBES, named
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.jail, needs_bwrap]

IN_SESSIONS = [probe for probe in PROBES if probe.place == "code"]
"""The agent of what is built cannot be exchanged."""


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage]:
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def background() -> Generator[Background]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", ["cold", "forked"])
@pytest.mark.parametrize("probe", IN_SESSIONS, ids=named)
def test_held(
    probe: Probe,
    kind: Kind,
    built: Callable[[str], Path],
    untouched: Stage,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)
    if not getattr(untouched, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    artifact = built(f"presets.{probe.interpreter}")
    environment = environment_of(artifact)
    store = os.path.dirname(os.path.realpath(artifact))
    assert verdict_in(background, kind, probe, untouched, environment, store) == "HELD"
