"""Scopes of systemd, and what holds them; programs stand in for its own."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio.testing

from fake_cgroups import FakeTree, Programs
from fake_fdstore import Held
from fakes import FakeJail, spec
from nsmd.jail.limits import enforcer as enforcers
from nsmd.jail.limits import find_enforcer, systemd
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.systemd import Anchor, attach, enter_scope
from nsmd.jail.limits.tree import GroupPlace, GroupTree, NoGroupsError
from nsmd.model.values import SessionLimits

HERE = GroupPlace(
    mount_point="/sys/fs/cgroup",
    directory="/sys/fs/cgroup/user.slice/session-3.scope",
    unit="session-3.scope",
    delegated=False,
    alone=False,
    managed=True,
)
NAME = f"nsm-supervisor-{os.getpid()}.scope"


def inside(
    fake: FakeTree, unit: str, *, delegated: bool = False, alone: bool = False
) -> GroupPlace:
    """A group of the made-up tree."""
    return replace(
        HERE,
        mount_point=str(fake.top),
        directory=f"{fake.top}/{unit}".rstrip("/"),
        unit=unit,
        delegated=delegated,
        alone=alone,
    )


async def test_systemd_makes_a_scope_around_this_process(programs: Programs) -> None:
    await enter_scope(HERE, programs.variables)
    made, started = programs.asked()
    assert made.startswith("busctl --user call org.freedesktop.systemd1 /org/freedesktop/systemd1 ")
    assert f" StartTransientUnit ssa(sv)a(sa(sv)) {NAME} fail 5 Description s nsm: " in made
    assert " Delegate b true OOMPolicy s continue CollectMode s inactive-or-failed " in made
    assert made.endswith(f" PIDs au 1 {os.getpid()} 0")
    assert started == f"systemctl --user start {NAME}"


async def test_a_manager_that_knows_no_oom_policy_of_scopes(programs: Programs) -> None:
    refuse = 'case "$*" in *OOMPolicy*) echo "Cannot set property OOMPolicy" >&2; exit 1;; esac'
    programs.says("busctl", refuse)
    await enter_scope(HERE, programs.variables)
    first, second, _ = programs.asked()
    assert "fail 5 " in first
    assert "fail 4 " in second
    assert "OOMPolicy" not in second


async def test_a_refusal_of_systemd_is_told(programs: Programs) -> None:
    programs.says("busctl", "echo 'Access denied' >&2; exit 1")
    with pytest.raises(NoGroupsError, match="makes no scope for it \\(Access denied\\)") as error:
        await enter_scope(HERE, programs.variables)
    assert "enable-linger" in error.value.fix
    programs.says("busctl")
    programs.says("systemctl", "echo 'Job failed' >&2; exit 1")
    with pytest.raises(NoGroupsError, match="does not start its scope \\(Job failed\\)"):
        await enter_scope(HERE, programs.variables)


async def test_a_manager_that_hangs(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "ANSWER_TIMEOUT_S", 0.2)
    programs.says("busctl", "exec sleep 1000")
    with pytest.raises(NoGroupsError, match=r"no answer within 0\.2 s"):
        await enter_scope(HERE, programs.variables)


async def test_a_services_main_process_stays_where_it_is(programs: Programs) -> None:
    service = replace(HERE, directory="/sys/fs/cgroup/nsm.service", unit="nsm.service", alone=True)
    main = {**programs.variables, "SYSTEMD_EXEC_PID": str(os.getpid())}
    with pytest.raises(NoGroupsError, match=r"its service nsm\.service is not delegated") as error:
        await enter_scope(service, main)
    assert "Delegate=yes" in error.value.fix
    assert programs.asked() == []
    # What an editor that is a service has started may go.
    await enter_scope(service, {**programs.variables, "SYSTEMD_EXEC_PID": "1"})


SCOPE = "/sys/fs/cgroup/user.slice/app.slice/nsm-sessions-1.scope"


@pytest.fixture
def lingering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says that this user lingers."""
    folder = tmp_path / "linger"
    folder.mkdir()
    monkeypatch.setattr(systemd, "LINGER", str(folder))
    name = folder / pwd.getpwuid(os.geteuid()).pw_name
    name.write_text("")
    return name


