"""Live forks of real sessions, for tests."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

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


def printed(client: Client, session: str, code: str) -> str:
    result = client.run(code, env="python", session=session)
    assert result.exit_code == 0, result.stderr
    return result.stdout


LIMITS = (
    "import os\n"
    "print([open(f'/proc/sys/user/{name}').read().strip() for name in os.listdir('/proc/sys/user')"
    " if name in {'max_user_namespaces', 'max_mnt_namespaces', 'max_pid_namespaces'}])"
)
NONE = "['0', '0', '0']\n"


def helpers(shared: Supervisor) -> set[int]:
    """The fork server, its helpers, and what these have made and not yet given away."""
    found: set[int] = set()
    for pid in shared.descendants():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            # What is in a PID namespace of its own is the agent of a fork.
            if b"forking.fork_server" in command and re.search(
                r"^NSpid:\t\d+$", status, re.MULTILINE
            ):
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
