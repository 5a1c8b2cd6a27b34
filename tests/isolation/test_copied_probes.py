"""The probes in forks whose project is copied on write: code may do more there, and nowhere else.

That each can succeed is shown by `test_forked_probes.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from isolation.probe import Group
from isolation.probes import PROBES, groups_of
from isolation.rooms import HostRoom, Prober
from isolation.stage import Stage, open_stage
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment
from realjail import needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]

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


NEAR = ("files", "names", "namespaces", "privileges", "devices", "descriptors")
"""Groups whose attacks have to do with mounts and files; `make soak` tries all others, too."""


@pytest.mark.parametrize(
    "group",
    [
        group if group in NEAR else pytest.param(group, marks=pytest.mark.slow)
        for group in groups_of(DENIED)
    ],
)
def test_held(group: Group, copied: Stage, known: dict[str, Environment], prober: Prober) -> None:
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
