"""A real `systemd --user` of the test's own, in namespaces that end with it.

It has a made-up tree of control groups (`cgroup2_shim.c`), which limit nothing; all else is real:
units, activation, notifications, the watchdog, the descriptor store.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import program
from rungates import RUN_VARIABLE

if TYPE_CHECKING:
    import signal
    from collections.abc import Generator

MANAGER = "/lib/systemd/systemd"
UP_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 60.0
LIFETIME_S = 100.0
"""All that a test does with one manager: many short waits are none that is too long."""
SHIM = Path(__file__).with_name("cgroup2_shim.c")
SERVICE = "nsm-supervisor.service"

# The shim is for the manager; and there is no journal here.
_FOR_SERVICES = """
[Service]
UnsetEnvironment=LD_PRELOAD
StandardOutput=append:{log}
StandardError=append:{log}
"""

_BEGIN = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mount -t tmpfs tmpfs /sys/fs/cgroup
for file in procs controllers subtree_control events; do : >/sys/fs/cgroup/cgroup.$file; done
[ "$(id -u)" = 0 ] || drop="setpriv --inh-caps -all --ambient-caps -all"
$drop env LD_PRELOAD="$1" "$0" --user  # which must not be process 1 here
exit $?
"""

_END = """
import os, select, signal, sys
pid, number = map(int, sys.argv[1:])
fd = os.pidfd_open(pid)
signal.pidfd_send_signal(fd, number)
select.select([fd], [], [])
"""


class UserManager:
    """A running one.

    Attributes:
        pid: of a process in its namespaces.
        variables: environment for programs that are to find it.
    """

    def __init__(self, directory: Path) -> None:
        self.pid = 0
        self._until_s = time.monotonic() + LIFETIME_S
        self.directory = directory
        self.runtime = directory / "run"
        self.home = directory / "home"
        self.units = self.home / ".config/systemd/user"
        self.log = directory / "log"
        self.variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LANG": "C.UTF-8",
            RUN_VARIABLE: os.environ.get(RUN_VARIABLE, ""),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in the manager's namespaces: it answers nobody else."""
        own = ["-U", "--preserve-credentials"] if os.geteuid() else []
        left_s = max(1.0, self._until_s - time.monotonic())
        try:
            return subprocess.run(
                ["nsenter", "-t", str(self.pid), *own, "-m", "-p", *command],
                env=self.variables,
                capture_output=True,
                text=True,
                timeout=min(RUN_TIMEOUT_S, left_s),
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"{late}\n{self.log.read_text(errors='replace')}")

    def nsm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `nsm` to its end."""
        return self.run(program("nsm"), *arguments)

    def systemctl(self, *arguments: str) -> str:
        """Run systemctl, which has to succeed, and return its output."""
        done = self.run("systemctl", "--user", *arguments)
        assert done.returncode == 0, (done, self.log.read_text())
        return done.stdout

    def show(self, name: str, unit: str = SERVICE) -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def stop_running(self) -> None:
        """Have the supervisor hang."""
        self.systemctl("kill", "--kill-who=main", "-s", "STOP", SERVICE)

    def end_by(self, number: signal.Signals) -> None:
        """A signal for the supervisor alone; returns when it has ended."""
        done = self.run(sys.executable, "-c", _END, self.show("MainPID"), str(int(number)))
        assert done.returncode == 0, done

    def set(self, text: str) -> None:
        """Have these lines in the service's `[Service]` section, beside the unit's own."""
        folder = self.units / f"{SERVICE}.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text(f"[Service]\n{text}\n")
        self.systemctl("daemon-reload")


@contextmanager
def user_manager(directory: Path) -> Generator[UserManager]:
    """Start one, wait until it is up; it is gone with all of its services at the end of the block.

    Args:
        directory: private and with a short name.
    """
    manager = UserManager(directory)
    for each in (manager.runtime, manager.home):
        each.mkdir(mode=0o700)
    (manager.units / "service.d").mkdir(parents=True)
    (manager.units / "service.d/plain.conf").write_text(_FOR_SERVICES.format(log=manager.log))
    shim = _shim(directory)
    notify = directory / "notify"
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, manager.log.open("wb") as log:
        told.bind(str(notify))
        told.settimeout(UP_TIMEOUT_S)
        told.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        process = subprocess.Popen(
            ["unshare", *own, *namespaces, "/bin/sh", "-ec", _BEGIN, MANAGER, str(shim)],
            env=manager.variables | {"NOTIFY_SOCKET": str(notify)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            manager.pid = _wait_up(told, manager.log)
            told.close()  # it tells more, and would wait for a reader
            yield manager
        finally:
            process.kill()
            process.wait()


def _wait_up(told: socket.socket, log: Path) -> int:
    """The manager's process, once it says that it is ready."""
    credentials = struct.Struct("3i")
    try:
        while True:
            text, extra, _, _ = told.recvmsg(4096, socket.CMSG_SPACE(credentials.size))
            if "READY=1" in text.decode().splitlines():
                pid, _, _ = credentials.unpack(extra[0][2][: credentials.size])
                assert isinstance(pid, int)
                return pid
    except TimeoutError:
        pytest.fail(f"systemd --user did not come up: {log.read_text()}")


def _shim(directory: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not here: no C compiler (apt-get install gcc libc6-dev)")
    if not os.access(MANAGER, os.X_OK):
        pytest.skip("not here: no systemd (apt-get install systemd)")
    shim = directory / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(SHIM), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not here: the C compiler makes no library: {done.stderr[-300:]}")
    return shim
