"""The starter in the box: signals, the proxy's socket, and what it becomes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pytest

from nsmbox.start import inside

STARTER = (sys.executable, "-I", "-S", inside.__file__)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STARTER, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_starter_becomes_the_command() -> None:
    done = run("--", "sh", "-c", 'echo "$1" $$; exit 7', "sh", "a b")
    assert done.returncode == 7
    assert done.stdout.startswith("a b ")


def test_the_command_has_its_signals_whatever_the_launcher_has_set_aside() -> None:
    def set_aside() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)

    ignored = subprocess.run(
        [*STARTER, "--", "grep", "^SigIgn", "/proc/self/status"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=set_aside,
    ).stdout.split()[1]
    aside = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGQUIT))
    assert int(ignored, 16) & aside == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        ((), 2, "usage"),
        (("--",), 2, "usage"),
        (("true",), 2, "usage"),
        (("--proxy", "/s", "--", "true"), 2, "usage"),
        (("--proxy", "/s", "x", "--", "true"), 2, "usage"),
        (("--", "no-such-program"), 127, "no such program in the box"),
        (("--", "/etc/passwd"), 126, "cannot be started in the box: Permission denied"),
        (("--proxy", "/nowhere/proxy.sock", "0", "--", "true"), 1, "/nowhere/proxy.sock: No such"),
    ],
)
def test_failures_of_the_starter_are_told(
    arguments: tuple[str, ...], exit_code: int, told: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_of_path_that_may_not_be_read_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-such-program").mkdir()  # the same error as of a closed directory, for root too
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = run("--", "no-such-program")
    assert done.returncode == 127
    assert "no such program in the box" in done.stderr


class Supervisor:
    """Takes one listening socket, answers, and serves one connection on it."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._socket.settimeout(20)
        self._answer = answer
        self.address = ("", 0)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        with self._socket.accept()[0] as box:
            _, descriptors, _, _ = socket.recv_fds(box, 16, 4)
            with socket.socket(fileno=descriptors[0]) as listener:
                self.address = listener.getsockname()
                box.sendall(self._answer)
                if self._answer == inside.TAKEN:
                    listener.settimeout(20)
                    with listener.accept()[0] as client:
                        client.sendall(b"by proxy\n")


CLIENT = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as connection:
    print(connection.makefile().read(), os.listdir("/proc/self/fd"))
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_proxy_is_served_on_the_boxs_loopback_without_a_process_there(tmp_path: Path) -> None:
    place, port = tmp_path / "proxy.sock", free_port()
    command = (sys.executable, "-IS", "-c", CLIENT, str(port))
    with Supervisor(place, inside.TAKEN) as supervisor:
        done = run("--proxy", str(place), str(port), "--", *command)
    assert done.stderr == ""
    assert done.stdout.startswith("by proxy\n")
    assert supervisor.address == ("127.0.0.1", port)
    # 0, 1, 2, the connection and the directory: neither socket of the starter.
    assert done.stdout.count("'") == 2 * 5


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"the box has ended\n", "the box has ended"),
        (b"", "closed without an answer"),
        (b"ok", "ok"),
    ],
)
def test_without_a_proxy_nothing_runs(answer: bytes, told: str, tmp_path: Path) -> None:
    place = tmp_path / "proxy.sock"
    with Supervisor(place, answer):
        done = run("--proxy", str(place), str(free_port()), "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "nsm doctor" in done.stderr


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        done = run("--proxy", str(tmp_path / "proxy.sock"), str(port), "--", "true")
    assert done.returncode == 1
    assert f"port {port} of the loopback: Address already in use" in done.stderr
