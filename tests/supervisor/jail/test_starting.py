"""The pipe on which bwrap tells of a jail, when nobody is there to hear it; and what the program of
an artifact receives by descriptors and variables, and what it does not.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nsm.wire.errors import StartFailedError
from nsmd.jail.starting import hand_over, open_info_pipe
from nsmd.jail.user import JailUser
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Artifact, ProjectMount
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN_TIMEOUT_S = 30
SECRETS = (("A", "s3cret"), ("B", ""))


def test_its_end_is_seen() -> None:
    ours, theirs = open_info_pipe()
    try:
        os.write(theirs, b"{}")
        os.close(theirs)
        assert [os.read(ours, 10) for _ in range(2)] == [b"{}", b""]
    finally:
        os.close(ours)
    assert not os.path.exists(f"/proc/self/fd/{theirs}")


@needs_bwrap
@pytest.mark.jail
def test_a_jail_that_nobody_waits_for_any_more_starts_and_ends() -> None:
    """A pipe that breaks would kill bwrap, and its child would wait for good."""
    ours, theirs = open_info_pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [
                "bwrap",
                "--unshare-all",
                "--ro-bind",
                "/",
                "/",
                "--info-fd",
                str(theirs),
                "echo",
                "x",
            ],
            pass_fds=[theirs],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    finally:
        os.close(theirs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def handed(
    artifact: Artifact,
    owned: ExitStack,
    *,
    project: ProjectMount | None = None,
    code_variables: Sequence[tuple[str, str]] = (),
) -> tuple[Mapping[str, str], Sequence[int]]:
    return hand_over(
        artifact,
        JailUser(DEFAULT_JAIL_UID),
        owned,
        project=project,
        info_end=77,
        policy=b"{}",
        code_variables=code_variables,
    )


def test_policy_and_variables() -> None:
    artifact = Artifact(run="/r", schema=1, takes=frozenset({"policy", "variables"}))
    with ExitStack() as owned:
        variables, inherited = handed(artifact, owned, code_variables=SECRETS)
        policy, named = int(variables["NSM_POLICY_FD"]), int(variables["NSM_VARIABLES_FD"])
        assert list(inherited) == [77, policy, named]
        assert os.read(policy, 100) == b"{}"
        assert os.read(named, 100) == b"--setenv\0A\0s3cret\0--setenv\0B\0\0"
        assert "s3cret" not in str(variables)


def test_variables_that_cannot_be_handed_over_are_not_forgotten() -> None:
    artifact = Artifact(run="/r", schema=1, takes=frozenset({"policy"}))
    with ExitStack() as owned, pytest.raises(StartFailedError) as error:
        handed(artifact, owned, code_variables=SECRETS)
    assert "(A, B)" in error.value.message
    assert "Build the environment again" in error.value.hint
    assert "s3cret" not in str(error.value)
