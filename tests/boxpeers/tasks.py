"""Ordinary work, which a sandbox has to let be done."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Generator
from dataclasses import dataclass

from box.world import PROJECT, have_git, open_world
from boxpeers.sandboxes import Sandbox, started

POOL = """\
import multiprocessing
from multiprocessing import shared_memory
if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(abs, range(-10, 10))))
    block.close()
    block.unlink()
"""

SERVER = """\
import http.server, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/README.md").status)
"""

LOCAL = """\
import os, socket
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    server.bind("here.sock")
    server.listen()
    client.connect("here.sock")
os.mkfifo("fifo")
print("both")
"""

DATABASE = """\
import sqlite3
connection = sqlite3.connect("a.db")
connection.execute("pragma journal_mode=wal")
connection.execute("create table t(a)")
connection.commit()
print("made")
"""

DEBUGGER = """\
import ctypes, os, signal
ptrace, TRACEME, CONT = ctypes.CDLL(None).ptrace, 0, 7
pid = os.fork()
if pid == 0:
    ptrace(TRACEME, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
print(os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]))
ptrace(CONT, pid, 0, 0)
"""

TEST = """\
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(1, 1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work.

    Attributes:
        script: lines of shell, run in a repository with one commit.
        prints: a line of their output.
        needs: a program without which the task is left out.
    """

    name: str
    script: str
    prints: str
    needs: str = "sh"


def _python(name: str, program: str, prints: str) -> Task:
    """Make a task of a Python program, which is a file of the project."""
    script = f"printf %s {shlex.quote(program)} > program.py\npython3 program.py 2>&1"
    return Task(name=name, script=script, prints=prints)


TASKS = (
    Task(
        name="commit",
        script="echo x >> README.md\ngit commit -qam second\ngit log --format=%s -1",
        prints="second",
    ),
    Task(
        name="branch and merge",
        script="git checkout -qb side\ngit commit -q --allow-empty -m side\n"
        "git checkout -q main && git merge -q side && git branch --list | wc -l",
        prints="2",
    ),
    Task(
        name="apply a patch",
        script="echo x >> README.md\ngit diff | git apply -R\ngit diff --quiet && echo as before",
        prints="as before",
    ),
    Task(
        name="compile C",
        script="echo 'int main(void) { return 7; }' > a.c\ncc a.c -o a\n./a\necho $?",
        prints="7",
        needs="cc",
    ),
    Task(
        name="unit tests",
        script=f"printf %s {shlex.quote(TEST)} > t.py\npython3 -m unittest -q t 2>&1 | tail -1",
        prints="OK",
    ),
    Task(
        name="virtual environment",
        script="python3 -m venv --without-pip v\n"
        "v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'",
        prints="True",
    ),
    _python("processes with shared memory", POOL, "100"),
    _python("server on the loopback", SERVER, "200"),
    _python("Unix socket and FIFO", LOCAL, "both"),
    _python("database", DATABASE, "made"),
    _python("terminal", "import pty\npty.spawn(['echo', 'on a terminal'])\n", "on a terminal"),
    _python("debugger", DEBUGGER, "True"),
    Task(name="temporary files", script="f=$(mktemp)\necho x > $f\ncat $f\nrm $f", prints="x"),
    Task(
        name="cache in HOME",
        script="mkdir -p ~/.cache/tool\necho x > ~/.cache/tool/a\ncat ~/.cache/tool/a",
        prints="x",
    ),
    Task(name="name for commits", script="id -un\ngit config user.name", prints="Ada Lovelace"),
    Task(name="Node", script="node -e 'console.log([1, 2].at(-1))'", prints="2", needs="node"),
    Task(
        name="npm's script",
        script='echo \'{"scripts": {"it": "echo by npm"}}\' > package.json\nnpm run -s it',
        prints="by npm",
        needs="npm",
    ),
)


def run_tasks(sandbox: Sandbox) -> Generator[tuple[str, bool]]:
    """Do each piece of work in a world of its own: its name, and whether it could be done."""
    for task in TASKS:
        if shutil.which(task.needs) is None:
            continue
        with open_world() as world:
            have_git(world, PROJECT)
            printed = started(sandbox, world)(task.script).out.splitlines()
            yield task.name, task.prints in printed
