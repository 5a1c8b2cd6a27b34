"""Requests to systemd, and the use of its answers; programs stand in for its own."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from cgroup_programs import Programs
from nsmd.jail.limits import systemd
from nsmd.jail.limits.systemd import attach, enter_scope
from nsmd.jail.limits.tree import GroupPlace, NoGroupsError

HERE = GroupPlace(
    mount_point="/sys/fs/cgroup",
    directory="/sys/fs/cgroup/user.slice/session-3.scope",
    unit="session-3.scope",
    delegated=False,
    alone=False,
    managed=True,
)
NAME = f"nsm-supervisor-{os.getpid()}.scope"


async def test_one_scope_around_this_process(programs: Programs) -> None:
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


async def test_what_systemd_refuses_is_said(programs: Programs) -> None:
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


async def test_no_manager(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "systemd/private").unlink()
    with pytest.raises(NoGroupsError, match="no service manager of this user runs"):
        await enter_scope(HERE, programs.variables)
    (tmp_path / "systemd/private").write_text("")
    (tmp_path / "busctl").unlink()
    os.environ["PATH"] = str(tmp_path)
    with pytest.raises(NoGroupsError, match="busctl cannot be run: No such file"):
        await enter_scope(HERE, programs.variables)


async def test_a_services_main_process_stays_where_it_is(programs: Programs) -> None:
    service = GroupPlace(
        mount_point="/sys/fs/cgroup",
        directory="/sys/fs/cgroup/nsm.service",
        unit="nsm.service",
        delegated=False,
        alone=True,
        managed=True,
    )
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


async def test_nothing_is_moved_to_where_it_would_end_sooner(
    programs: Programs, lingering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingering.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # the system's manager serves root
    with pytest.raises(NoGroupsError, match="end with your last login"):
        await attach(SCOPE, f"{SCOPE}/sessions/box-1", [7], programs.variables)
    assert programs.asked() == []
