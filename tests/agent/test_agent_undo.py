"""Undo: variables, working directory and files of a session as they were."""

from __future__ import annotations

import pytest

from agent_process import AgentProcess, Reply
from selection import one_in

LIMITS = {"undo": 5}


def undo(agent: AgentProcess, calls: int = 1) -> Reply:
    return agent.run("", undo=calls)


UNDO = "undid the last call"


@pytest.fixture
def undoing(jailed: AgentProcess) -> AgentProcess:
    jailed.send(type="hello", protocol=1, limits=LIMITS)
    return jailed


def test_variables_go_back(agent: AgentProcess) -> None:
    agent.send(type="hello", protocol=1, limits=LIMITS)
    for code in ("x = [1]", "x.append(2)", "x.append(3)"):
        agent.run(code)
    reply = undo(agent)
    assert (reply.exit_code, reply.interpreter_restarted) == (0, False)
    assert agent.run("print(x)").stdout == "[1, 2]\n"
    assert undo(agent, 2).exit_code == 0
    assert agent.run("print(x)").stdout == "[1]\n"
    reply = undo(agent, 9)
    assert reply.exit_code == 1
    assert "nothing was undone: 2 earlier states are kept" in reply.stderr
    assert agent.run("print(x)").stdout == "[1]\n"


def test_files_go_back(undoing: AgentProcess) -> None:
    assert undoing.run(MAKE_FILES).stderr == ""
    before = undoing.run(SHOW_FILES).stdout
    assert undoing.run(SPOIL_FILES).stderr == ""
    assert undoing.run(SHOW_FILES).stdout != before
    reply = undo(undoing, 2)
    assert reply.exit_code == 0, reply
    assert undoing.run(SHOW_FILES).stdout == before, reply


def test_an_undo_can_come_back_to_the_same_state(undoing: AgentProcess) -> None:
    undoing.run("x = 1")
    for _ in range(3):
        undoing.run("x += 1; open('new', 'w').close()")
        assert undo(undoing).exit_code == 0
        assert undoing.run("import os; print(x, os.listdir())").stdout == "1 []\n"
        assert undo(undoing).exit_code == 0  # takes back what was just printed


def test_the_first_call_can_be_undone(undoing: AgentProcess) -> None:
    undoing.run("x = 1; open('new', 'w').close()")
    assert undo(undoing).exit_code == 0
    assert undoing.run("import os; print('x' in globals(), os.listdir())").stdout == "False []\n"


def test_only_so_many_states_are_kept(undoing: AgentProcess) -> None:
    for number in range(9):
        undoing.run(f"x = {number}")
    counted = -1
    while counted:  # one that is being made counts for a moment; else they are nobody's processes
        counted = undoing.status()["background"]
    assert undo(undoing, 6).exit_code == 1
    assert undo(undoing, 5).exit_code == 0
    assert undoing.run("print(x)").stdout == "3\n"


MAP = """
import mmap
open('m', 'wb').write(b'a' * 9); f = open('m', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0] = 66
"""

LISTEN = """
import socket
s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen()
"""

TICK = """
import asyncio
n = 0
async def tick():
    global n
    while True:
        n += 1
        await asyncio.sleep(0)
task = asyncio.create_task(tick()); await asyncio.sleep(0)
"""


