"""Limits of boxes, kept by the kernel, wherever a box was started."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from vm.test_limits import FORK_LOOP, SHARED_LOOP

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from guestmachine import Done
    from vm.machines import Person

LIMITS = {"memory_mb": 120, "processes": 60, "cpu_weight": 300}
SIZES = dict.fromkeys(("home_mb", "tmp_mb", "shm_mb"), 8)
GROUP_BYTES = (120 + 32 + 4 * 8) << 20
"""memory_mb, what the kernel needs, and the file systems: HOME, /tmp, /var/tmp, /dev/shm."""

SPINS = """
import os, sys, time
os.sched_setaffinity(0, {0})
while time.time() < float(sys.argv[1]):
    pass
begun = time.process_time()
while time.time() < float(sys.argv[1]) + 10:
    pass
print(time.process_time() - begun)
"""

OTHERS = """
import ctypes, os, resource
def fill(path):
    with open(path, "wb", 0) as file:
        try:
            while file.tell() < 64 << 20:
                file.write(bytes(1 << 20))
        except OSError as error:
            print(error.errno, file.tell() >> 20 in (7, 8))
    os.unlink(path)
def crowd(path):
    try:
        for number in range(5000):
            os.close(os.open(f"{path}/{number}", os.O_CREAT))
    except OSError as error:
        print(error.errno, 900 < number < 1024)
