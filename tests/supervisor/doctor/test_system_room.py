"""Descriptors, processes, memory, watchers and the clock."""

from __future__ import annotations

import resource

import pytest

from doctor_world import World, named
from nsmd.doctor.system import BORN_S, check_room, clock, descriptors, processes
from nsmd.model.settings import PoolSettings, SessionSettings, Settings


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