@pytest.mark.parametrize(
    ("first", "second", "then", "expected"),
    [
        ("g = iter(range(9)); next(g)", "next(g)", "print(next(g))", "1\n"),
        (
            "f = open('f', 'w+'); f.write('hello'); f.flush()",
            "f.write(' world'); f.flush(); f.seek(0)",
            "print(f.tell()); f.write('!'); f.flush(); print(open('f').read())",
            "5\nhello!\n",
        ),
        (
            "open('f', 'w').write('a\\nb\\nc'); f = open('f'); next(f)",
            "f.close()",
            "print(next(f))",
            "b\n\n",
        ),
        (
            "import random; random.seed(1)",
            "print(random.random())",
            "print(random.random())",
            "0.13436424411240122\n",
        ),
        (
            "import os; os.mkdir('d'); os.chdir('d')",
            "os.chdir('/'); os.rmdir('/workspace/d')",
            "print(os.getcwd()); open('x', 'w').close(); print(os.listdir('/workspace/d'))",
            "/workspace/d\n['x']\n",
        ),
        (
            LISTEN,
            "pass",
            "import pathlib; print(pathlib.Path('s').is_socket())",  # a job may listen there
            "True\n",
        ),
        (
            MAP,
            "m[0] = 67",
            "print(m[:2], open('m', 'rb').read(2)); m[1] = 68; print(open('m', 'rb').read(2))",
            "b'Ba' b'Ba'\nb'BD'\n",
        ),
        (
            TICK,
            "task.cancel(); await asyncio.sleep(0); print(task.done())",
            "before = n\nwhile n < before + 9: await asyncio.sleep(0)\nprint(task.done())",
            "False\n",
        ),
    ],
)
def test_state_goes_back(
    undoing: AgentProcess, first: str, second: str, then: str, expected: str
) -> None:
    assert undoing.run(first).stderr == ""
    assert undoing.run(second).stderr == ""
    assert UNDO in undo(undoing).stdout
    reply = undoing.run(then)
    assert (reply.stdout, reply.stderr) == (expected, "")


def test_a_checkpoint_holds_nothing_that_others_wait_for(undoing: AgentProcess) -> None:
    undoing.run(
        "import socket, subprocess\n"
        "p = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "s = socket.create_server(('127.0.0.1', 8000))"
    )
    reply = undoing.run(
        "s.close(); s = socket.create_server(('127.0.0.1', 8000))\n"
        "p.stdin.close(); print(p.wait(), p.stdout.read())"
    )
    assert (reply.stdout, reply.stderr) == ("0 b''\n", "")
    reply = undo(undoing)
    assert any("3 open pipes, connections or terminals" in note for note in reply.frame["notes"])
    reply = undoing.run("try: s.accept()\nexcept OSError: print('closed')")
    assert (reply.stdout, reply.stderr) == ("closed\n", "")


def test_code_sees_no_foreign_children(undoing: AgentProcess) -> None:
    undoing.run(
        "import os, signal; got = []; signal.signal(signal.SIGCHLD, lambda *a: got.append(a))"
    )
    undoing.run("pid = os.getpid()")
    reply = undoing.run(
        "print(got, pid == os.getpid())\ntry: os.wait()\nexcept ChildProcessError: print('none')"
    )
    assert reply.stdout == "[] True\nnone\n"


def test_an_interpreter_that_has_died_comes_back(undoing: AgentProcess) -> None:
    undoing.run("x = 5; import os")
    assert undoing.run("os.kill(os.getpid(), 9)").exit_code == 137
    reply = undo(undoing)
    assert (reply.exit_code, reply.interpreter_restarted) == (0, False)
    assert undoing.run("print(x)").stdout == "5\n"
    undoing.run("os._exit(3)")
    undoing.run("y = 1")
    assert undo(undoing).exit_code == 0  # back to no interpreter
    assert undoing.run("print('x' in globals(), 'y' in globals())").stdout == "False False\n"
    assert undo(undoing, 3).exit_code == 0
    assert undoing.run("print(x)").stdout == "5\n"


@pytest.mark.parametrize("limit", one_in(2, [12, 100]))
def test_a_small_limit_of_descriptors_is_not_in_its_way(undoing: AgentProcess, limit: int) -> None:
    undoing.run("x = 1; f = open('f', 'w'); f.write('hello'); f.flush()")
    set_limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit},) * 2)"
    assert undoing.run(set_limit).stderr == ""
    for number in (2, 3, 4):
        undoing.run(f"x = {number}; f.write('!')")
    for calls, expected in ((1, "3"), (2, "2")):
        reply = undo(undoing, calls)
        assert (reply.exit_code, reply.interpreter_restarted) == (0, False), reply
        reply = undoing.run("print(x); f.flush(); import subprocess; subprocess.run('true')")
        assert (reply.stdout, reply.stderr) == (f"{expected}\n", "")


