"""The probes in sessions of an artifact, in forks whose project is a copy, and as another user.

That each can succeed is shown by `test_probes.py`, where nsm makes the jails itself, and can make
weak ones.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from artifact_files import PROGRAMS, STORE, write_artifact
from isolation.background import Background
from isolation.probe import Group, Kind, Probe
from isolation.probes import PROBES, groups_of
from isolation.rooms import ArtifactRoom, HostRoom, Prober
from isolation.stage import Stage, open_stage
from nsmd.jail import BwrapLauncher, program_code
from nsmd.jail.arguments import AGENT_PATH, TEMPLATE_PATH
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment, Interpreter
from realjail import BWRAP, needs_bwrap, open_directory

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.usefixtures("secret_in_our_environment")]

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


NEAR_ARTIFACTS = (
    "files",
    "names",
    "environment",
    "descriptors",
    "supervisor",
    "namespaces",
    "agent",
)
"""Groups whose attacks have to do with what an artifact's own programs make of a jail. `make soak`
tries all others here, too; `test_probes.py` tries them in other jails.
"""

# One kind after the other: their sessions stay open from group to group.
ARTIFACT_CASES = [
    (kind, group)
    if kind == "forked" and group in NEAR_ARTIFACTS
    else pytest.param(kind, group, marks=pytest.mark.slow)
    for kind, group in itertools.product(["cold", "forked"], groups_of())
]


@pytest.mark.parametrize(("kind", "group"), ARTIFACT_CASES)
def test_held_in_an_artifact(
    kind: Kind, group: Group, untouched: Stage, artifacts: dict[Interpreter, Path], prober: Prober
) -> None:
    room = ArtifactRoom(kind=kind, stage=untouched, artifacts=artifacts, store=SHOWN)
    prober.all_hold(room, PROBES, group)


# Code may do more in a copy of its project, and nowhere else.

GRANTED = [p for p in PROBES if p.group == "project" or p.name == "writable-places"]
"""Probes for what code may do in an overlay, and may not do to the project."""

DENIED = [probe for probe in PROBES if probe not in GRANTED]


@pytest.fixture(scope="module")
def copied() -> Generator[Stage, None, None]:
    """A stage whose project belongs to the jails' user."""
    with open_stage() as made:
        project = Path(made.project.path)
        if os.geteuid() == 0:
            for path in (project, *project.rglob("*")):
                os.lchown(path, DEFAULT_JAIL_UID, DEFAULT_JAIL_UID)
        yield replace(made, project=replace(made.project, mode="overlay"))


NEAR_COPIES = ("files", "names", "namespaces", "privileges", "devices", "descriptors")
"""Groups whose attacks have to do with mounts and files; `make soak` tries all others, too."""


@pytest.mark.parametrize(
    "group",
    [
        group if group in NEAR_COPIES else pytest.param(group, marks=pytest.mark.slow)
        for group in groups_of(DENIED)
    ],
)
def test_held_in_a_copy(
    group: Group, copied: Stage, known: dict[str, Environment], prober: Prober
) -> None:
    room = HostRoom(kind="forked", stage=copied, known=known)
    prober.all_hold(room, DENIED, group)


def test_whatever_is_tried_the_project_stays_as_it_is(
    copied: Stage, known: dict[str, Environment], prober: Prober
) -> None:
    before = everything_below(Path(copied.project.path))
    room = HostRoom(kind="forked", stage=copied, known=known)
    verdicts = [prober.verdict(room, probe, PROBES) for probe in GRANTED]
    # The probes do what they try, and it shows in the copy.
    assert any(verdict.startswith("BROKEN: ") for verdict in verdicts)
    assert everything_below(Path(copied.project.path)) == before


def everything_below(directory: Path) -> dict[str, object]:
    """Names, kinds, owners, modes, times and content."""
    found: dict[str, object] = {}
    for path in (directory, *directory.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        # Not `st_atime`: reading is allowed.
        found[str(path)] = (*status[:7], status.st_mtime_ns, status.st_ctime_ns, content)
    return found


# Under a supervisor of an ordinary user, where root runs the tests. Root's starts jails as another
# user, and everything else that is run here is root's. The other way about there is nothing to do:
# an ordinary user's tests are of an ordinary user's supervisor.

USER = DEFAULT_JAIL_UID
"""To whom the project and the key of the stage belong."""

PR_SET_DUMPABLE = 4

AGENT = program_code.ProgramCode("sandbox_agent", AGENT_PATH)
TEMPLATE = program_code.ProgramCode("sandbox_template", TEMPLATE_PATH)
"""Read and compiled by root: the other user may not be able to read this clone."""


class ReadyLauncher(BwrapLauncher):
    """A launcher that reads no file of this clone."""

    def __init__(self, agent: bytes | None) -> None:
        super().__init__(BWRAP, agent_source=agent, jail_uid=DEFAULT_JAIL_UID)
        self._agent_code = AGENT
        self._template_code = TEMPLATE


def verdicts_of(
    kind: Kind, stage: Stage, known: Mapping[str, Environment], probes: Sequence[Probe]
) -> dict[str, str]:
    """Run the probes in this process and collect their verdicts."""
    room = HostRoom(kind=kind, stage=stage, known=known, cold=ReadyLauncher)
    background = Background()
    try:
        prober = Prober(background)
        return {probe.name: prober.verdict(room, probe, probes) for probe in probes}
    finally:
        background.close()


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Else /proc/self is root's, as it is after every change of the user.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held_as_another_user(kind: Kind, untouched: Stage, known: dict[str, Environment]) -> None:
    # What is imported or compiled late is so now, while its files can be read.
    some = {(probe.interpreter, probe.place): probe for probe in PROBES}
    assert "HELD" in verdicts_of(kind, untouched, known, list(some.values())).values()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(writer, kind, untouched, known)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, text
    told = json.loads(text)
    assert {name: words for name, words in told.items() if words.startswith("BROKEN: ")} == {}
    assert sum(words == "HELD" for words in told.values()) > len(told) // 2


def _tell(writer: int, kind: Kind, stage: Stage, known: dict[str, Environment]) -> NoReturn:
    with open(writer, "w") as file:
        try:
            become(USER)
            assert os.geteuid() == USER
            file.write(json.dumps(verdicts_of(kind, stage, known, PROBES)))
            file.flush()
        except BaseException:  # noqa: BLE001  # whoever reads it raises
            file.write(traceback.format_exc())
            file.flush()
            os._exit(1)
    os._exit(0)
