"""Accesses that Landlock denies, in processes of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nsm.jail import landlock

needs_scopes = pytest.mark.skipif(
    landlock.version() < landlock.SCOPES_SOCKETS,
    reason="not here: this kernel's Landlock has no scopes (Linux 6.12)",
)

CODE = """\
import os, signal, socket, subprocess, sys
from nsm.jail import landlock

name = b"\\0nsm-test-%d" % os.getpid()
outside = socket.socket(socket.AF_UNIX); outside.bind(name); outside.listen()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

def can(action):
    try:
        action()
    except PermissionError:
        return False
    return True

def connect(to):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(to)

def look():
    print(*map(can, (
        lambda: connect(name),
        lambda: os.kill(child.pid, 0),
        lambda: os.kill(os.getpid(), 0),
    )))

look()
print(landlock.close_scopes())
look()
inside = socket.socket(socket.AF_UNIX); inside.bind(name + b"2"); inside.listen()
print(can(lambda: connect(name + b"2")), open("/etc/passwd").read(1) != "")
child.communicate()
"""


@needs_scopes
def test_abstract_sockets_and_processes_of_others_are_out_of_reach() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.stdout.splitlines(), done.stderr) == (
        ["True True True", "True", "False False True", "True True"],
        "",
    )


def test_an_older_kernel_leaves_them_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: landlock.SCOPES_SOCKETS - 1)
    assert landlock.close_scopes() is False
