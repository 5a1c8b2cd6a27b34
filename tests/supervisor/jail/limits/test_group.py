"""Values written into control groups and read back, on a made-up tree."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_cgroups import FakeTree
from fakes import PYTHON, FakeJail, spec
from nsmd.jail.limits import LimitEnforcer
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.confinement import Confinement, Measured
from nsmd.jail.limits.enforcer import enforcement_by
from nsmd.jail.limits.group import AGENT_MB, AT_REST, PART, Group, limits_of
from nsmd.jail.limits.tree import GroupTree, NoGroupsError, find_place, is_frozen
from nsmd.model.values import Outcome, SessionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


LIMITS = SessionLimits(processes=100)
ALL_MB = PYTHON.memory_mb + AGENT_MB + 512 + 256 + 64


def group_in(fake: FakeTree, name: str = "s1") -> Group:
    return Group.new(GroupTree(str(fake.top)), name, limits_of(spec(), LIMITS))


def test_the_supervisor_moves_out_of_the_way(fake: FakeTree) -> None:
    tree = GroupTree(str(fake.top))
    assert (fake.top / "supervisor/cgroup.procs").read_text().split() == [str(os.getpid())]
    assert tree.controllers == {"memory", "pids", "cpu"}
    for directory in (fake.top, fake.top / "sessions"):
        assert (directory / "cgroup.subtree_control").read_text().split() == [
            "cpu",
            "memory",
            "pids",
        ]


def test_limits_are_written_and_read_back(fake: FakeTree) -> None:
    group = group_in(fake)
    assert group.lacking == ""
    assert repr(group)
    assert group.holds == {"memory", "pids", "cpu"}
    found = {each.name: each.read_text() for each in Path(group.directory).iterdir()}
    assert found["memory.max"] == str(ALL_MB << 20)
    assert found["memory.swap.max"] == found["memory.oom.group"] == "0"
    assert found["pids.max"] == "99"
    assert found["cpu.weight"] == "100"
    assert group.memory_bytes() == 4096
    assert group.program_bytes() == 3072
    assert group.peak_bytes() == 1 << 20


@pytest.mark.parametrize(
    ("name", "answer", "lost", "why"),
    [
        ("memory.max", "max", "memory", f"memory.max: {ALL_MB << 20} was written, max was read"),
        ("memory.max", str((ALL_MB << 20) - 4096), None, ""),  # whole pages
        ("pids.max", OSError(1, "Operation not permitted"), "pids", "pids.max: Operation not"),
        ("cpu.weight", "1", "cpu", "cpu.weight: 100 was written, 1 was read"),
    ],
)
def test_a_limit_that_does_not_hold_is_told(
    fake: FakeTree, name: str, answer: OSError | str, lost: str | None, why: str
) -> None:
    fake.refused[name] = answer
    group = group_in(fake)
    assert group.lacking.startswith(why)
    assert group.holds == {"memory", "pids", "cpu"} - {lost}
    enforcement = enforcement_by(group.holds, group.lacking)
    kept = {"memory": "watchdog", "pids": "rlimit", "cpu": "none"}
    assert enforcement.memory == (kept["memory"] if lost == "memory" else "cgroup")
    assert enforcement.processes == (kept["pids"] if lost == "pids" else "cgroup")
    assert enforcement.cpu == (kept["cpu"] if lost == "cpu" else "cgroup")


def test_controllers_that_are_not_there(fake: FakeTree) -> None:
    (fake.top / "cgroup.controllers").write_text("pids io\n")
    tree = GroupTree(str(fake.top))
    assert tree.controllers == {"pids"}
    enforcer = LimitEnforcer(tree, limits=LIMITS)
    assert enforcer.facts() == {
        "memory": "watchdog",
        "processes": "cgroup",
        "cpu": "none",
        "why": "not delegated: memory, cpu",
    }
    (fake.top / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(NoGroupsError, match="without the controllers of memory and processes"):
        GroupTree(str(fake.top))


def test_a_group_that_cannot_be_divided_is_left_as_it_was(fake: FakeTree) -> None:
    fake.refused["cgroup.subtree_control"] = OSError(16, "Device or resource busy")
    with pytest.raises(NoGroupsError, match="cannot be divided: Device or resource busy"):
        GroupTree(str(fake.top))
    assert not [each for each in fake.top.iterdir() if each.is_dir()]
    assert (fake.top / "cgroup.procs").read_text().split() == [str(os.getpid())]


def test_a_group_that_is_still_busy_goes_later(fake: FakeTree) -> None:
    tree = GroupTree(str(fake.top))
    first, second = (Group.new(tree, name, limits_of(spec(), LIMITS)) for name in ("a", "b"))
    (Path(first.directory) / "cgroup.procs").write_text("17\n")
    first.remove()
    assert Path(first.directory).exists()
    (Path(first.directory) / "cgroup.procs").write_text("")
    second.remove()
    assert not Path(first.directory).exists()
    assert not Path(second.directory).exists()
    # One that a killed supervisor left goes at the next start.
    tree.make("old")
    GroupTree(str(fake.top))
    assert not (fake.top / "sessions/old").exists()


def left_by_another(fake: FakeTree, pid: int) -> tuple[GroupTree, str]:
    """A tree of our own, and the group of a session of an earlier supervisor's tree."""
    for controller in ("memory", "pids", "cpu"):
        files.write_file(str(fake.top), "cgroup.subtree_control", f"+{controller}")
    earlier = fake.top / "nsm-1"
    files.make_group(str(earlier))
    group = Group.new(GroupTree(str(earlier)), "s1", limits_of(spec(), LIMITS))
    files.write_file(group.directory, "cgroup.procs", str(pid))
    group.set("cpu.weight", "5")
    (Path(group.directory) / "memory.events").write_text("oom_kill 3\n")
    mine = fake.top / "mine"
    files.make_group(str(mine))
    return GroupTree(str(mine)), group.directory


