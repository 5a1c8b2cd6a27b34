"""Sockets for agents in boxes, served by a real supervisor: what they give, and when they end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

import nsm
from e2e_support import Supervisor, supervisor
from host_server import host_server
from nsm.wire.errors import (
    BadProjectError,
    BadRequestError,
    ForbiddenError,
    NsmError,
    OverloadedError,
    UnknownProgramError,
    UnknownSessionError,
)
from nsmd.boxes.box import MAX_FAILURES, BoxDirectory
from nsmd.boxes.box_manager import BoxManager
from nsmd.fdstore.store import NoStore
from nsmd.jail.limits import BoxBounds
from nsmd.model.events import Events
from nsmd.model.values import NetworkRule
from nsmd.network.gateway import Gateway
from venvs import install, make_project_venv

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsmd.jail.limits import LimitEnforcer

pytestmark = pytest.mark.jail

DIGEST = "0123456789abcdef" * 4

BOX = """
import json, sys, nsm
socket_path, options = sys.argv[1], json.loads(sys.argv[2])
with nsm.Client(socket_path=socket_path, autostart=False) as client:
    print(json.dumps(client.boxes.open(**options).sockets), flush=True)
sys.stdin.read()
"""
"""In the place of the program that becomes a box."""

NONE: list[str] = []

CONFIG = """
[environments.open]
preset = "python"
network = "full"
[environments.some]
preset = "python"
network = { allow = ["a.example", "b.example"] }
"""


class Box:
    """A process that has asked for sockets.

    Attributes:
        sockets: their directory.
    """

    def __init__(self, it: Supervisor, **options: object) -> None:
        given = {"profile": "test", "digest": DIGEST, "network": "off", **options}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOX, it.socket, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=it.variables,
        )
        assert self.process.stdout is not None
        self.sockets = Path(json.loads(self.process.stdout.readline()))
        self.control = str(self.sockets / "control.sock")

    def client(self, *, reconnect: bool = True) -> nsm.Client:
        return nsm.Client(socket_path=self.control, autostart=False, reconnect=reconnect)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def shared() -> Generator[Supervisor]:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        supervisor(Path(path), config=CONFIG) as it,
    ):
        yield it


@pytest.fixture
def project() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="nsm-project-") as path:
        Path(path).chmod(0o755)
        (Path(path) / "readme").write_text("of the project\n")
        yield Path(path)


@contextmanager
def box(it: Supervisor, project: Path, **options: object) -> Generator[Box]:
    """A box; at the end it is over, and the supervisor knows."""
    made = Box(it, directory=str(project), **options)
    try:
        yield made
    finally:
        made.end()
        with it.client() as client:
            wait_for_its_end(client, made)


def wait_for_its_end(client: nsm.Client, made: Box) -> None:
    # Each question is answered after what was ready before it: the end of a process is.
    while any(row.pid == made.process.pid for row in client.boxes.list()):
        pass


def test_code_of_a_box_runs_in_sessions_of_its_own(shared: Supervisor, project: Path) -> None:
    with box(shared, project) as it, it.client() as inside, shared.client("mine") as person:
        person.run("x = 'secret'", env="python", session="s")
        result = inside.run("print(open('/project/readme').read())", env="python", session="s")
        assert result.stdout == "of the project\n\n"
        assert [row.scope for row in inside.sessions()] == [f"box:{project}#01234567"]
        assert {row.scope for row in person.sessions()} >= {"mine", f"box:{project}#01234567"}
        row = next(row for row in person.boxes.list() if row.pid == it.process.pid)
        assert (row.profile, row.directory, row.network) == ("test", str(project), "off")
        assert row.project == str(project)
        assert os.stat(it.control).st_mode & 0o777 == 0o600
        assert it.sockets.stat().st_mode & 0o777 == 0o700


def test_a_box_may_do_nothing_else(shared: Supervisor, project: Path) -> None:
    with box(shared, project) as it, it.client() as inside, shared.client("mine") as person:
        person.run("x = 1", env="python", session="s")
        for refused in (
            inside.shutdown,
            inside.boxes.list,
            lambda: inside.boxes.open("/", profile="p", digest=DIGEST, network="full"),
            lambda: inside.run("1", env="python", network="full"),
            inside.bridge.programs,
            lambda: inside.bridge.run("say"),
        ):
            with pytest.raises(ForbiddenError):
                refused()
        assert inside.sessions() == []
        report = inside.kill("mine/s")
        assert report.killed == ()
        assert "No session" in str(report.errors[0].error)
        assert inside.kill_all().killed == ()
        assert person.run("x", env="python", session="s").exit_code == 0
        with pytest.raises(NsmError, match="No session"):
            inside.interrupt("mine/s")


def test_a_box_has_jobs_and_files_of_its_own_sessions_only(
    shared: Supervisor, project: Path
) -> None:
    with (
        box(shared, project, digest=os.urandom(32).hex()) as it,
        it.client() as inside,
        shared.client("mine") as person,
    ):
        secret = person.exec("busy", ["sh", "-c", "echo secret; cat"], env="bash", stdin=True)
        own = inside.exec("busy", ["sh", "-c", "echo own > note; cat note; exit 4"], env="bash")
        result = own.collect()
        assert (result.stdout, result.exit_code) == (b"own\n", 4)
        assert [job.id for job in inside.jobs("busy")] == ["1"]
        given = inside.run("cat", env="bash", session="busy", stdin=b"own input")
        assert given.stdout == "own input"
        assert len(inside.sessions()) == 1
        session = next(
            each.id for each in person.sessions() if each.scope == "mine" and each.name == "busy"
        )
        asked: dict[str, dict[str, Any]] = {
            "job_list": {},
            "job_read": {},
            "job_write": {"data": b"x", "eof": True},
            "run_write": {"execution_id": "x", "data": b"x", "eof": True},
            "job_signal": {"signal": "KILL"},
            "job_stop": {},
            "job_resize": {"rows": 1, "columns": 1},
            "file_get": {},
            "file_stat": {},
            "file_entries": {},
            "file_remove": {},
            "file_mkdir": {},
            "file_watch": {},
        }
        for target in (session, "mine/busy"):
            for op, more in asked.items():
                with pytest.raises(UnknownSessionError):
                    inside.call(op, {"target": target, "job": secret.id, "path": "x", **more})
        assert secret.wait(0.0).running
        secret.close_stdin()
        assert secret.collect().stdout == b"secret\n"


def test_a_box_cannot_agree_to_environments_of_its_project(
    shared: Supervisor, project: Path
) -> None:
    make_project_venv(project / ".venv", "tiny-1")
    here = {"project": str(project)}
    with box(shared, project, digest=os.urandom(32).hex()) as it, it.client() as inside:
        for op, more in (
            ("env_found", {}),
            ("env_use", {"path": ".venv"}),
            ("env_forget", {"target": ".venv"}),
        ):
            with pytest.raises(ForbiddenError):
                inside.call(op, {**here, **more})
        with shared.client() as person:
            (row,) = person.call("env_found", here)["found"]
            assert row["name"] is None
            person.call("env_use", {**here, "path": ".venv"})
        # Once the user has agreed, it is for the box's sessions, too.
        result = inside.run("import tiny; print(tiny.VERSION)", env="venv")
        assert (result.stdout, result.stderr) == ("1\n", "")
        install(next(project.glob(".venv/lib/python3*/site-packages")), "other-2")
        changed = inside.run("import other", env="venv")
        assert any("have changed since somebody agreed" in note for note in changed.notes)
        with shared.client() as person:
            (row,) = person.call("env_found", here)["found"]
            assert row["changed"]
            person.call("env_forget", {**here, "target": "venv"})


def test_a_box_opens_no_port(shared: Supervisor, project: Path) -> None:
    with (
        box(shared, project, digest=os.urandom(32).hex()) as it,
        it.client() as inside,
        shared.client("mine") as person,
    ):
        inside.run("1", env="python", session="s")
        (row,) = inside.sessions()
        for target in ("s", row.id):
            with pytest.raises(ForbiddenError):
                inside.ports.open(target, 8000)
            with pytest.raises(ForbiddenError):
                inside.ports.close(target, 8000)
            with pytest.raises(ForbiddenError):
                inside.ports.list(target)
        assert person.ports.list() == []
        # A person opens one, of which the box learns nothing.
        person.ports.open(row.id, 8000)
        assert [port.port for port in person.inspect(row.id).ports] == [8000]
        assert inside.inspect("s").ports == ()
        assert inside.sessions()[0].ports == ()


@pytest.mark.parametrize(
    ("network", "allow", "env", "expected"),
    [
        ("off", NONE, "open", ("off", NONE)),
        ("off", NONE, "some", ("off", NONE)),
        ("allow", ["b.example", "c.example"], "open", ("allow", ["b.example", "c.example"])),
        ("allow", ["b.example", "c.example"], "some", ("allow", ["b.example"])),
        ("allow", ["b.example"], "python", ("off", NONE)),
        ("full", NONE, "some", ("allow", ["a.example", "b.example"])),
    ],
)
def test_sessions_of_a_box_reach_no_more_than_the_box(
    shared: Supervisor,
    project: Path,
    network: str,
    allow: list[str],
    env: str,
    expected: tuple[str, list[str]],
) -> None:
    digest = os.urandom(32).hex()
    with (
        box(shared, project, network=network, allow=allow, digest=digest) as it,
        it.client() as inside,
        shared.client() as person,
    ):
        inside.run("pass", env=env, session="s")
        session = inside.sessions()[0]
        told = person.call("net", {"target": session.id})
        assert (told["mode"], told["allow"]) == expected
        person.kill(session.id)


def test_a_box_chooses_among_directories_of_its_own(shared: Supervisor, project: Path) -> None:
    (project / "part").mkdir()
    (project / "part" / "inner").write_text("inner\n")
    (project / "out").symlink_to("/usr")
    with box(shared, project, digest=os.urandom(32).hex()) as it, it.client() as inside:
        look = "import os; print(*sorted(os.listdir('/project')))"
        assert inside.run(look, env="python", project=str(project)).stdout == "out part readme\n"
        assert inside.run(look, env="python", project=str(project / "part")).stdout == "inner\n"
        for outside in ("/", "/usr", "/nowhere", str(project / "out"), str(project) + "x"):
            with pytest.raises(ForbiddenError, match="not choose the directory"):
                inside.run("1", env="python", project=outside)


def test_a_link_in_the_place_of_its_directory_is_not_followed(
    shared: Supervisor, project: Path
) -> None:
    """A box in an outer directory could put it there."""
    inner, other = project / "inner", project / "other"
    inner.mkdir()
    other.mkdir()
    with box(shared, inner, digest=os.urandom(32).hex()) as it, it.client() as inside:
        assert inside.run("print(1)", env="python", session="s").stdout == "1\n"
        inner.rename(project / "moved")
        inner.symlink_to(other)
        with pytest.raises(BadProjectError, match="is a link that leads to"):
            inside.run("print(1)", env="python", session="t")
        with pytest.raises(ForbiddenError):
            inside.run("print(1)", env="python", session="t", project=str(inner))
    with box(shared, inner, digest=os.urandom(32).hex()) as it, shared.client() as person:
        row = next(row for row in person.boxes.list() if row.pid == it.process.pid)
        assert (row.project, row.project_problem) == (None, f"{inner} leads elsewhere")


def test_the_sockets_end_with_its_process(shared: Supervisor, project: Path) -> None:
    made = Box(shared, directory=str(project))
    with made.client(reconnect=False) as inside, shared.client() as person:
        assert inside.run("print(1)", env="python", session="s").stdout == "1\n"
        made.end()
        wait_for_its_end(person, made)
        assert not made.sockets.exists()
        with pytest.raises(NsmError):
            inside.run("print(1)", env="python")
        # What ran there stays for the next box of that plan, and for people.
        assert f"box:{project}#01234567" in {row.scope for row in person.sessions()}
        with box(shared, project) as again, again.client() as next_one:
            assert not next_one.run("print(2)", env="python", session="s").session.created


@pytest.mark.parametrize(
    "wrong",
    [
        {"directory": "relative"},
        {"directory": "/with\0nul"},
        {"digest": "0" * 63},
        {"digest": "G" * 64},
        {"profile": ""},
        {"profile": "\x1b[31m"},
        {"network": "half"},
        {"network": "allow", "allow": ["http://a.example/"]},
        {"network": "off", "allow": ["a.example"]},
    ],
)
def test_a_wrong_request_for_a_box_is_refused(shared: Supervisor, wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"directory": "/", "profile": "p", "digest": DIGEST, "network": "off"}
    with shared.client() as client, pytest.raises(BadRequestError):
        client.boxes.open(**{**good, **wrong})  # type: ignore[arg-type]


def hand_over(sockets: Path, *descriptors: int) -> str:
    """Return the error for a client that passes descriptors for the proxy."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(sockets / "proxy.sock"))
        if descriptors:
            socket.send_fds(connection, [b"\0"], list(descriptors))
        else:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with connection.makefile() as answer:
            return answer.readline().strip()


