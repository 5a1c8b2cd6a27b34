"""The world that boxes are tested in is what the tests take it for."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

from box.world import HOME, PROJECT, SECRET, SECRETS, SOCKETS, git, have_git
from processes import ending

if TYPE_CHECKING:
    from box.world import World

LOOK = """\
import json, os, pathlib, socket, sys
home = pathlib.Path.home()
def connected(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
    return True
print(json.dumps({
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()],
    "home": str(home), "cwd": os.getcwd(), "pid": os.getpid(),
    "secrets": {p: (home / p).read_text() for p in sys.argv[1].split("\\n")},
    "sockets": [connected(p) for p in sys.argv[2].split("\\n")],
    "root": os.access("/root", os.W_OK),
}))
"""


def test_a_program_is_adas_and_finds_her_things(shared_world: World) -> None:
    world = shared_world
    sockets = [path.replace("UID", str(world.uid)) for path in SOCKETS.values()]
    with ending(
        world.popen("/usr/bin/python3", "-I", "-c", LOOK, "\n".join(SECRETS), "\n".join(sockets))
    ) as started:
        out, errors = started.communicate()
    assert (started.returncode, errors) == (0, b"")
    seen = json.loads(out)
    assert seen["ids"][:3] == [world.uid, world.uid, world.gid]
    assert world.uid != 0
    assert (seen["home"], seen["cwd"], seen["pid"]) == (HOME, PROJECT, started.pid)
    assert seen["secrets"] == {p: f"{SECRET}{what}\n" for p, what in SECRETS.items()}
    assert all(seen["sockets"])
    assert not seen["root"]


def test_signals_and_exit_codes_are_the_programs_own(shared_world: World) -> None:
    assert shared_world.run("sh", "-c", "exit 41").returncode == 41
    with ending(shared_world.popen("sh", "-c", "echo up; read line", stderr=None)) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        shell.send_signal(signal.SIGTERM)
        assert shell.wait() == -signal.SIGTERM


def test_files_are_hers_and_git_works(world: World) -> None:
    have_git(world)
    assert git(world, "log", "-1", "--format=%an <%ae>") == "Ada Lovelace <ada@example.org>\n"
    made = world.host(PROJECT) / ".git" / "HEAD"
    assert made.stat().st_uid == world.uid


def test_claude_of_the_world_says_how_it_was_called(shared_world: World) -> None:
    told = shared_world.run("claude", "--flag", "a b", "")
    assert told.stdout == "<--flag>\n<a b>\n<>\n", told.stderr
    run: subprocess.CompletedProcess[str] = shared_world.run("claude", "--flag", "run", "id", "-u")
    assert run.stdout == f"{shared_world.uid}\n"