def test_a_group_of_an_earlier_supervisor_is_taken_up_and_removed_in_the_end(
    fake: FakeTree,
) -> None:
    tree, directory = left_by_another(fake, 17)
    enforcer = LimitEnforcer(tree, limits=LIMITS)
    jail = FakeJail(17, spec())
    confinement = enforcer.adopt("s1", jail, spec(), directory)
    assert confinement.group is not None
    assert confinement.group.directory == directory
    assert (confinement.enforcement, confinement.enforcement.why) == (enforcer.enforcement, "")
    # The weight is what it was configured, and what was killed long ago is not told again.
    assert confinement.facts()["cpu_weight"] == 100
    assert confinement.ended(FAILED) == ()
    (Path(directory) / "memory.events").write_text("oom_kill 4\n")
    assert [event.times for event in confinement.ended(FAILED)] == [1]
    (Path(directory) / "cgroup.procs").write_text("")
    confinement.close()
    assert not (fake.top / "nsm-1").exists()
    assert Path(tree.sessions).exists()
    jail.release()
    jail.agent_end.close()


@pytest.mark.parametrize("groups", [True, False])
def test_a_session_whose_group_is_not_what_it_was_is_watched(fake: FakeTree, groups: bool) -> None:
    tree, directory = left_by_another(fake, 17)
    enforcer = LimitEnforcer(tree if groups else None, why="" if groups else "none", limits=LIMITS)
    jail = FakeJail(18, spec())
    for where, why in (
        (directory, "the control group that it had: the session is not in"),
        (f"{directory}0", "the control group that it had: No such file"),
        (None, "it had no control group" if groups else "none"),
    ):
        confinement = enforcer.adopt("s1", jail, spec(), where)
        assert confinement.group is None
        assert confinement.enforcement.memory == "watchdog"
        assert confinement.enforcement.why.startswith(why)
    # Those of sessions that live on keep theirs, also where this supervisor can make none.
    jail.pid = 17
    assert enforcer.adopt("s1", jail, spec(), directory).enforcement.memory == "cgroup"
    jail.release()
    jail.agent_end.close()


FINE = Outcome(stdout="", stderr="", exit_code=0)
FAILED = Outcome(stdout="", stderr="", exit_code=1)


KILLED = Outcome(
    stdout="",
    stderr="",
    exit_code=137,
    interpreter_restarted=True,
    restart_reason="python was killed by SIGKILL; its state is gone",
)


def confined(group: Group, jail: FakeJail) -> Confinement:
    return Confinement(jail, group.limits, enforcement_by(group.holds, ""), group)


