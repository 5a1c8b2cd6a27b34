"""User namespaces, AppArmor, containers, and what covers /proc."""

from __future__ import annotations

import re
import resource

import pytest

from doctor_world import World, named
from nsm.cli.main import load
from nsmd.doctor.system import (
    BORN_S,
    check_kernel,
    check_landlock,
    check_room,
    check_service,
    clock,
    descriptors,
    processes,
)
from nsmd.model.settings import PoolSettings, SessionSettings, Settings


@pytest.mark.parametrize(
    ("path", "text", "fix"),
    [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_parser -r"),
        ("/sys/module/user_namespace/parameters/enable", "N", "user_namespace.enable=1"),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_told(
    world: World, path: str, text: str, fix: str
) -> None:
    world.file(path, f"{text}\n")
    row = named(check_kernel(world.host, jails_work=False), "user namespaces")
    assert row.status == "fail"
    assert fix in row.fix
    assert named(check_kernel(world.host, jails_work=True), "user namespaces").status == "warn"


def test_a_kernel_without(world: World) -> None:
    (world.root / "proc/self/ns/user").unlink()
    row = named(check_kernel(world.host, jails_work=False), "user namespaces")
    assert (row.status, "CONFIG_USER_NS" in row.fix) == ("fail", True)


@pytest.mark.parametrize(
    ("profile", "status"),
    [
        ("profile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n", "ok"),
        ("profile bwrap /usr/bin/bwrap flags=(unconfined) {\n  # userns,\n}\n", "fail"),
        ("profile other /usr/bin/other flags=(unconfined) {\n  userns,\n}\n", "fail"),
    ],
)
def test_a_profile_that_allows_them(world: World, profile: str, status: str) -> None:
    world.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    world.file("/etc/apparmor.d/something", profile)
    assert named(check_kernel(world.host, jails_work=False), "user namespaces").status == status


def test_few_namespaces(world: World) -> None:
    world.file("/proc/sys/user/max_net_namespaces", "200\n")
    row = named(check_kernel(world.host, jails_work=True), "user namespaces")
    assert row.status == "warn"
    assert "user.max_net_namespaces is 200" in row.detail
    assert "sysctl user.max_net_namespaces=15000" in row.fix


def test_a_container(world: World) -> None:
    world.file("/.dockerenv")
    world.file("/proc/self/status", "Name:\tx\nSeccomp:\t2\n")
    row = named(check_kernel(world.host, jails_work=True), "container")
    assert (row.status, row.fix) == ("ok", "")
    row = named(check_kernel(world.host, jails_work=False), "container")
    assert (row.status, "seccomp=unconfined" in row.fix) == ("warn", True)
    assert "filtered" in row.detail
    host = world.but(variables={"container": "lxc"})
    (world.root / ".dockerenv").unlink()
    assert "(lxc)" in named(check_kernel(host, jails_work=True), "container").detail


def test_a_covered_proc(world: World) -> None:
    world.mounts(("/", "ext4"), ("/proc/sys/fs/binfmt_misc", "autofs"), ("/proc/kcore", "tmpfs"))
    row = named(check_kernel(world.host, jails_work=True), "/proc")
    assert row.detail.startswith("covered at /proc/kcore, so")
    assert "systempaths=unconfined" in row.fix


def test_landlock() -> None:
    none, old, new = map(check_landlock, (0, 5, 6))
    assert (none.status, old.status, new.status) == ("warn", "ok", "ok")
    assert "read your files" in none.detail
    assert "lsm=" in none.fix
    assert "cannot be forked" in old.detail
    assert new.detail == "version 6"


# Descriptors, processes, memory, watchers and the clock.


def test_descriptors() -> None:
    many = Settings(session=SessionSettings(max_sessions=250), pool=PoolSettings(max_spares=16))
    assert descriptors(524288, many).status == "ok"
    row = descriptors(512, many)
    assert (row.status, "266" in row.detail, "LimitNOFILE" in row.fix) == ("warn", True, True)
    few = Settings(session=SessionSettings(max_sessions=5), pool=PoolSettings(max_spares=0))
    assert descriptors(512, few).status == "ok"


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("/proc/sys/kernel/threads-max", "kernel.threads-max"),
        ("/proc/sys/kernel/pid_max", "kernel.pid_max"),
        ("/sys/fs/cgroup/user.slice/user-1000.slice/pids.max", "TasksMax of the user's slice"),
    ],
)
def test_processes(world: World, file: str, what: str) -> None:
    unlimited = resource.RLIM_INFINITY
    assert processes(world.host, unlimited).detail == "no limit found"
    assert processes(world.host, 5000).detail == "at most 5000 (ulimit -u)"
    world.file(file, "300\n")
    row = processes(world.host, unlimited)
    assert (row.status, f"at most 300 ({what})" in row.detail) == ("warn", True)
    world.file(file, "max\n")
    assert processes(world.host, unlimited).status == "ok"


