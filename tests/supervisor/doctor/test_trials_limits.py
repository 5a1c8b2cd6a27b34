"""Findings of the doctor about limits."""

from __future__ import annotations

from nsm.checks import HostCheck
from nsmd.doctor.trials import LimitsTrial, check_limits
from nsmd.model.values import Enforcement

GROUPS = Enforcement(memory="cgroup", processes="cgroup", cpu="cgroup")
NONE = Enforcement(memory="watchdog", processes="rlimit", cpu="none", why="cgroup v2 is absent")


def rows(seen: LimitsTrial, release: str = "6.1.0") -> dict[str, HostCheck]:
    return {check.name: check for check in check_limits(seen, release)}


def test_groups() -> None:
    found = rows(LimitsTrial(enforcement=GROUPS, where="/sys/fs/cgroup/a"))
    assert [check.status for check in found.values()] == ["ok", "ok", "ok"]
    assert "below /sys/fs/cgroup/a, read back" in found["memory limit"].detail


def test_none() -> None:
    found = rows(LimitsTrial(enforcement=NONE, fix="Boot otherwise."))
    assert [check.status for check in found.values()] == ["warn", "ok", "warn"]
    assert "cgroup v2 is absent. Instead, a watchdog" in found["memory limit"].detail
    assert found["memory limit"].fix == "Boot otherwise."
    assert found["processor share"].fix == "As for the memory limit."


def test_older_kernels_count_a_users_processes_together() -> None:
    assert rows(LimitsTrial(enforcement=NONE), "5.10.0-1")["process limit"].status == "warn"
    assert rows(LimitsTrial(enforcement=NONE), "5.14.0")["process limit"].status == "ok"


def test_a_controller_that_is_not_delegated() -> None:
    kept = Enforcement(memory="cgroup", processes="cgroup", cpu="none", why="not delegated: cpu")
    found = rows(LimitsTrial(enforcement=kept, where="/x"))
    assert found["memory limit"].status == "ok"
    assert "Have the cpu controller delegated" in found["processor share"].fix