@pytest.fixture
def jail() -> FakeJail:
    made = FakeJail(1, spec())
    made.agent_end.close()
    made.release()
    return made


def count(group: Group, *, kills: int = 0, refused: int = 0) -> None:
    folder = Path(group.directory)
    (folder / "memory.events").write_text(f"oom 3\noom_kill {kills}\n")
    (folder / "pids.events").write_text(f"max {refused}\n")


def test_counters_are_of_the_execution_that_was_under_way(fake: FakeTree, jail: FakeJail) -> None:
    group = group_in(fake)
    it = confined(group, jail)
    it.begun()
    count(group, kills=1)
    (event,) = it.ended(KILLED)
    assert (event.kind, event.enforced_by, event.limit) == ("memory", "cgroup", ALL_MB << 20)
    assert (event.what, event.peak_bytes) == ("the interpreter was killed", 1 << 20)
    # Counted once, and of no concern to what fails next.
    it.begun()
    assert it.ended(FAILED) == ()
    # An execution may have coped with it.
    it.begun()
    count(group, kills=1, refused=4)
    (event,) = it.ended(FINE)
    assert (event.kind, event.times, event.limit) == ("processes", 4, 99)
    # What happens between two executions is nobody's.
    count(group, kills=3, refused=5)
    it.begun()
    assert it.ended(FAILED) == ()
    it.begun()
    count(group, kills=5, refused=5)
    (event,) = it.ended(FAILED)
    assert event.what == "2 processes were killed"


def kills_told(it: Confinement, note: Mapping[str, object]) -> list[int]:
    """Kills reported for an execution that fails after an earlier supervisor started it."""
    it.taken_up()
    it.resume_execution(note)
    return [event.times for event in it.ended(FAILED)]


def test_limits_that_were_reached_without_a_supervisor_are_told(
    fake: FakeTree, jail: FakeJail
) -> None:
    group = group_in(fake)
    count(group, kills=3, refused=1)
    it = confined(group, jail)
    assert kills_told(it, {"counted": [1, 1]}) == [2]
    assert kills_told(it, it.execution_note()) == []
    # The agent may have made up what it says, and older ones say nothing.
    assert kills_told(it, {}) == []
    for said in ([9, 9], "x", [1], None):
        assert kills_told(it, {"counted": said}) == [], said
    assert kills_told(it, {"counted": [-5, 1]}) == [3]


MOUNTS = "25 1 0:22 / /proc rw - proc proc rw\n"