def asked(proxy: socket.socket, url: str) -> str:
    """The first line and the body of what the proxy answers."""
    connection = HTTPConnection(*proxy.getsockname())
    with closing(connection):
        connection.request("GET", url)
        answer = connection.getresponse()
        return f"{answer.status} {answer.reason} {answer.read().decode()}"


def test_the_proxy_of_a_box_takes_one_socket_and_serves_its_list(
    shared: Supervisor, project: Path
) -> None:
    with (
        host_server() as port,
        box(shared, project, network="allow", allow=[f"host.nsm.internal:{port}"]) as it,
        socket.create_server(("127.0.0.1", 0)) as proxy,
        socket.create_server(("127.0.0.1", 0)) as second,
        open(os.devnull, "rb") as file,
        shared.client() as person,
    ):
        assert hand_over(it.sockets) == "The socket did not come with the answer."
        assert hand_over(it.sockets, file.fileno()) == "The socket is not a socket."
        with socket.create_connection(proxy.getsockname()) as connected:
            assert "is not a TCP socket that listens" in hand_over(it.sockets, connected.fileno())
        assert hand_over(it.sockets, proxy.fileno()) == "ok"
        assert hand_over(it.sockets, second.fileno()) == "The box has a proxy already."
        assert asked(proxy, f"http://host.nsm.internal:{port}/there").endswith(
            "200 OK here is /there"
        )
        assert "403" in asked(proxy, "http://tracker.example/")
        row = next(row for row in person.boxes.list() if row.pid == it.process.pid)
        assert row.network == "allow"
        assert row.counters["allowed"] == 1
        assert row.counters["not-allowed"] == 1


