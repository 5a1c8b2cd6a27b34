"""Live forks of real sessions, for tests."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from e2e_support import Supervisor
    from nsm import Client

SCOPES = 6
"""Version of Landlock that has scopes."""

needs_scopes = pytest.mark.skipif(
    platform.machine() != "x86_64" or ctypes.CDLL(None).syscall(444, None, 0, 1) < SCOPES,
    reason="not here: sessions are forked on x86-64 with Landlock's scopes (Linux 6.12)",
)


def printed(client: Client, session: str, code: str, env: str = "python") -> str:
    result = client.run(code, env=env, session=session)
    assert result.exit_code == 0, result.stderr
    return result.stdout


LIMITS = (
    "import os\n"
    "print([open(f'/proc/sys/user/{name}').read().strip() for name in os.listdir('/proc/sys/user')"
    " if name in {'max_user_namespaces', 'max_mnt_namespaces', 'max_pid_namespaces'}])"
)
NONE = "['0', '0', '0']\n"


class Code(NamedTuple):
    """Code of one language: sets `x` to 5, prints it, prints the limits of namespaces."""

    env: str
    sets: str
    shows: str
    limits: str
    no_limits: str


IN_PYTHON = Code("python", "x = 5", "print(x)", LIMITS, NONE)
IN_BASH = Code(
    "bash", "x=5", "echo $x", "cat /proc/sys/user/max_{user,mnt,pid}_namespaces", "0\n0\n0\n"
)


SEES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def reached():
    found = []
    own = {1, os.getpid(), os.getppid()}
    for pid in range(2, 2000):
        if pid in own:
            continue
        for what, tried in (
            ('kill', lambda: os.kill(pid, 0)),
            ('trace', lambda: libc.ptrace(0x4206, pid, 0, 0) == 0 or 1 / 0),
            ('root', lambda: os.listdir(f'/proc/{pid}/root/workspace')),
            ('memory', lambda: open(f'/proc/{pid}/mem', 'rb').close()),
            ('command', lambda: open(f'/proc/{pid}/cmdline', 'rb').close()),
            ('namespace', lambda: os.close(os.open(f'/proc/{pid}/ns/user', os.O_RDONLY))),
        ):
            try:
                tried()
            except (OSError, ZeroDivisionError):
                continue
            found.append((pid, what))
    return found
def privileges():
    lines = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
    names = ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Seccomp', 'NoNewPrivs')
    limits = [open(f'/proc/sys/user/max_{kind}_namespaces').read().strip() for kind in ('user', 'mnt', 'pid', 'net')]
    return [int(lines[name], 16) for name in names], limits
"""  # noqa: E501


def helpers(shared: Supervisor) -> set[int]:
    """The fork server, its helpers, and what these have made and not yet given away."""
    found: set[int] = set()
    for pid in shared.descendants():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            # What is in a PID namespace of its own is the agent of a fork.
            if b"forking.helper" in command and re.search(r"^NSpid:\t\d+$", status, re.MULTILINE):
                found.add(pid)
    return found


SPARE = 3
"""The fork server, a helper that waits for a request, and what that has for making jails."""


def wait_for_helpers(shared: Supervisor) -> set[int]:
    """Wait until no request is carried out; returns what waits for the next one."""
    while len(found := helpers(shared)) > SPARE:
        time.sleep(0.01)
    return found


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text(encoding="ascii").split()}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
