"""Limits of sessions, kept by the kernel, however the supervisor was started."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vm.machines import Person


CONFIG = """
[defaults]
memory_mb = 64
workspace_mb = 8
tmp_mb = 8
shm_mb = 8
processes = 24
"""
GROUP_BYTES = (64 + 32 + 3 * 8) << 20
"""memory_mb, the agent's reserve, and the sizes of the file systems (docs/reference/policy.md)."""

SHARED_LOOP = """
import mmap
held = []
while True:
    piece = mmap.mmap(-1, 4 << 20)
    for at in range(0, len(piece), 4096):
        piece[at] = 1
    held.append(piece)
"""
"""Shared memory, which no limit of a process counts."""

FORK_LOOP = """
import os, signal
pids = []
try:
    while len(pids) < 100:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
except OSError as error:
    print(error.errno)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def status(person: Person) -> dict[str, Any]:
    """Return the mechanism of limits as the supervisor reports it."""
    limits: dict[str, Any] = person.reach()["limits"]
    return limits


def group_of(person: Person, session: str) -> str:
    pid = person.rows()[session]["pid"]
    return "/sys/fs/cgroup" + person.root(f"cat /proc/{pid}/cgroup").strip().removeprefix("0::")


def kernel_keeps_limits(person: Person) -> None:
    """A session with too much memory, and one with too many processes, beside one that works on."""
    found = status(person)
    assert (found["memory"], found["processes"], found["cpu"]) == ("cgroup", "cgroup", "cgroup")
    assert person.run("kept = 41", session="bystander")["exit_code"] == 0

    assert person.run("x = 1", session="eater")["exit_code"] == 0
    group = group_of(person, "eater")
    limits = person.root(f"cd {shlex.quote(group)} && cat memory.max pids.max cpu.weight").split()
    assert limits == [str(GROUP_BYTES), "23", "100"]
    eaten = person.run(SHARED_LOOP, session="eater")
    assert eaten["exit_code"] != 0
    assert any("memory limit" in note for note in eaten["notes"]), eaten
    assert person.run("print(6 * 7)", session="eater")["stdout"] == "42\n"

    forks = person.run(FORK_LOOP, session="forks")
    assert forks["stdout"] == "11\n", forks  # EAGAIN
    assert (
        int(person.root(f"cat {group_of(person, 'forks')}/pids.peak 2>/dev/null || echo 23")) < 24
    )

    assert person.run("print(kept + 1)", session="bystander")["stdout"] == "42\n"
    pid = person.reach()["pid"]
    person.nsm("kill", "--all").check()
    assert person.shell(f"test -e {shlex.quote(group)}").status == 1
    assert person.reach()["pid"] == pid


def test_the_kernel_keeps_limits_of_a_unit(ada: Person) -> None:
    ada.configure(CONFIG)
    ada.install_units()
    kernel_keeps_limits(ada)
    shown = ada.nsm("doctor").stdout
    assert [line for line in shown.splitlines() if line.startswith("FAIL")] == []
    ada.shell("systemctl --user disable --now nsm-supervisor.socket nsm-supervisor.service").check()


def test_the_kernel_keeps_limits_outside_of_any_login(ada: Person) -> None:
    """Cron or an editor's daemon may be such a client: the user's manager gives it a scope."""
    ada.configure(CONFIG)
    ada.start()
    kernel_keeps_limits(ada)
    pid = ada.reach()["pid"]
    assert f"nsm-supervisor-{pid}.scope" in ada.root(f"cat /proc/{pid}/cgroup")
    ada.nsm("shutdown").check()


def test_status_says_what_is_not_kept_without_a_service_manager(bob: Person) -> None:
    bob.configure(CONFIG)
    bob.start()
    found = status(bob)
    assert (found["memory"], found["processes"], found["cpu"]) == ("watchdog", "rlimit", "none")
    assert "service manager" in found["why"]
    eaten = bob.run(SHARED_LOOP, session="eater")
    assert any("memory limit" in note for note in eaten["notes"]), eaten
    assert bob.run("print(6 * 7)", session="eater")["stdout"] == "42\n"
    assert bob.run(FORK_LOOP, session="forks")["stdout"] == "11\n"
    bob.nsm("shutdown").check()


def test_the_kernel_keeps_limits_in_a_login_by_ssh(bob: Person) -> None:
    """Such a supervisor ends with the login unless the user lingers, so the login stays open
    here."""
    bob.configure(CONFIG)
    bob.shell(
        "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id && cp ~/.ssh/id.pub ~/.ssh/authorized_keys"
    )
    login = "ssh -i ~/.ssh/id -o StrictHostKeyChecking=no -o BatchMode=yes localhost"
    inside = f"{bob.bin}/nsm run -e python 1; {bob.wait}"
    done = bob.shell(f"{login} {shlex.quote(inside)}")
    assert done.status == 0, done
    assert '"memory": "cgroup"' in done.stdout, done


def test_the_kernel_keeps_limits_under_root(root: Person) -> None:
    root.configure(CONFIG)
    root.start()
    kernel_keeps_limits(root)
    assert root.rows() == {}


@pytest.mark.parametrize("name", ["ada", "root"])
def test_doctor_names_what_keeps_limits(name: str, request: pytest.FixtureRequest) -> None:
    person: Person = request.getfixturevalue(name)
    shown = person.nsm("doctor").stdout
    assert "cgroup" in shown or "control group" in shown, shown


def test_a_project_is_not_copied_on_write_there(ada: Person) -> None:
    """Directories of such a copy could not be removed or renamed (EIO)."""
    ada.start()
    code = f"{ada.bin}/nsm run --project-mode overlay -e bash 'touch /project/new'"
    done = ada.shell(f"mkdir -p ~/p && cd ~/p && {code}")
    assert done.status == 125, done
    assert "cannot be shown copy-on-write" in done.stderr, done
    assert ada.shell("ls ~/p").stdout == ""


TIMEOUT_S = 900.0


def test_the_tests_of_real_control_groups(ada: Person) -> None:
    """They move themselves into a scope of the user's manager."""
    pytest = f"{ada.bin}/python -m pytest -q tests/supervisor/jail/limits/test_real.py"
    line = f"cd {ada.clone} && NSM_TEST_GROUPS=1 {pytest}"
    done = ada.shell(line, timeout_s=TIMEOUT_S)
    assert done.status == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