def test_a_proxy_that_fails_is_replaced_a_few_times(shared: Supervisor, project: Path) -> None:
    """Else whoever is in the box fills the log."""

    def replaced() -> str:
        # What has been shut down is noticed a moment later.
        while True:
            with socket.create_server(("127.0.0.1", 0)) as proxy:
                answer = hand_over(it.sockets, proxy.fileno())
                if answer == "ok":
                    proxy.shutdown(socket.SHUT_RDWR)
            if not answer.endswith("already."):
                return answer

    with box(shared, project, network="allow", allow=["example.org"]) as it:
        assert [replaced() for _ in range(MAX_FAILURES)] == ["ok"] * MAX_FAILURES
        assert replaced() == "The box's proxy has failed too often."


def describe(tools: Path, name: str) -> None:
    """Have the bridge know /bin/echo by a name."""
    tools.mkdir(exist_ok=True)
    keys = f"name: {name}\ndescription: Says it.\ncommand: {os.path.realpath('/bin/echo')}\n"
    (tools / f"{name}.md").write_text(f"---\n{keys}---\n")


def has_one_program(inside: nsm.Client) -> None:
    assert [row.name for row in inside.bridge.programs().programs] == ["say"]
    assert inside.bridge.run("say", ["hello"]).stdout == "hello\n"
    with pytest.raises(UnknownProgramError, match="Available: say"):
        inside.bridge.run("other", ["hello"])


