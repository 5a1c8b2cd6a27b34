"""Undo: variables, working directory and files of a session as they were."""

from __future__ import annotations

from agent_process import AgentProcess, Reply

LIMITS = {"undo": 5}


def undo(agent: AgentProcess, calls: int = 1) -> Reply:
    return agent.run("", undo=calls)


def test_variables_go_back(agent: AgentProcess) -> None:
    agent.send(type="hello", protocol=1, limits=LIMITS)
    agent.run("x = [1]")
    agent.run("x.append(2)")
    agent.run("x.append(3)")
    reply = undo(agent)
    assert reply.exit_code == 0, reply
    print(reply)
    assert agent.run("print(x)").stdout == "[1, 2]\n"
    reply = undo(agent, 2)
    print(reply)
    assert agent.run("print(x)").stdout == "[1]\n"
    assert undo(agent, 9).exit_code == 1


def test_files_go_back(jailed: AgentProcess) -> None:
    jailed.send(type="hello", protocol=1, limits=LIMITS)
    assert jailed.run(MAKE_FILES).stderr == ""
    before = jailed.run(SHOW_FILES).stdout
    assert jailed.run(SPOIL_FILES).exit_code == 0
    assert jailed.run(SHOW_FILES).stdout != before
    reply = undo(jailed, 2)
    assert reply.exit_code == 0, reply
    assert jailed.run(SHOW_FILES).stdout == before, reply


MAKE_FILES = r"""
import os, pathlib, shutil
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
    with open("sparse", "wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 32)
        file.write(b"here")
"""

SHOW_FILES = """
import hashlib
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
    os.chmod("a1", 0)
    os.remove("link"); os.mkdir("link")
    os.chmod("b", 0o600); open("b", "a").write("more")
    os.remove("pipe"); open("pipe", "w").write("no pipe")
    os.truncate("sparse", 0)
    os.remove("broken"); os.symlink("/etc/passwd", "data")
    open("new", "w").close()
    open(b"\xff", "w").write("x")
"""