def host(tmp_path: Path, *, mounts: str, group: str, controllers: str = "cpu memory pids") -> Path:
    """A root directory with what is read of /proc and /run, and a tree of groups beside."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS + mounts)
    (tmp_path / "proc/self/cgroup").write_text(f"4:memory:/x\n{group}\n")
    (tmp_path / "groups/own").mkdir(parents=True)
    (tmp_path / "groups/cgroup.controllers").write_text(controllers)
    (tmp_path / "groups/own/cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "groups/own/cgroup.subtree_control").write_text("")
    return tmp_path


def mounted(tmp_path: Path, root: str = "/") -> str:
    return f"30 25 0:26 {root} {tmp_path}/groups rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_the_group_of_this_process_is_found(tmp_path: Path) -> None:
    place = find_place(str(host(tmp_path, mounts=mounted(tmp_path), group="0::/own")))
    assert place.directory == f"{tmp_path}/groups/own"
    assert place.alone
    assert place.ours  # nobody manages this host
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert not find_place(str(tmp_path)).ours  # systemd does, and has not delegated it
    (tmp_path / "groups/own/cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    assert not find_place(str(tmp_path)).alone


@pytest.mark.parametrize(
    ("mounts", "group", "controllers", "why"),
    [
        ("", "0::/own", "memory pids", "cgroup v2 is not mounted"),
        ("MOUNT", "0::/own", "hugetlb", "the controllers of memory and processes are not in"),
        ("MOUNT", "0::/../other", "memory pids", "own group is not in the tree"),
        ("MOUNT", "1:name=systemd:/", "memory pids", "own group is not in the tree"),
    ],
)
def test_a_host_without_control_groups_says_why(
    tmp_path: Path, mounts: str, group: str, controllers: str, why: str
) -> None:
    mounts = mounts and mounted(tmp_path, "/" if "other" not in group else "/docker/1")
    root = host(tmp_path, mounts=mounts, group=group, controllers=controllers)
    with pytest.raises(NoGroupsError, match=why) as error:
        find_place(str(root))
    assert error.value.fix


@pytest.mark.parametrize(("mount_root", "group"), [("/", "/a/b"), ("/a", "/a/b"), ("/a/b", "/a/b")])
def test_a_process_whose_group_is_frozen(tmp_path: Path, mount_root: str, group: str) -> None:
    mount_point = tmp_path / "mounted"
    own = mount_point / os.path.relpath(group, mount_root)
    own.mkdir(parents=True)
    mounted = f"30 23 0:26 {mount_root} {mount_point} rw - cgroup2 cgroup2 rw\n"
    for path, text in (("self/mountinfo", mounted), ("7/cgroup", f"0::{group}\n")):
        (tmp_path / "proc" / path).parent.mkdir(parents=True)
        (tmp_path / "proc" / path).write_text(text)
    assert not is_frozen(7, str(tmp_path))  # the root group has no such file
    for frozen in (0, 1):
        (own / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
        assert is_frozen(7, str(tmp_path)) is bool(frozen)
    assert not is_frozen(8, str(tmp_path))


WEIGHT = 200
LOW = str(WEIGHT // PART)


class Session:
    """A confinement and what is in its group's file."""

    def __init__(self, fake: FakeTree, jail: FakeJail, weight: int = WEIGHT) -> None:
        limited = replace(spec(), environment=replace(PYTHON, cpu_weight=weight))
        tree = GroupTree(str(fake.top))
        self.group = Group.new(tree, f"s{weight}", limits_of(limited, SessionLimits()))
        enforcement = enforcement_by(self.group.holds, "")
        self.it = Confinement(jail, self.group.limits, enforcement, self.group)

    @property
    def weight(self) -> str:
        return (Path(self.group.directory) / "cpu.weight").read_text().strip()

    def look(self, processes: int = AT_REST) -> bool:
        return self.it.end_excess(Measured(processes, 0, []))

    def run(self) -> None:
        self.it.begun()

    def end(self) -> None:
        assert self.it.ended(FINE) == ()


@pytest.fixture
def session(fake: FakeTree, jail: FakeJail) -> Session:
    return Session(fake, jail)


def test_a_long_execution_has_less_until_it_ends(session: Session) -> None:
    session.run()
    assert session.look()
    assert session.weight == str(WEIGHT)  # it may have begun just before
    assert session.look()
    assert session.weight == LOW
    assert session.it.facts()["cpu_weight"] == int(LOW)
    assert session.group.limits.cpu_weight == WEIGHT
    assert session.look()
    session.end()
    assert session.weight == str(WEIGHT)
    assert not session.look()
    assert session.weight == str(WEIGHT)


def test_processes_left_behind_have_less_of_the_processor(session: Session) -> None:
    session.run()
    session.look(AT_REST + 1)
    session.look(AT_REST + 1)
    session.end()
    assert session.weight == LOW  # what goes on is no younger for that
    session.run()
    assert session.weight == str(WEIGHT)
    assert session.look(AT_REST + 1)
    assert session.weight == LOW  # one look is enough: it was there before
    session.end()
    assert session.weight == LOW
    assert not session.look()
    assert session.weight == str(WEIGHT)


def writes_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    write: Callable[[str, str, str], None] = files.write_file
    seen: list[str] = []

    def count(directory: str, name: str, text: str) -> None:
        seen.append(text)
        write(directory, name, text)

    monkeypatch.setattr(files, "write_file", count)
    return seen


@pytest.mark.parametrize("answer", [OSError(1, "Operation not permitted"), "77"])
def test_a_kernel_that_does_not_take_it_is_not_asked_at_each_look(
    fake: FakeTree,
    session: Session,
    answer: OSError | str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake.refused["cpu.weight"] = answer
    seen = writes_of(monkeypatch)
    session.run()
    for _ in range(5):
        session.look()
    assert seen == [LOW]
    assert "cpu.weight: " in caplog.text