@pytest.mark.slow
def test_boxes_outlive_the_supervisor(project: Path) -> None:
    """Killed, and reloaded: sockets, sessions, what may be reached and started, and the end stay
    the same."""
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        host_server() as port,
        socket.create_server(("127.0.0.1", 0)) as proxy,
        supervisor(Path(path), config="[bridge]\nenabled = true\n") as first,
    ):
        for name in ("say", "other"):
            describe(Path(path) / "config/nsm/tools", name)
        allowed = [f"host.nsm.internal:{port}"]
        made = Box(first, directory=str(project), network="allow", allow=allowed, programs=["say"])
        over = Box(first, directory=str(project), digest="f" * 64)
        url = f"http://host.nsm.internal:{port}/x"
        try:
            assert hand_over(made.sockets, proxy.fileno()) == "ok"
            with made.client() as inside:
                inside.run("x = 41", env="python", session="s")
                has_one_program(inside)
            first.process.kill()
            first.process.wait()
            over.end()
            with supervisor(Path(path), keep=True) as second:
                with made.client() as inside:
                    assert inside.run("print(x + 1)", env="python", session="s").stdout == "42\n"
                    has_one_program(inside)
                assert asked(proxy, url).endswith("200 OK here is /x")
                assert "403" in asked(proxy, "http://tracker.example/")
                with second.client() as person:
                    (row,) = person.boxes.list()
                    assert (row.pid, row.programs) == (made.process.pid, ("say",))
                assert not over.sockets.exists()
                assert second.run("nsm", "reload").returncode == 0
                with made.client() as inside, second.client() as person:
                    assert inside.run("print(x)", env="python", session="s").stdout == "41\n"
                    has_one_program(inside)
                    assert asked(proxy, url).endswith("200 OK here is /x")
                    made.end()
                    wait_for_its_end(person, made)
                assert not made.sockets.exists()
        finally:
            made.end()
            over.end()


