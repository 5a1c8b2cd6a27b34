"""User namespaces, AppArmor, containers, and what covers /proc."""

from __future__ import annotations

import pytest

from doctor_world import World, named
from nsmd.doctor.system import check_kernel, check_landlock


def test_a_host_that_forbids_nothing(world: World) -> None:
    (row,) = check_kernel(world.host, jails_work=True)
    assert (row.name, row.status, row.detail) == ("user namespaces", "ok", "not forbidden")


@pytest.mark.parametrize(
    ("path", "text", "fix"),
    [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_parser -r"),
        ("/sys/module/user_namespace/parameters/enable", "N", "user_namespace.enable=1"),
    ],
)
def test_what_forbids_user_namespaces(world: World, path: str, text: str, fix: str) -> None:
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
