"""Control groups, lingering, and what a logout ends."""

from __future__ import annotations

import pytest

from doctor_world import World, named
from nsmd.doctor.system import check_service


def test_version_2(world: World) -> None:
    row = named(check_service(world.host), "control groups")
    assert (row.status, row.detail) == ("ok", "version 2")
    assert "does not run here" in named(check_service(world.host), "systemd").detail


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