def test_connections_of_boxes_leave_room_for_others(project: Path) -> None:
    few = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh"]  # 104 connections
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, ExitStack() as opened:
        it = opened.enter_context(supervisor(Path(path), within=few))
        boxes = [opened.enter_context(box(it, project)) for _ in range(3)]

        def connect(made: Box) -> None:
            opened.enter_context(made.client(reconnect=False)).ping()

        for _ in range(32):
            connect(boxes[0])
        with pytest.raises(OverloadedError, match="The box has 32 connections"):
            connect(boxes[0])
        for _ in range(20):
            connect(boxes[1])
        for made in boxes[1:]:
            with pytest.raises(OverloadedError, match="All boxes together have 52 connections"):
                connect(made)
        with it.client() as person:
            assert person.status().clients == 53


def test_there_are_so_many_and_an_ended_supervisor_leaves_none(project: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        with supervisor(Path(path)) as it:
            made = Box(it, directory=str(project))
            with it.client() as client:  # of one process, which is enough to count them
                for _ in range(63):
                    client.boxes.open(str(project), profile="p", digest=DIGEST, network="off")
                with pytest.raises(OverloadedError, match="64 boxes"):
                    client.boxes.open(str(project), profile="p", digest=DIGEST, network="off")
            assert it.run("nsm", "shutdown").returncode == 0
            it.process.wait()
            assert not made.sockets.exists()
            made.end()
        with supervisor(Path(path)) as it, it.client() as client:
            assert client.boxes.list() == []


def _never_called(*_: object) -> Any:
    raise AssertionError


async def test_boxes_that_are_being_made_count(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nsm.paths.runtime_dir", lambda: str(tmp_path / "nsm"))

    class Enforcer:
        """Ends the making of the first box while another one is asked for."""

        async def confine_box(self, *_: object) -> Any:
            with pytest.raises(OverloadedError, match="1 boxes already"):
                await ask()
            raise BadRequestError("no box")

    manager = BoxManager(
        _never_called,
        gateway=Gateway(),
        store=NoStore(),
        events=Events(),
        most=1,
        enforcer=cast("LimitEnforcer", Enforcer()),
    )

    async def ask() -> None:
        await manager.open(
            os.getpid(),
            directory=str(project),
            profile="p",
            digest=DIGEST,
            network=NetworkRule(),
            shows_project=False,
            bounds=BoxBounds(memory_mb=1, files_mb=1, processes=1, cpu_weight=1),
        )

    async with trio.open_nursery() as nursery:
        await nursery.start(manager.serve, _never_called)
        for _ in range(2):  # one that came to nothing does not
            with pytest.raises(BadRequestError, match="no box"):
                await ask()
        nursery.cancel_scope.cancel()


def test_the_first_box_leaves_the_runtime_directory_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsm.paths.runtime_dir", lambda: str(tmp_path / "nsm"))
    BoxDirectory("0123abcd").make()
    assert (tmp_path / "nsm").stat().st_mode & 0o777 == 0o700
