"""Descriptors and variables that an artifact's program receives, and those that it does not."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nsm.wire.errors import StartFailedError
from nsmd.jail.handover import Handover, hand_over
from nsmd.jail.user import JailUser
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Artifact
from realjail import mount_of, open_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIVEN = Handover(project=None, info_end=77, policy=b"{}")
NAMED = Handover(
    project=None, info_end=77, policy=b"{}", code_variables=(("A", "s3cret"), ("B", ""))
)


def handed(
    artifact: Artifact, given: Handover, owned: ExitStack
) -> tuple[Mapping[str, str], Sequence[int]]:
    return hand_over(artifact, JailUser(DEFAULT_JAIL_UID), given, owned)


def test_older_programs_get_nothing_by_descriptor() -> None:
    with open_directory() as project, ExitStack() as owned:
        given = Handover(project=mount_of(project), info_end=77, policy=b"{}")
        variables, inherited = handed(Artifact(run="/r"), given, owned)
        assert variables == {"PROJECT_DIR": str(project)}
        assert inherited == []


def test_only_what_it_takes() -> None:
    with ExitStack() as owned:
        variables, inherited = handed(Artifact(run="/r", schema=1), GIVEN, owned)
        assert (variables, list(inherited)) == ({"NSM_INFO_FD": "77"}, [77])


def test_policy_and_variables() -> None:
    artifact = Artifact(run="/r", schema=1, takes=frozenset({"policy", "variables"}))
    with ExitStack() as owned:
        variables, inherited = handed(artifact, NAMED, owned)
        policy, named = int(variables["NSM_POLICY_FD"]), int(variables["NSM_VARIABLES_FD"])
        assert list(inherited) == [77, policy, named]
        assert os.read(policy, 100) == b"{}"
        assert os.read(named, 100) == b"--setenv\0A\0s3cret\0--setenv\0B\0\0"
        assert "s3cret" not in str(variables)
        assert "s3cret" not in repr(NAMED)


def test_variables_that_cannot_be_handed_over_are_not_forgotten() -> None:
    artifact = Artifact(run="/r", schema=1, takes=frozenset({"policy"}))
    with ExitStack() as owned, pytest.raises(StartFailedError) as error:
        handed(artifact, NAMED, owned)
    assert "(A, B)" in error.value.message
    assert "Build the environment again" in error.value.hint
    assert "s3cret" not in str(error.value)
