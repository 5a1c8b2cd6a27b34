"""Limits of boxes: what programs get of the machine, and what they are told at the end of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from box.attack import IN_BOX, INSTANCES
from box.world import HOME, PROJECT
from nsmbox.model.plan import INODES_PER_MB
from processes import ending
from realjail import needs_bwrap

if TYPE_CHECKING:
    from box.world import World

pytestmark = [pytest.mark.jail, needs_bwrap]

FILLS = """
import json, os, sys
told = {}
for path in sys.argv[1:]:
    with open(path + "/big", "wb", 0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError as error:
            told[path] = [file.tell() >> 20, error.strerror]
    os.unlink(path + "/big")
print(json.dumps(told))
"""

FEW = ("--limit", "descriptors=64")

FORKS = """
import os, signal
children = []
try:
    while len(children) < 500:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
    print("all of them")
except OSError as error:
    print(len(children), error.strerror)
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""

WATCHES = """
import ctypes, os
libc = ctypes.CDLL(None)
held = 0
while libc.inotify_init1(0) >= 0:
    held += 1
print(held)
"""

OPENS = """
import os, resource
held = []
try:
    while len(held) < 5000:
        held.append(os.dup(0))
    print("all of them")
except OSError as error:
    print(len(held), error.strerror, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""


def python(world: World, code: str, *words: str, options: tuple[str, ...] = ()) -> str:
    done = world.box("env", IN_BOX, "-I", "-c", code, *words, options=options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_system_in_memory_that_is_full_says_so(shared_world: World) -> None:
    places = {"/tmp": 3, "/var/tmp": 3, "/dev/shm": 2, HOME: 4}
    options = ("--limit", "tmp_mb=3", "--limit", "shm_mb=2", "--limit", "home_mb=4")
    told = json.loads(python(shared_world, FILLS, *places, options=options))
    assert {path: words for path, (_, words) in told.items()} == dict.fromkeys(
        places, "No space left on device"
    )
    assert all(most - 1 <= told[path][0] <= most for path, most in places.items())


def test_a_fork_bomb_has_so_many_processes(shared_world: World) -> None:
    said = python(shared_world, FORKS, options=("--limit", "processes=40"))
    count, _, words = said.partition(" ")
    assert words == "Resource temporarily unavailable"
    # Besides, there are bwrap's own, and this program.
    assert 36 <= int(count) < 40
    assert python(shared_world, FORKS) == "all of them"


def test_half_of_inotify_is_left_to_others(shared_world: World) -> None:
    assert int(python(shared_world, WATCHES)) == int(INSTANCES.read_text()) // 2


def test_a_process_has_so_many_descriptors(shared_world: World) -> None:
    said = python(shared_world, OPENS, options=("--limit", "descriptors=100"))
    count, _, rest = said.partition(" ")
    assert rest == "Too many open files 100"
    assert 80 < int(count) < 100


def test_few_descriptors_are_enough_for_what_runs_in_the_box(shared_world: World) -> None:
    """bwrap needs one for each mount, before that."""
    shared_world.write(f"{PROJECT}/.git/config", "[core]\n")
    done = shared_world.box("sh", "-c", "ulimit -Sn; ulimit -Hn", options=FEW)
    assert done.stdout == "64\n64\n", done.stderr


@pytest.mark.slow
def test_many_directories_may_take_more_descriptors_than_a_shell_allows(world: World) -> None:
    added: list[str] = []
    for number in range(30):
        world.write(f"/home/shared/of/{number}/a", "")  # an empty one takes few
        added += ["--add", f"/home/shared/of/{number}:rw"]
    words = ("nsm", "box", "--yes", *added, "--", "sh", "-c", "ulimit -Sn")
    done = world.run("sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", *words)
    assert int(done.stdout) > 1024, done.stderr
    done = world.run("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *words)
    assert done.returncode == 1
    assert "mounts, and bwrap needs a descriptor for most of them" in done.stderr
    assert "ulimit -n 8192" in done.stderr
    assert not world.host("/home/shared/of/1/.mcp.json").exists()


@pytest.mark.slow
def test_limits_are_configured(world: World) -> None:
    world.write(f"{HOME}/.config/nsm/config.toml", "[box]\nprocesses = 40\n")
    assert python(world, FORKS).endswith("Resource temporarily unavailable")
    assert python(world, FORKS, options=("--limit", "processes=900")) == "all of them"


HOG = """
import subprocess, sys
child = subprocess.run(
    [sys.executable, "-c", "import time; held = bytes(1) * (600 << 20); time.sleep(60)"],
    stderr=subprocess.PIPE,
    text=True,
)
print(child.returncode, child.stderr.strip())
"""


def test_the_process_with_most_memory_ends_and_all_are_told(world: World) -> None:
    with world.supervisor():
        done = world.box(*("env", IN_BOX, "-I", "-c", HOG), options=("--limit", "memory_mb=300"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("-9 ")
        if os.geteuid() == 0:
            # An ordinary user's supervisor is in a user namespace beside the box's in these tests,
            # and cannot write to what runs there.
            assert "-9 nsm: this process was ended: the box had more than its" in done.stdout
        assert (
            "nsm box: 1 process was ended because the box had more than its 300 MiB" in done.stderr
        )


@pytest.mark.slow
def test_without_a_supervisor_each_process_has_a_limit_of_memory(shared_world: World) -> None:
    code = "try: held = bytes(1) * (200 << 20)\nexcept MemoryError: print('no more')"
    words = ("env", IN_BOX, "-I", "-c", code)
    done = shared_world.box(*words, options=("--limit", "memory_mb=100"))
    assert done.stdout == "no more\n", done.stderr
    assert "its limit of memory is for each process alone" in done.stderr
    assert shared_world.box(*words).stdout == ""


@pytest.mark.slow
def test_lists_show_limits_and_use(world: World) -> None:
    with world.supervisor():
        held = world.popen(
            *("nsm", "box", "--yes", "--limit", "processes=50", "--limit", "memory_mb=400", "--"),
            *(
                "env",
                IN_BOX,
                "-c",
                "held = bytes(1) * (90 << 20); print('up', flush=True); input()",
            ),
        )
        with ending(held):
            assert held.stdout is not None
            assert held.stdout.readline() == b"up\n"
            use: dict[str, int] = {}
            while (use.get("memory_bytes") or 0) < 90 << 20:  # the watchdog looks twice a second
                listed = json.loads(world.run("nsm", "box", "--list", "--json").stdout)
                use = listed[0]["limits"]
            assert use["process_limit"] == 50
            assert use["memory_limit_bytes"] == 400 << 20
            assert 3 <= use["processes"] <= 6
            assert use["killed"] == 0
            rows = world.run("nsm", "box", "--list").stdout
            assert "/50 " in rows
            assert "/400 MiB" in rows
            top = world.run("nsm", "top", "-b", "1", "-d", "0.5").stdout
            assert "processes " in top
            assert "/400 MiB" in top


FILES = """
import json, os, sys
told = {}
for path in sys.argv[1:]:
    made = 0
    try:
        while made < 5000:
            os.close(os.open(f"{path}/{made}", os.O_CREAT))
            made += 1
        told[path] = [made, ""]
    except OSError as error:
        told[path] = [made, error.strerror]
    for number in range(made):
        os.unlink(f"{path}/{number}")
print(json.dumps(told))
"""


@pytest.mark.slow
def test_empty_files_are_limited_too(shared_world: World) -> None:
    """They take no room in the file system, but memory of the kernel's."""
    places = ("/tmp", "/var/tmp", "/dev/shm", HOME)
    options = [word for name in ("tmp", "shm", "home") for word in ("--limit", f"{name}_mb=9")]
    told = json.loads(python(shared_world, FILES, *places, options=tuple(options)))
    most = 9 * INODES_PER_MB
    assert {path: words for path, (_, words) in told.items()} == dict.fromkeys(
        places, "No space left on device"
    )
    assert all(most - 64 < made < most for made, _ in told.values()), told