async def test_systemd_moves_what_is_elsewhere(programs: Programs, lingering: Path) -> None:
    assert lingering.exists()
    await attach(SCOPE, f"{SCOPE}/sessions/box-1", [7, 8], programs.variables)
    (asked,) = programs.asked()
    words = "AttachProcessesToUnit ssau nsm-sessions-1.scope /sessions/box-1 2 7 8"
    assert asked.endswith(f" {words}")
    programs.says("busctl", "echo 'Access denied' >&2; exit 1")
    with pytest.raises(NoGroupsError, match=r"does not move it .*Access denied"):
        await attach(SCOPE, f"{SCOPE}/sessions/box-1", [7], programs.variables)


async def test_processes_are_not_moved_where_they_would_end_sooner(
    programs: Programs, lingering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingering.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # the system's manager serves root
    with pytest.raises(NoGroupsError, match="end with your last login"):
        await attach(SCOPE, f"{SCOPE}/sessions/box-1", [7], programs.variables)
    assert programs.asked() == []


LIMITS = SessionLimits()
EXECS = 'while [ "$1" != /bin/sh ]; do shift; done; exec "$@"'
"""A stand-in that executes the same program as systemd-run."""


def _given(answer: object, _question: object) -> object:
    """Stand-in for a function that looks at the machine."""
    return answer


@pytest.fixture
def started(programs: Programs, fake: FakeTree, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of a service's main process; its anchors are in the made-up tree."""
    programs.says("systemd-run", EXECS)
    monkeypatch.setattr(systemd, "directory_of", partial(_given, str(fake.top)))
    here = inside(fake, "nsm-supervisor.service", alone=True)
    monkeypatch.setattr(enforcers, "find_place", partial(_given, here))
    return {**programs.variables, "SYSTEMD_EXEC_PID": str(os.getpid())}


def has_ended(pid: int) -> bool:
    """Return whether a child has ended."""
    return os.waitpid(pid, os.WNOHANG) != (0, 0)


def ended(pid: int) -> int:
    """How a child has ended, which it is waited for."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_a_service_has_its_sessions_in_a_scope_that_lives_as_long_as_anybody_holds_it(
    started: dict[str, str], programs: Programs, fake: FakeTree
) -> None:
    store = Held()
    async with enforcers.open_enforcer(LIMITS, started, store=store) as enforcer:
        assert enforcer.tree is not None
        assert enforcer.anchor is not None
        pid = enforcer.anchor.pid
        assert (fake.top / "anchor/cgroup.procs").read_text().split() == [str(pid)]
        assert enforcer.tree.sessions == f"{fake.top}/sessions"
        assert len(store.held["scope"]) == 2
        asked = programs.asked()[-1]
        assert asked.startswith("systemd-run --user --scope --quiet --collect --unit=nsm-sessions-")
        assert "--property=Delegate=yes --property=TasksMax=infinity" in asked
        kept = {"scope": [os.dup(fd) for fd in store.held["scope"]]}
    # The supervisor has gone, and has emptied its store; what was handed on still holds the scope.
    assert store.held == {}
    assert not has_ended(pid)
    again = await find_enforcer(LIMITS, started, kept=kept)
    assert again.tree is not None
    assert again.anchor is not None
    assert (again.anchor.pid, again.tree.directory) == (0, str(fake.top))
    assert len([line for line in programs.asked() if line.startswith("systemd-run")]) == 1
    again.anchor.close()
    assert ended(pid) == 1  # `read` was told that nobody is there


@pytest.mark.parametrize("again", [False, True], ids=["its child", "the same process"])
async def test_only_who_has_divided_a_tree_goes_on_with_it(
    programs: Programs, fake: FakeTree, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """A supervisor that another one's program starts is in that one's group."""
    first = GroupTree(str(fake.top))
    first.make("new")  # and nobody is in it yet
    files.make_group(f"{fake.top}/scope")
    places = [inside(fake, "scope"), inside(fake, "supervisor")]

    def next_place(_: object) -> GroupPlace:
        return places.pop()

    monkeypatch.setattr(enforcers, "find_place", next_place)
    enforcer = await find_enforcer(LIMITS, programs.variables, again=again)
    assert enforcer.tree is not None
    assert enforcer.tree.directory == (first.directory if again else f"{fake.top}/scope")
    assert bool(programs.asked()) != again
    assert (fake.top / "sessions/new").exists() != again


async def test_a_scope_that_was_stopped_is_asked_for_again(
    started: dict[str, str], programs: Programs, fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Held()
    jail = FakeJail(17, spec())
    async with enforcers.open_enforcer(LIMITS, started, store=store) as enforcer:
        assert enforcer.anchor is not None
        first, before = enforcer.anchor.pid, store.held["scope"]
        shutil.rmtree(fake.top / "sessions")
        again = fake.top / "again"
        files.make_group(str(again))
        monkeypatch.setattr(systemd, "directory_of", partial(_given, str(again)))
        confinement = await enforcer.confine("s1", jail, spec())
        assert confinement.group is not None
        assert confinement.group.directory == f"{again}/sessions/s1"
        assert ended(first) == 1
        assert enforcer.anchor.pid != first
        assert len(store.held["scope"]) == len(before) == 2
        # Where there can be none any more, sessions are watched.
        shutil.rmtree(again / "sessions")
        programs.says("systemd-run", "echo no >&2; exit 1")
        assert (await enforcer.confine("s2", jail, spec())).enforcement.memory == "watchdog"
        last = enforcer.anchor.pid
    assert ended(last) == 1
    jail.release()
    jail.agent_end.close()


async def test_records_of_a_scope_that_is_gone_are_not_used(
    started: dict[str, str], tmp_path: Path
) -> None:
    pipe, other = os.pipe2(os.O_CLOEXEC)
    record = os.memfd_create("record")
    os.write(record, str(tmp_path / "gone").encode())
    assert systemd.take_up_anchor({"scope": [record, other, pipe], "session-1": [-1]}) is None
    for fd in (pipe, other, record):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    enforcer = await find_enforcer(LIMITS, started, kept={"scope": []})
    assert isinstance(enforcer.anchor, Anchor)
    enforcer.anchor.close()
    ended(enforcer.anchor.pid)


async def test_a_scope_that_systemd_does_not_make(
    started: dict[str, str], programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.says("systemd-run", "echo 'Access denied' >&2; exit 1")
    with pytest.raises(NoGroupsError, match=r"no scope for sessions \(Access denied\)"):
        await systemd.start_anchor(started)
    monkeypatch.setattr(systemd, "ANSWER_TIMEOUT_S", 0.1)
    programs.says("systemd-run", "exec sleep 1000")
    with pytest.raises(NoGroupsError, match=r"no answer within 0\.1 s"):
        await systemd.start_anchor(started)
    os.environ["PATH"] = "/nonexistent"
    with pytest.raises(NoGroupsError, match="systemd-run cannot be run: it is not on PATH"):
        await systemd.start_anchor(started)


async def test_groups_that_fail_for_a_moment_are_asked_for_again(
    autojump_clock: trio.testing.MockClock,
    programs: Programs,
    fake: FakeTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = inside(fake, "", delegated=True, alone=True)
    monkeypatch.setattr(enforcers, "find_place", partial(_given, here))
    answers = [errno.EACCES, errno.EBUSY, errno.EAGAIN]

    def divided(directory: str) -> GroupTree:
        if answers:
            raise NoGroupsError("not now") from OSError(answers.pop(), "refused")
        return GroupTree(directory)

    monkeypatch.setattr(enforcers, "GroupTree", divided)
    refused = await find_enforcer(LIMITS, programs.variables)
    assert (refused.tree, answers) == (None, [])  # EACCES says something about this host
    assert autojump_clock.current_time() == sum(enforcers.PAUSES_S)
    answers += [errno.EBUSY]
    assert (await find_enforcer(LIMITS, programs.variables)).tree is not None
    assert answers == []
