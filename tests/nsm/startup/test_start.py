"""Connecting, and starting a supervisor first: against `fakensmd` in place of the real one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsm.paths import PathError
from nsm.startup import spawn, start
from nsm.wire.errors import CannotStartError, NotRunningError
from processes import collect

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

FAKE = str(Path(__file__).parents[2] / "support" / "fakensmd.py")
INHERITABLE = 77


class Place:
    """A runtime directory, and the fake supervisors started in it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runtime = directory / "run"
        self.path = str(self.runtime / "control.sock")
        self.log = directory / "state" / "nsm" / "supervisor.log"
        self._monkeypatch = monkeypatch
        package = directory / "path" / "nsmd"
        package.mkdir(parents=True)
        shutil.copy(FAKE, package / "__main__.py")
        (package / "__init__.py").touch()
        self.set("PYTHONPATH", str(directory / "path"))
        self.set("XDG_STATE_HOME", str(directory / "state"))
        self.set("NSM_SOCKET", self.path)
        monkeypatch.delenv("NSM_AUTOSTART", raising=False)

    def set(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def starts(self) -> list[dict[str, Any]]:
        notes = self.runtime / "control.sock.starts"
        if not notes.exists():
            return []
        return [json.loads(line) for line in notes.read_text().splitlines()]

    def end(self) -> None:
        """End what serves, and see each fake gone."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            connection.sendall(b"end")
            connection.recv(1)
        for note in self.starts():
            collect(note["pid"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path, monkeypatch)
    yield place
    place.end()


def greet(connection: socket.socket) -> str:
    with connection:
        connection.sendall(b"hello")
        return connection.recv(100).decode()


def test_a_supervisor_is_detached_and_inherits_no_descriptor(place: Place) -> None:
    place.set("ANTHROPIC_API_KEY", "secret")
    place.set("PROJECT_DIR", "/somewhere")
    place.set("NSM_SCOPE", "mine")
    place.set("NIX_SANDBOX_ENVS", "x")
    place.set("XDG_CONFIG_HOME", "/config")
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), INHERITABLE)
    try:
        greet(start.connect(place.path))
    finally:
        os.close(INHERITABLE)
    (facts,) = place.starts()
    assert facts["session"] not in (os.getsid(0), facts["pid"])  # a session, and no terminal to get
    assert facts["cwd"] == "/"
    assert facts["umask"] == 0o077
    assert facts["stdin"] == "/dev/null"
    assert facts["stdout"] == facts["stderr"] == str(place.log)
    assert {0, 1, 2, facts["ready"]} <= set(facts["descriptors"])
    assert len(facts["descriptors"]) == 5  # with that of the listing itself
    assert INHERITABLE not in facts["descriptors"]
    assert facts["argv"][:4] == [sys.executable, "-P", "-m", "nsmd"]
    environment = facts["environment"]
    assert environment["NSM_SOCKET"] == place.path
    assert environment["XDG_CONFIG_HOME"] == "/config"
    assert environment["PATH"] == os.environ["PATH"]
    foreign = {"ANTHROPIC_API_KEY", "PROJECT_DIR", "NSM_SCOPE", "NIX_SANDBOX_ENVS"}
    assert foreign.isdisjoint(environment)
    assert "secret" not in json.dumps(facts)


STARTER = """
import sys
from nsm.startup import start
sys.stdin.read()  # all begin at once
with start.connect(sys.argv[1]) as connection:
    connection.sendall(b"hello")
    print(connection.recv(100).decode())
"""


@contextlib.contextmanager
def starter(path: str) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def test_starters_at_once_give_one_supervisor(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        starters = [stack.enter_context(starter(place.path)) for _ in range(5)]
        for process in starters:
            assert process.stdin is not None
            process.stdin.close()
        answers = {process.stdout.read() for process in starters if process.stdout is not None}
    assert len(answers) == 1
    assert "hello from" in answers.pop()
    assert len(place.starts()) == 1


def test_a_starter_that_is_killed_lets_go_of_the_lock(place: Place, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    place.set("NSM_FAKE", "hang")  # listens, and never says so
    place.set("NSM_FAKE_FIFO", str(fifo))
    with starter(place.path) as dying:
        assert dying.stdin is not None
        dying.stdin.close()
        assert fifo.read_text() == "listening"
        dying.kill()
    assert dying.returncode == -signal.SIGKILL
    assert greet(start.connect(place.path)).startswith("hello from")
    assert len(place.starts()) == 1


@pytest.mark.parametrize(
    ("behaviour", "why", "final"),
    [
        ("fail", "configuration: no such key", True),
        ("die", "it ended before it was ready", True),
        ("crash", "ImportError: a module is broken", True),
        ("lie", "it does not listen", False),
        ("shortage", "too many open files", False),
        ("be killed", "it ended before it was ready", False),
    ],
)
def test_why_it_did_not_start_is_told(place: Place, behaviour: str, why: str, final: bool) -> None:
    place.set("NSM_FAKE", behaviour)
    with pytest.raises(NotRunningError) as caught:
        start.connect(place.path)
    assert caught.value.message.startswith(f"the supervisor did not start: {why}")
    assert isinstance(caught.value, CannotStartError) is final
    assert caught.value.hint == f"Run `nsm doctor`. Its log: {place.log}"
    place.set("NSM_FAKE", "serve")
    greet(start.connect(place.path))  # and nothing is left in the way


WITHOUT = """#!{python}
import errno, os, sys

def short(*_):
    raise OSError({number}, os.strerror({number}))

os.{call} = short
code = sys.argv[4]  # after -I -S -c
del sys.argv[1:5]
exec(code)
"""


@pytest.mark.parametrize("call", ["fork", "execv"])
@pytest.mark.parametrize(("number", "final"), [(errno.EAGAIN, False), (errno.EACCES, True)])
def test_a_shortage_of_processes_is_not_final(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    final: bool,
) -> None:
    """The limit on processes does not hold for root: Python's function fails in its place."""
    python = tmp_path / "python"
    python.write_text(
        WITHOUT.format(python=os.path.realpath(sys.executable), number=number, call=call)
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(NotRunningError, match=f"can't be started: .*{number}.*") as caught:
        start.connect(place.path)
    assert isinstance(caught.value, CannotStartError) is final


def test_sessions_are_kept_for_a_supervisor_that_cannot_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correction of the configuration may take longer than the holder lingers."""
    monkeypatch.setattr(start, "_HOLDER_TIMEOUT_S", 0.01)
    place.set("NSM_FAKE", "fail")
    place.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as holder:
        holder.bind(str(place.runtime / "keeper.sock"))
        holder.listen()
        with pytest.raises(CannotStartError):
            start.reconnect(place.path, patience_s=start.KEPT_S)
        with holder.accept()[0] as link:
            assert link.recv(100) == b"wait 86400"
    assert len(place.starts()) == 1


def test_the_wait_for_readiness_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(spawn, "READY_TIMEOUT_S", 0.0)
    try:
        with pytest.raises(TimeoutError, match="not got ready within 0 s"):
            spawn._wait_ready(read_end)  # pyright: ignore[reportPrivateUsage]
    finally:
        os.close(read_end)
        os.close(write_end)


def test_without_autostart_nothing_is_started_or_made(place: Place) -> None:
    with pytest.raises(NotRunningError, match="no supervisor listens on"):
        start.connect(place.path, autostart=False)
    place.set("NSM_AUTOSTART", "0")
    with pytest.raises(NotRunningError, match="NSM_AUTOSTART=0"):
        start.connect(place.path)
    assert not place.runtime.exists()


def test_a_log_is_kept_and_set_aside_when_it_is_large(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "MAX_LOG_BYTES", 10)
    place.log.parent.mkdir(parents=True)
    place.log.write_text("x" * 11)
    greet(start.connect(place.path))
    assert place.log.read_text() == ""
    assert place.log.with_suffix(".log.1").read_text() == "x" * 11
    assert os.stat(place.log).st_mode & 0o777 == 0o600


def test_a_lock_that_is_a_link_stops_it(place: Place) -> None:
    place.runtime.mkdir(mode=0o700)
    (place.runtime / "start.lock").symlink_to("/nowhere")
    with pytest.raises(PathError, match=r"start\.lock"):
        start.connect(place.path)


def test_a_packaged_supervisor_is_the_one_that_is_started(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nsm-supervisor"
    place.set("NSM_SUPERVISOR", str(program))
    with pytest.raises(NotRunningError, match=r"nsm-supervisor' can't be started"):
        start.connect(place.path)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m nsmd "$@"\n')
    program.chmod(0o755)
    greet(start.connect(place.path))
    (facts,) = place.starts()
    assert facts["environment"]["NSM_SUPERVISOR"] == str(program)
    place.end()
    place.set("NSM_SUPERVISOR", "nsm-supervisor")
    with pytest.raises(PathError, match=r"relative.*NSM_SUPERVISOR"):
        start.connect(place.path)


def test_a_path_that_leads_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathError, match="can't be connected"):
        start.connect(str(tmp_path / "file" / "x.sock"))
    with pytest.raises(PathError, match="relative"):
        start.connect("x.sock")


def test_a_supervisor_that_takes_no_connections_is_waited_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.sock")
    monkeypatch.setattr(start, "CONNECT_TIMEOUT_S", 0.02)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        with start.connect(path), pytest.raises(NotRunningError, match=r"for 0\.02 s"):
            start.connect(path)


def test_a_listener_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        start.connect(path).close()
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        if os.getuid() == 0:  # root's listener is taken by everyone
            start.connect(path).close()
        else:
            with pytest.raises(PathError, match="belongs to user"):
                start.connect(path)


def test_importing_it_loads_neither_subprocess_nor_typing() -> None:
    program = "import sys, nsm.startup.start; print([m for m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in ("subprocess", "typing", "cbor2", "trio", "pathlib", "dataclasses"):
        assert f"'{name}'" not in loaded, f"{name} costs the shim milliseconds"


# Variables that a supervisor gets from the client that starts it.


PASSED = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "PIP_INDEX_URL": "https://index.test/",
    "UV_INDEX_COMPANY_PASSWORD": "x",
    "UV_HTTP_TIMEOUT": "5",
    "npm_config_//registry.test/:_authToken": "x",
    "NETRC": "/home/me/netrc",
    "REQUESTS_CA_BUNDLE": "/ca.pem",
}
NOT_PASSED = {
    "AWS_SECRET_ACCESS_KEY": "x",
    "UV_PUBLISH_TOKEN": "x",
    "NODE_AUTH_TOKEN": "x",
    "NSM_SCOPE": "box",
    "NIX_SANDBOX_ENVS": "x",
}


def test_a_supervisor_gets_what_it_needs_and_no_other_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**PASSED, **NOT_PASSED}.items():
        monkeypatch.setenv(name, value)
    assert spawn.supervisor_environment("/run/x") == {**PASSED, "NSM_SOCKET": "/run/x"}
