"""The supervisor that runs or does not, its lock, and room on the disks."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import samples
from doctor_world import World, named
from nsm.dataclass import replace
from nsm.wire.messages import Hello, ServerConnection
from nsmd.doctor import supervisor
from nsmd.doctor.supervisor import check_places, check_upstream
from nsmd.doctor.system import Host
from nsmd.model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def host() -> Generator[Host]:
    """A real place with a short path; nobody has been there."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        yield Host(
            home=directory,
            cwd=directory,
            uid=os.getuid(),
            user="me",
            version="1.2.3",
            socket=f"{directory}/control.sock",
            lock=f"{directory}/supervisor.lock",
            state=f"{directory}/state",
        )


@contextmanager
def listening(path: str, answer: bytes) -> Generator[None]:
    """Somebody who answers whatever comes, and hangs up."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()

        def serve() -> None:
            with suppress(OSError):  # the listener is shut down
                while True:
                    link, _ = listener.accept()
                    with link:
                        link.recv(65536)
                        link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def hello(version: str) -> bytes:
    return ServerConnection().send(Hello(name="nsm-supervisor", program_version=version, pid=4711))


@pytest.mark.parametrize(("version", "status"), [("1.2.3", "ok"), ("1.2.2", "warn")])
def test_a_running_supervisor_is_told_with_its_version(
    host: Host, version: str, status: str
) -> None:
    with listening(host.socket, hello(version)):
        row = named(check_places(host), "supervisor")
    assert row.status == status
    assert f"{version}, process 4711" in row.detail
    assert ("nsm reload" in row.fix) is (status == "warn")


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\1\xff"])
def test_a_silent_supervisor_is_a_warning(host: Host, answer: bytes) -> None:
    with listening(host.socket, answer):
        row = named(check_places(host), "supervisor")
    assert (row.status, "does not answer" in row.detail) == ("warn", True)


def test_a_socket_that_was_left_behind(host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(host.socket)
    os.chmod(host.socket, 0o600)
    row = named(check_places(host), "supervisor")
    assert (row.status, "left" in row.detail) == ("ok", True)


def test_something_else_in_its_place(host: Host) -> None:
    Path(host.socket).touch()
    row = named(check_places(host), "supervisor")
    assert (row.status, row.detail) == ("fail", f"{host.socket} is not a socket")


def test_a_socket_that_is_open_to_others(host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(host.socket)
        os.chmod(host.socket, 0o666)
        row = named(check_places(host), "supervisor")
    assert (row.status, "mode 0666" in row.detail) == ("fail", True)


def test_a_supervisor_whose_socket_was_removed(host: Host) -> None:
    with open(host.lock, "w", encoding="utf-8") as lock:
        assert [row for row in check_places(host) if row.name == "lock"] == []
        fcntl.flock(lock, fcntl.LOCK_EX)
        row = named(check_places(host), "lock")
    assert row.status == "fail"
    assert f"process {os.getpid()} holds" in row.detail
    assert row.fix.endswith(f"kill -9 {os.getpid()}")


def test_little_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(host.home)
    values = list(found)
    values[4] = 10  # f_bavail

    def little(path: str) -> os.statvfs_result:
        assert path
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", little)
    row = named(check_places(host), "room for state")
    assert (row.status, "less than 64 MiB" in row.detail) == ("warn", True)
    values[4], values[5], values[7] = 10**9, 1000, 5  # f_files, f_favail
    row = named(check_places(host), "room for state")
    assert (row.status, row.fix) == ("warn", f"Make room: df -i {host.state}")
    values[8] |= os.ST_RDONLY
    assert "read-only" in named(check_places(host), "room for state").detail


def test_file_systems_of_other_machines(world: World) -> None:
    world.mounts(("/", "ext4"), ("/home", "nfs4"), ("/home/me\\040too", "ext4"))
    row = named(check_places(world.host), "state file system")
    assert (row.status, "nfs4" in row.detail) == ("warn", True)
    far = world.but(socket="/home/me/run/control.sock", lock="/home/me/run/lock")
    assert named(check_places(far), "runtime file system").status == "fail"
    assert world.host.type_of("/home/me too/x") == "ext4"


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root writes everywhere")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_directories_that_cannot_be_written(host: Host, mode: int) -> None:
    runtime = os.path.dirname(host.socket)
    Path(host.state).mkdir()
    os.chmod(host.state, mode)
    os.chmod(runtime, 0o500)
    state, place = (
        named(check_places(host), name) for name in ("room for state", "room for runtime")
    )
    os.chmod(runtime, 0o700)
    assert (state.status, state.fix) == ("warn", f"chmod u+rwx {host.state}")
    assert f"mode {mode:04o}" in state.detail
    assert (place.status, place.fix) == ("fail", f"chmod u+rwx {runtime}")


def test_a_log_that_cannot_be_written(host: Host) -> None:
    log = Path(host.state, "supervisor.log")
    log.mkdir(parents=True)
    row = named(check_places(host), "log")
    assert (row.status, row.fix) == (
        "warn",
        f"Move it away, and the supervisor makes a new one: mv {log} {log}.old",
    )
    log.rmdir()
    log.touch()
    assert named(check_places(host), "log").status == "ok"


WELL = samples.status(
    audit=samples.status()["audit"] | {"dropped": 0, "problem": ""},
    survival={"kind": "keeper", "problem": ""},
)


@pytest.mark.parametrize(
    ("said", "name", "status", "detail"),
    [
        ({}, "audit", "ok", WELL["audit"]["path"]),
        ({"audit": {"enabled": False}}, "audit", "ok", "off, as configured"),
        ({"audit": {"dropped": 3, "problem": "disk full"}}, "audit", "warn", "3 lines of"),
        ({"audit": {"dropped": 3, "problem": "disk full"}}, "audit", "warn", "disk full"),
        ({"survival": {"kind": "keeper", "problem": ""}}, "restart", "ok", "a holder process"),
        ({"survival": {"kind": "systemd", "problem": ""}}, "restart", "ok", "systemd"),
        ({"survival": {"kind": "none", "problem": "why"}}, "restart", "warn", "why"),
        ({"survival": {"kind": "keeper", "problem": "is silent"}}, "restart", "warn", "silent"),
        ({"survival": {"unread": "1 x session"}}, "restart", "warn", "1 x session"),
    ],
)
def test_faults_of_the_audit_and_of_restarts_are_told(
    said: dict[str, Any],
    name: str,
    status: str,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
    host: Host,
) -> None:
    told = WELL | {key: WELL[key] | value for key, value in said.items()}

    def ask(_path: str, _operation: str) -> dict[str, Any]:
        return told

    monkeypatch.setattr(supervisor, "ask", ask)
    row = named(check_places(host), name)
    assert row.status == status
    assert detail in row.detail


ACCEPTS = b"HTTP/1.1 200 OK\r\n\r\n"
ASKS = b"HTTP/1.0 407 x\r\nProxy-Authenticate: Basic\r\n\r\n"


@pytest.mark.parametrize(
    ("here", "supervisor_s", "answer", "status", "detail"),
    [
        ("", "", b"", "", ""),
        ("eve:secret@127.0.0.1:{}", None, ACCEPTS, "ok", "it answers"),
        ("eve:secret@127.0.0.1:{}", None, ASKS, "ok", "it answers"),
        ("ada:secret@127.0.0.1:{}", None, ASKS, "warn", "does not accept the login (407)"),
        ("127.0.0.1:{}", None, ASKS, "warn", "asks for a login (407). The user can put one into"),
        (
            "127.0.0.1:{}",
            None,
            b"HTTP/1.0 407 x\r\nProxy-Authenticate: NTLM\r\n\r\n",
            "warn",
            "NTLM",
        ),
        ("127.0.0.1:1", None, b"", "warn", "127.0.0.1:1 (of the variables"),
        ("127.0.0.1:1", "", b"", "warn", "the supervisor uses none; this shell has 127.0.0.1:1"),
        ("", "p.test:1", b"", "warn", "the supervisor uses p.test:1; this shell has none"),
    ],
)
def test_the_upstream_proxy_is_the_supervisor_s_and_answers(
    here: str,
    supervisor_s: str | None,
    answer: bytes,
    status: str,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
    host: Host,
) -> None:
    def ask(_path: str, _operation: str) -> dict[str, Any]:
        if supervisor_s is None:
            raise ConnectionRefusedError
        return samples.status(upstream=supervisor_s)

    monkeypatch.setattr(supervisor, "ask", ask)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2 if "@" in here and answer == ASKS else 1):
                client, _ = server.accept()
                with client:
                    asked = client.recv(4096)
                    assert asked.startswith(b"OPTIONS http://127.0.0.1:")
                    client.sendall(ACCEPTS if b": Basic ZXZlOnNlY3JldA==\r" in asked else answer)

        thread = threading.Thread(target=serve)
        if answer:
            thread.start()
        proxy = here.format(server.getsockname()[1])
        row = check_upstream(replace(host, variables={"HTTPS_PROXY": proxy}), Settings())
        if answer:
            thread.join()
    assert (row.status if row else "") == status
    assert detail in (row.detail if row else "")
    assert "secret" not in str(row)
