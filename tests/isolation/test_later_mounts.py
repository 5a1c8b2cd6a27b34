"""Mounts that the host makes while sessions run: sessions cannot write to them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from isolation.latermounts import AFTER, BEFORE
from realjail import SYSTEM_PATH, needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.root,
]


def written_by(weakness: str) -> set[str]:
    """Find the sessions that could write to a file system mounted below their project."""
    told = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "shared"),
            *(sys.executable, "-m", "isolation.latermounts", weakness),
        ],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return set(told.stdout.split())


def test_later_mounts_are_read_only_or_not_there() -> None:
    assert written_by("none") == set()


@pytest.mark.slow
def test_a_private_namespace_is_not_enough() -> None:
    """The template's jail has got the mount, and hands it on."""
    assert written_by("private") == {AFTER}


@pytest.mark.slow
def test_without_either_it_is_everybody_s() -> None:
    assert written_by("slave") == {BEFORE, AFTER}