def test_a_socket_that_is_gone_is_told(undoing: AgentProcess) -> None:
    undoing.run(LISTEN)
    undoing.run("import os; os.remove('s')")
    reply = undo(undoing)
    assert (reply.exit_code, UNDO in reply.stdout) == (0, True)
    assert (
        "not as they were: s (is gone: only its process can make a socket)" in reply.frame["notes"]
    )


def test_threads_are_in_its_way(undoing: AgentProcess) -> None:
    undoing.run("x = 1")
    undoing.run(
        "import threading; go = threading.Event(); t = threading.Thread(target=go.wait); t.start()"
    )
    undoing.run("x = 2")
    reply = undo(undoing)
    assert reply.exit_code == 1
    assert "code has a thread of its own" in reply.stderr
    assert "`undo 2`" in reply.stderr
    assert undoing.run("print(x, t.is_alive())").stdout == "2 True\n"  # nothing has happened
    assert undo(undoing, 3).exit_code == 0
    assert undoing.run("print(x)").stdout == "1\n"


OTHERS = (
    "import os, signal\n"
    "others = {int(name) for name in os.listdir('/proc') if name.isdigit()} - {1, os.getpid()}\n"
)


def test_killed_checkpoints_are_told(undoing: AgentProcess) -> None:
    undoing.run("x = 1")
    undoing.run(f"x = 2\n{OTHERS}for pid in others: os.kill(pid, signal.SIGKILL)")
    reply = undo(undoing)
    assert reply.exit_code == 1
    assert "killed" in reply.stderr
    assert undoing.run("print(x)").stdout == "2\n"
    undoing.run("x = 3")
    assert undo(undoing).exit_code == 0
    assert undoing.run("print(x)").stdout == "2\n"


@pytest.mark.parametrize("number", one_in(2, ["SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP"]))
def test_signals_do_not_hurt_checkpoints(undoing: AgentProcess, number: str) -> None:
    undoing.run("x = 1")
    undoing.run("x = 2")
    undoing.run(f"{OTHERS}for pid in others: os.kill(pid, signal.{number})")
    assert undo(undoing, 2).exit_code == 0
    assert undoing.run("print(x)").stdout == "1\n"


def test_memory_is_bounded(jailed: AgentProcess) -> None:
    jailed.send(type="hello", protocol=1, limits={"undo": 5, "undo_bytes": 8 << 20})
    jailed.run("open('big', 'wb').write(bytes(3 << 20))")
    for _ in range(4):
        jailed.run("open('big', 'ab').write(b'x')")
    assert undo(jailed, 3).exit_code == 1
    assert undo(jailed, 1).exit_code == 0
    assert jailed.run("print(open('big', 'rb').seek(0, 2))").stdout == f"{(3 << 20) + 3}\n"
    jailed.run("open('big', 'wb').write(bytes(9 << 20))")
    jailed.run("x = 1")
    reply = undo(jailed)
    assert reply.exit_code == 1
    assert "more memory than checkpoints may" in reply.stderr


def test_memory_of_copies_is_bounded(jailed: AgentProcess) -> None:
    jailed.send(type="hello", protocol=1, limits={"undo": 5, "undo_bytes": 16 << 20})
    jailed.run("data = bytearray(12 << 20)")
    for _ in range(4):
        jailed.run("for place in range(0, len(data), 4096): data[place] += 1")
    assert undo(jailed, 3).exit_code == 1
    assert undo(jailed, 1).exit_code == 0
    assert jailed.run("print(data[0])").stdout == "3\n"


