"""The supervisor under a service manager: its socket comes from outside and stays when it goes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import END_TIMEOUT_S, variables_for

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.jail


# What a manager does between fork and exec: the socket becomes descriptor 3, the pid is our own.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"}
os.execv(sys.executable, [sys.executable, "-P", "-m", "nsmd"])
"""


class Manager:
    """Holds the socket and starts a supervisor for it, as systemd does."""

    def __init__(self, directory: Path, listener: socket.socket, notified: socket.socket) -> None:
        self._directory = directory
        self._listener = listener
        self._notified = notified
        self.variables = variables_for(directory) | {"NOTIFY_SOCKET": str(directory / "notify")}

    @contextmanager
    def activate(self) -> Generator[subprocess.Popen[bytes]]:
        """A supervisor that has said that it is ready; it is ended afterwards if it still runs."""
        fd = self._listener.fileno()
        with (self._directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", ACTIVATE, str(fd)],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
                cwd="/",
            )
        try:
            # Of an earlier one there may be more to read: how it ended.
            while self._notified.recv(1000) != b"READY=1":
                assert process.poll() is None, self.log()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(END_TIMEOUT_S)

    def log(self) -> str:
        return (self._directory / "log").read_text()


@pytest.fixture
def manager(short_dir: Path) -> Generator[Manager]:
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        before = os.umask(0o177)
        listener.bind(str(short_dir / "control.sock"))
        notified.bind(str(short_dir / "notify"))
        os.umask(before)
        notified.settimeout(END_TIMEOUT_S)
        listener.listen()
        yield Manager(short_dir, listener, notified)


def test_clients_that_came_before_it_are_served_and_its_socket_outlives_it(
    manager: Manager, short_dir: Path
) -> None:
    path = str(short_dir / "control.sock")
    with socket.socket(socket.AF_UNIX) as early:
        early.connect(path)  # waits in the backlog, while nobody serves
        with manager.activate() as process:
            with nsm.Client(socket_path=path, autostart=False) as client:
                assert client.status().pid == process.pid
                assert client.run("print(6 * 7)", env="python").stdout == "42\n"
                code = "env | grep -c -e LISTEN -e NOTIFY"
                assert client.run(code, env="bash").stdout == "0\n"
                client.shutdown()
            assert process.wait(END_TIMEOUT_S) == 0, manager.log()
        assert os.path.exists(path)
    with manager.activate() as again, nsm.Client(socket_path=path, autostart=False) as client:
        assert client.status().pid == again.pid != process.pid


def test_a_wrong_socket_is_refused_with_what_to_change(manager: Manager) -> None:
    with socket.socket(socket.AF_INET) as internet:
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        done = subprocess.run(
            [sys.executable, "-c", ACTIVATE, str(internet.fileno())],
            env=manager.variables,
            pass_fds=[internet.fileno()],
            capture_output=True,
            text=True,
            check=False,
            timeout=END_TIMEOUT_S,
        )
    assert done.returncode == 1
    assert "is not a Unix stream socket. nsm needs ListenStream=" in done.stderr
