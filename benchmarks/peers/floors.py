"""Lower bounds of any design: forks, namespaces, and messages between processes, nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from peers.cold import system_arguments

HERE = Path(__file__).resolve().parent
JAIL_UID = 65530
"""User of the jails, the same as nsm's default. Nothing can be forked like this in a jail of a
bubblewrap that root has started.
"""

SYSTEM_PYTHON = "/usr/bin/python3"

MESSAGE = b"x" * 200
"""About as long as a request for one statement."""


class FloorMissingError(Exception):
    """The floor cannot be measured here; the message says why."""


class ForkFloor:
    """Talks to `fork_floor.py` in its jail."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """bwrap's outer process, whose descendants are all that the floor consists of."""
        return self._process.pid

    def time(self, kind: str) -> float:
        """Milliseconds for one fork of a kind."""
        return float(self._ask(f"time {kind}"))

    def rate(self, kind: str, *, window: int, seconds: float) -> float:
        """Forks of a kind a second, `window` of them in flight."""
        return float(self._ask(f"rate {kind} {window} {seconds}"))

    def hold(self, number: int) -> None:
        """Have that many pairs of processes that have run a statement, until the end."""
        self._ask(f"hold {number}")

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise FloorMissingError(
                "namespaces cannot be nested here, or a mount is refused (see above)"
            )
        return answer


@contextmanager
def fork_floor(python: str) -> Generator[ForkFloor]:
    """A jail like a template's with `fork_floor.py` in it.

    Raises:
        FloorMissingError: from its methods.
    """
    as_root = os.geteuid() == 0
    if as_root and not Path(python).resolve().is_relative_to("/usr"):
        python = SYSTEM_PYTHON  # one in root's home is nobody else's to start
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "nsm's set-up installs bubblewrap"
    command = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-net", "--unshare-cgroup-try", "--uid", "1000", "--gid", "1000"]
    command += [*system_arguments(python), "--proc", "/proc", "--dev", "/dev"]
    command += ["--dir", "/tmp", "--dir", "/workspace", "--"]  # the jail's
    command += [python, "-I", "-S", "-c", (HERE / "fork_floor.py").read_text(encoding="utf-8")]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,  # Ctrl-C is ours; it ends with its input
        user=JAIL_UID if as_root else None,
        group=JAIL_UID if as_root else None,
        extra_groups=[] if as_root else None,
    ) as process:
        yield ForkFloor(process)


class Chain:
    """A message through processes and back."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def __call__(self) -> None:
        """Once."""
        self._channel.sendall(MESSAGE)
        answer = self._channel.recv(len(MESSAGE))
        assert len(answer) == len(MESSAGE)


@contextmanager
def chain(python: str, *, processes: int) -> Generator[Chain]:
    """A chain of processes connected by Unix sockets, of which we are the first one."""
    with ExitStack() as stack:
        channel, right = socket.socketpair()
        stack.enter_context(channel)
        for number in range(processes - 1):
            left, last = right, number == processes - 2
            ends = [left]
            if not last:
                inner, right = socket.socketpair()
                ends.append(inner)
            descriptors = [end.fileno() for end in ends]
            # Entered before `channel` is left, so waited for after it is closed: each process ends
            # with the one before it.
            process = subprocess.Popen(
                [python, "-I", "-S", str(HERE / "relay.py"), *map(str, descriptors)],
                pass_fds=descriptors,
                start_new_session=True,
            )
            stack.callback(process.wait)
            for end in ends:
                end.close()
        stack.callback(channel.close)
        yield Chain(channel)