def test_other_interpreters_refuse(undoing: AgentProcess) -> None:
    undoing.bash("x=1")
    undoing.bash("x=2")
    reply = undoing.bash("", undo=1)
    assert reply.exit_code == 1
    assert "are kept of Python only; the user's `nsm fork` copies a shell" in reply.stderr
    assert undoing.bash("echo $x").stdout == "2\n"


MAKE_FILES = r"""
import os, pathlib, shutil, struct

def attribute(path, name, value):
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        assert error.errno == 95, error  # this file system has none

def list_of_users(mine):  # who may do what, as acl(5) has it
    rows = ((1, 7), (2, mine, os.getuid()), (4, 4), (16, 7), (32, 4))
    rows = [struct.pack("<HHI", *row, *[(1 << 32) - 1][: 3 - len(row)]) for row in rows]
    return struct.pack("<I", 2) + b"".join(rows)

for top in ("/workspace", "/tmp"):
    os.chdir(top)
    os.makedirs("data/deep/er")
    for name in ("a", "b", "data/c", "data/deep/d", "data/deep/er/e"):
        pathlib.Path(name).write_text(name * 1000)
        os.utime(name, (1, 2))
    os.symlink("a", "link")
    os.symlink("nowhere", "broken")
    os.link("a", "other")
    os.mkfifo("pipe")
    os.chmod("b", 0o400)
    os.chmod("data/c", 0o000)
    os.chmod("data/deep/er", 0o555)
    os.chmod("data/deep", 0o000)
    open(b"\xff", "w").close()
    for name in ("a", "data"):
        attribute(name, "user.note", b"one")
        attribute(name, "system.posix_acl_access", list_of_users(7))
    attribute("data", "system.posix_acl_default", list_of_users(7))
    with open("sparse", "wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 32)
        file.write(b"here")
"""

SHOW_FILES = """
import hashlib
for top in ("/workspace", "/tmp"):
    for name in ("a", "b", "data", "new"):
        path = os.path.join(top, name)
        if os.path.exists(path):
            print(path, {each: os.getxattr(path, each) for each in sorted(os.listxattr(path))})
for top in ("/workspace", "/tmp"):
    for where, directories, files in os.walk(top):
        directories.sort()
        for each in directories:
            path = os.path.join(where, each)
            status = os.lstat(path)
            print(path, oct(status.st_mode), status.st_mtime_ns)
            if not status.st_mode & 0o100: os.chmod(path, 0o700)
        for each in sorted(files):
            path = os.path.join(where, each)
            status = os.lstat(path)
            print(ascii(path), oct(status.st_mode), status.st_mtime_ns)
            print(status.st_size, status.st_nlink)
            if os.path.islink(path): print(os.readlink(path))
            elif os.path.isfile(path) and status.st_size < 1 << 20:
                os.chmod(path, 0o600)
                print(hashlib.sha256(open(path, "rb").read()).hexdigest())
                os.chmod(path, status.st_mode & 0o777)
for where, directories, files in os.walk("/workspace"): pass
for top in ("/workspace", "/tmp"):
    os.chmod(top + "/data/deep", 0)
"""

SPOIL_FILES = r"""
for top in ("/workspace", "/tmp"):
    os.chdir(top)
    os.chmod("data/deep", 0o700)
    os.chmod("data/deep/er", 0o700)
    shutil.rmtree("data")
    os.mkdir("a1"); os.rename("a", "a1/a"); open("a1/new", "w").close()
    attribute("a1/a", "system.posix_acl_access", list_of_users(5))
    os.chmod("a1", 0)
    os.remove("link"); os.mkdir("link")
    os.chmod("b", 0o600); open("b", "a").write("more")
    attribute("b", "user.note", b"two")
    attribute("b", "system.posix_acl_access", list_of_users(5))
    os.remove("pipe"); open("pipe", "w").write("no pipe")
    os.truncate("sparse", 0)
    os.remove("broken"); os.symlink("/etc/passwd", "data")
    open("new", "w").close()
    open(b"\xff", "w").write("x")
"""
