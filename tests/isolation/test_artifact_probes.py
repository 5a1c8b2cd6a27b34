"""The probes in sessions of an artifact, in jails of their own and as forks.

That each can succeed is shown where nsm makes the jails itself, and can make weak ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from pathlib import Path

import pytest

from artifact_files import PROGRAMS, STORE, write_artifact
from isolation.probe import Group, Kind
from isolation.probes import PROBES, groups_of
from isolation.rooms import ArtifactRoom, Prober
from isolation.stage import Stage
from nsmd.model.values import Interpreter
from realjail import needs_bwrap, open_directory

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]

SHOWN = str(STORE.parent)


@pytest.fixture(scope="module")
def artifacts() -> Generator[dict[Interpreter, Path]]:
    """One for each interpreter."""
    with open_directory() as folder:
        yield {
            name: write_artifact(folder, name, interpreter=name)
            for name, program in PROGRAMS.items()
            if Path(program).exists()
        }


NEAR = ("files", "names", "environment", "descriptors", "supervisor", "namespaces", "agent")
"""Groups whose attacks have to do with what an artifact's own programs make of a jail. `make soak`
tries all others here, too; `test_probes.py` and `test_forked_probes.py` try them in other jails.
"""

# One kind after the other: their sessions stay open from group to group.
CASES = [
    (kind, group)
    if kind == "forked" and group in NEAR
    else pytest.param(kind, group, marks=pytest.mark.slow)
    for kind, group in itertools.product(["cold", "forked"], groups_of())
]


@pytest.mark.parametrize(("kind", "group"), CASES)
def test_held(
    kind: Kind,
    group: Group,
    untouched: Stage,
    artifacts: dict[Interpreter, Path],
    prober: Prober,
) -> None:
    room = ArtifactRoom(kind=kind, stage=untouched, artifacts=artifacts, store=SHOWN)
    prober.all_hold(room, PROBES, group)