for path in (os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm"):
    fill(path + "/big")
    crowd(path)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
libc, held = ctypes.CDLL(None), 0
while libc.inotify_init1(0) >= 0:
    held += 1
print(held)
"""


def command(
    person: Person, *words: str, limits: Mapping[str, int] = LIMITS, under: str = ""
) -> str:
    """A line for the shell that starts a box in the project."""
    options = [f"--limit={name}={value}" for name, value in {**SIZES, **limits}.items()]
    box = shlex.join([f"{person.bin}/nsm", "box", "--yes", *options, "--", *words])
    return f"mkdir -p ~/project && cd ~/project && {under} {box}"


def box(person: Person, *words: str, limits: Mapping[str, int] = LIMITS) -> Done:
    """A box, to its end."""
    return person.shell(command(person, *words, limits=limits))


def begin(person: Person, *words: str, under: str = "") -> dict[str, Any]:
    """Start a box that goes on; its row."""
    before = {row["id"] for row in boxes(person)}
    line = command(person, *words, under=f"setsid {under}")
    person.shell(f"({{ {line}; }} </dev/null >~/said 2>&1 &)").check()
    for _ in range(60):
        person.shell("sleep 0.5")
        for row in boxes(person):
            if row["id"] not in before and (row["limits"]["processes"] or 0) > 2:
                return row
    raise AssertionError(person.shell("cat ~/said").stdout)


def boxes(person: Person) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(person.nsm("box", "--list", "--json").check())
    return rows


def end(person: Person, row: Mapping[str, Any]) -> None:
    person.root(f"kill {row['pid']}; while test -e /proc/{row['pid']}; do sleep 0.1; done")


def group_of(person: Person, pid: int) -> str:
    return "/sys/fs/cgroup" + person.root(f"cat /proc/{pid}/cgroup").strip().removeprefix("0::")


def has_gone(person: Person, group: str) -> bool:
    line = f"for _ in $(seq 50); do test -e {shlex.quote(group)} || exit 0; sleep 0.2; done; exit 1"
    return person.shell(line).status == 0


@pytest.fixture(scope="module")
def running(ada: Person) -> Generator[Person]:
    """A supervisor that a client has started, outside of any login, with a session that lives."""
    ada.start()
    assert ada.run("kept = 41", session="bystander")["exit_code"] == 0
    yield ada
    ada.nsm("shutdown")


def nobody_else_was_hit(person: Person, pid: int) -> None:
    assert person.run("print(kept + 1)", session="bystander")["stdout"] == "42\n"
    assert person.reach()["pid"] == pid


def test_a_group_of_its_own(running: Person) -> None:
    """The box comes from a service of the system, so only systemd can move it."""
    row = begin(running, "sleep", "600")
    group = group_of(running, row["pid"])
    assert group.endswith(f"/sessions/box-{row['id']}")
    shown = running.root(f"cd {shlex.quote(group)} && cat memory.max pids.max cpu.weight")
    assert shown.split() == [str(GROUP_BYTES), "59", "300"]
    sleeper = running.root("until pgrep -u ada -x sleep -n; do sleep 0.2; done").strip()
    assert group_of(running, int(sleeper)) == group

    assert row["limits"]["memory_by"] == "cgroup", row
    assert row["limits"]["why"] is None
    listed = running.nsm("box", "--list").check()
    assert "/60 " in listed
    assert "/120 MiB  cgroup" in listed, listed
    top = running.nsm("top", "-b", "1", "-d", "0.5").check()
    assert "/120 MiB (cgroup)" in top, top

    end(running, row)
    assert has_gone(running, group)
    assert boxes(running) == []


def test_a_fork_bomb(running: Person) -> None:
    pid = running.reach()["pid"]
    done = box(running, "python3", "-c", FORK_LOOP)
    assert done.stdout == "11\n", done  # EAGAIN
    nobody_else_was_hit(running, pid)


def test_memory_ends_a_process_of_the_box_alone(running: Person) -> None:
    pid = running.reach()["pid"]
    done = box(running, "sh", "-c", 'python3 -c "$1"; echo $?', "-", SHARED_LOOP)
    assert done.stdout == "137\n", done
    assert "ended because the box had more than its 120 MiB" in done.stderr, done
    nobody_else_was_hit(running, pid)


def test_a_weight_of_the_processor(running: Person) -> None:
    spins = ("sh", "-c", 'python3 -c "$1" "$(cat at)" >"$2"', "-", SPINS)
    weights = {"light": 100, "heavy": 1000}
    started = [
        f"({command(running, *spins, name, limits={'cpu_weight': weight})}) &"
        for name, weight in weights.items()
    ]
    at = "mkdir -p ~/project && echo $(($(date +%s) + 20)) >~/project/at"
    running.shell("\n".join([at, *started, "wait"])).check()
    told = running.shell("cd ~/project && cat light heavy").stdout.split()
    light, heavy = map(float, told)
    assert heavy > 3 * light, told


def test_a_box_bounds_files_descriptors_and_inotify(running: Person) -> None:
    most = int(running.shell("cat /proc/sys/fs/inotify/max_user_instances").stdout)
    done = box(running, "python3", "-c", OTHERS, limits={"descriptors": 300})
    assert done.stdout.split("\n")[:-1] == [
        *(["28 True", "28 True"] * 4),
        "(300, 300)",
        str(min(most // 2, 290)),
    ], done


def test_a_box_holds_after_a_restart(ada: Person) -> None:
    ada.nsm("shutdown")
    ada.install_units()
    ada.reach()
    ada.shell("mkdir -p ~/project && mkfifo ~/project/go").check()
    row = begin(ada, "sh", "-c", 'read x <go; python3 -c "$1" >said', "-", FORK_LOOP)
    group = group_of(ada, row["pid"])
    assert "/nsm-sessions-" in group
    for how in ("restart", "kill -s KILL"):
        ada.shell(f"systemctl --user {how} nsm-supervisor.service").check()
        ada.reach()
        (now,) = boxes(ada)
        assert now["limits"]["memory_by"] == "cgroup", now
        assert group_of(ada, row["pid"]) == group
    ada.shell(
        "cd ~/project && echo x >go; for _ in $(seq 60); do test -s said && exit; sleep 1; done"
    )
    assert ada.shell("cat ~/project/said").stdout == "11\n"
    assert has_gone(ada, group)


def test_a_login_that_ends_takes_no_box_with_it(bob: Person) -> None:
    """Without lingering, groups of nsm's end with the last login: the watchdog takes over."""
    bob.shell(
        "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id && cp ~/.ssh/id.pub ~/.ssh/authorized_keys"
    )
    login = "ssh -i ~/.ssh/id -o StrictHostKeyChecking=no -o BatchMode=yes localhost"
    begun = f"{{ {command(bob, 'sleep', '600')}; }} </dev/null >/dev/null 2>&1 &"
    listing = f"{bob.bin}/nsm box --list"
    wait = f"for _ in $(seq 30); do {listing} | grep -q MiB && break; sleep 1; done; {listing}"
    lines = ["cd /", f"{bob.bin}/nsm run -e python 1; {bob.wait}", begun, wait, "pkill -x sleep"]
    inside = shlex.quote("\n".join(lines))
    done = bob.shell(f"{login} {inside}", timeout_s=300)
    assert "  watchdog  " in done.stdout, done
    assert "`loginctl enable-linger` prevents that" in done.stdout, done

    bob.root("loginctl enable-linger bob")
    done = bob.shell(f"{login} {inside}", timeout_s=300)
    assert "  cgroup  " in done.stdout, done
