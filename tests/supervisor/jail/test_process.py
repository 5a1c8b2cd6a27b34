"""Starters of jails and processes below one of ours, found and ended."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from nsm.wire.errors import StartFailedError
from nsmd.jail.process import kill_group, kill_tree, open_descendant, open_jail_below
from nsmd.jail.starting import hand_over, open_info_pipe
from nsmd.jail.user import JailUser
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Artifact, ProjectMount
from processes import Watched, tree
from realjail import BWRAP, needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


TALK = "echo -n .; exec sleep 1000"
"""Says one character and stays."""


@contextmanager
def started(*command: str, words: int = 1) -> Generator[subprocess.Popen[bytes]]:
    """A leader of a process group; the block begins when so many below it have spoken."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        for _ in range(words):
            assert process.stdout.read(1) == b"."
        yield process
    finally:
        kill_tree(process.pid)
        process.wait()
        process.stdout.close()


@contextmanager
def descriptors_left(count: int) -> Generator[None]:
    """Limit this process to so many further descriptors."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]  # all gaps below are filled
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, usual[1]))
    try:
        for fd in taken[len(taken) - count :]:
            os.close(fd)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        for fd in taken[: len(taken) - count]:
            os.close(fd)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("{}", 1),
        ("({}) & wait", 1),
        ("setsid bash -c '{}' & wait", 1),
        ("(setsid bash -c '{}' & setsid bash -c '{}' & wait) & wait", 2),
        ("trap '' TERM INT HUP; (setsid setsid -w bash -c '{}') & wait", 1),
    ],
)
async def test_all_below_a_process_are_killed(script: str, words: int) -> None:
    with started("/bin/bash", "-c", script.format(TALK, TALK), words=words) as process:
        with Watched(tree(process.pid)) as watched:
            assert watched.alive >= words
            kill_tree(process.pid)
            await watched.all_ended()
        kill_tree(process.pid)  # it is there until it is reaped


async def test_with_few_descriptors_all_are_killed_too() -> None:
    each = f"setsid bash -c '{TALK}' &"
    with (
        started("/bin/bash", "-c", f"{each * 8} wait", words=8) as process,
        Watched(tree(process.pid)) as watched,
    ):
        with descriptors_left(3):
            kill_tree(process.pid)
        await watched.all_ended()


async def test_without_any_descriptor_the_group_is_killed_and_not_left_stopped() -> None:
    with (
        started("/bin/bash", "-c", f"({TALK}) & wait") as process,
        Watched(tree(process.pid)) as watched,
    ):
        with descriptors_left(0):
            kill_tree(process.pid)
        await watched.all_ended()


async def test_a_group_is_killed_and_nothing_beside_it() -> None:
    with started(
        "/bin/bash", "-c", f"({TALK}) & setsid bash -c '{TALK}' & wait", words=2
    ) as process:
        (other,) = [pid for pid in tree(process.pid) if os.getsid(pid) == pid != process.pid]
        with Watched([other]) as outside:
            with Watched(set(tree(process.pid)) - {other}) as inside:
                kill_group(process.pid)
                await inside.all_ended()
            assert outside.alive == 1
            os.kill(other, 9)
            await outside.all_ended()


def test_a_process_that_is_no_descendant_is_not_held() -> None:
    with started("/bin/sh", "-c", "echo -n .; exec sleep 1000") as one:
        assert open_descendant(os.getpid(), one.pid) is None
        assert open_descendant(one.pid, one.pid) is None
        assert open_descendant(1, one.pid) is None
        fd = open_descendant(one.pid, os.getpid())
        assert fd is not None
        os.close(fd)
        gone = subprocess.Popen(["/bin/true"])
        gone.wait()
        assert open_descendant(gone.pid, os.getpid()) is None


@needs_bwrap
@pytest.mark.jail
async def test_the_outermost_jail_is_found_and_ends_what_is_in_it() -> None:
    assert BWRAP is not None
    bwrap = f"{BWRAP} --dev-bind / / --unshare-user --unshare-pid"
    inner = f"{bwrap} -- /bin/bash -c 'echo -n .; sleep 1000; true'"
    with started("/bin/bash", "-c", f"{bwrap} -- {inner}; true") as process:
        found = open_jail_below(process.pid)
        assert found is not None
        pid, pidfd = found
        os.close(pidfd)
        with Watched(tree(pid)) as watched:
            assert watched.alive >= 4
            os.kill(pid, 9)
            await watched.all_ended()


RUN_TIMEOUT_S = 30
SECRETS = (("A", "s3cret"), ("B", ""))


@needs_bwrap
@pytest.mark.jail
def test_a_jail_that_nobody_waits_for_any_more_starts_and_ends() -> None:
    """A pipe that breaks would kill bwrap, and its child would wait for good."""
    ours, theirs = open_info_pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [*"bwrap --unshare-all --ro-bind / / --info-fd".split(), str(theirs), "echo", "x"],
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