def test_memory(world: World) -> None:
    settings = Settings()
    row = named(check_room(world.host, settings), "memory")
    assert (row.status, row.detail) == ("ok", "3906 MiB available")
    (world.root / "proc/pressure/memory").unlink()
    assert "psi=1" in named(check_room(world.host, settings), "memory").detail
    world.file("/proc/meminfo", "MemAvailable: 100000 kB\n")
    row = named(check_room(world.host, settings), "memory")
    assert (row.status, "max_spares = 0" in row.fix) == ("warn", True)
    (seconds,) = re.findall(r"nsm kill --idle (\w+)", row.fix)
    assert load("kill").parser().parse_args(["--idle", seconds]).idle == 3600
    world.file("/proc/meminfo", "")
    assert named(check_room(world.host, settings), "memory").status == "warn"


def test_watchers(world: World) -> None:
    world.file("/proc/sys/fs/inotify/max_user_instances", "128\n")
    assert "inotify" not in [row.name for row in check_room(world.host, Settings())]
    world.file("/proc/sys/fs/inotify/max_user_instances", "4\n")
    assert named(check_room(world.host, Settings()), "inotify").status == "warn"


def test_the_clock() -> None:
    assert clock(BORN_S).status == "ok"
    row = clock(0.0)
    assert (row.status, row.detail.startswith("1970-01-01")) == ("warn", True)


# Control groups, lingering, and what a logout ends.


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ([], "none are mounted"),
        ([("/sys/fs/cgroup/memory", "cgroup")], "version 1 only"),
        (
            [("/sys/fs/cgroup/unified", "cgroup2"), ("/sys/fs/cgroup/cpu,cpuacct", "cgroup")],
            "hybrid: cpu,cpuacct belong to version 1",
        ),
    ],
)
def test_older_hierarchies(world: World, mounts: list[tuple[str, str]], words: str) -> None:
    world.mounts(*mounts)
    row = named(check_service(world.host), "control groups")
    assert row.status == "warn"
    assert words in row.detail
    assert "unified_cgroup_hierarchy" in row.fix


def test_lingering(world: World) -> None:
    world.file("/run/systemd/system/x")
    row = named(check_service(world.host), "lingering")
    assert (row.status, row.fix) == ("warn", "loginctl enable-linger me")
    world.file("/var/lib/systemd/linger/me")
    assert named(check_service(world.host), "lingering").status == "ok"
    assert [row.name for row in check_service(world.but(uid=0))] == ["control groups"]


@pytest.mark.parametrize(
    ("main", "dropped_in", "warned"),
    [
        ("[Login]\n#KillUserProcesses=yes\n", "", False),
        ("[Login]\nKillUserProcesses=yes\n", "", True),
        ("[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n", False),
        ("no section\n", "[Login]\nKillUserProcesses=1\n", True),
    ],
)
def test_a_logout_that_kills(world: World, main: str, dropped_in: str, warned: bool) -> None:
    world.file("/run/systemd/system/x")
    world.file("/etc/systemd/logind.conf", main)
    world.file("/etc/systemd/logind.conf.d/50.conf", dropped_in)
    assert ("logout" in [row.name for row in check_service(world.host)]) is warned
