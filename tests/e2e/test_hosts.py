"""Sessions of another machine, over a real sshd."""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import program, run
from sshd import far_machine
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from sshd import FarMachine

pytestmark = pytest.mark.jail

CUTS = int(os.environ.get("SOAK_CUTS", "30"))
"""Cuts of the long test; 200 take some minutes."""

ANSWER_S = 300.0

SERVER = """\
import socket, threading
server = socket.create_server(("127.0.0.1", 8000))
def serve():
    while True:
        server.accept()[0].sendall(b"from afar")
threading.Thread(target=serve, daemon=True).start()
"""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Generator[FarMachine]:
    directory: Path = tmp_path_factory.mktemp("far")
    with far_machine(directory) as machine:
        yield machine


@pytest.fixture
def variables(far: FarMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients of this process find the other machine."""
    for name in ("NSM_SSH", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, far.here[name])
    monkeypatch.delenv("NSM_SOCKET", raising=False)


def test_commands_work_as_if_they_were_local(far: FarMachine) -> None:
    shown = far.run("nsm", "run", "-e", "python", "print(6 * 7)")
    assert (shown.stdout, shown.returncode) == ("42\n", 0), shown
    assert far.run("nsm", "run", "-e", "bash", "-s", "work", "x=5; echo $x").stdout == "5\n"
    assert "work" in far.run("nsm", "ps").stdout
    assert "> x=5; echo $x" in far.run("nsm", "logs", "work").stdout
    assert far.run("nsm", "exec", "work", "--", "echo", "hi").stdout == "hi\n"
    config = far.directory / "near" / "config" / "nsm"
    config.mkdir(parents=True)
    (config / "config.toml").write_text('[hosts.far]\n[hosts.gone]\nssh = "false"\n')
    listed = run("nsm", "ps", "--all-hosts", "--json", variables=far.here)
    assert [(row["host"], row["name"]) for row in json.loads(listed.stdout)] == [("far", "work")]
    assert (listed.returncode, "gone: there is no connection" in listed.stderr) == (1, True)
    with Terminal([program("nsm"), "top", "--all-hosts"], far.here, columns=80) as person:
        person.see("gone: there is no connection to gone", "far   work")
        # A later look, which does not ask there again.
        assert far.run("nsm", "run", "-e", "bash", "-s", "later", "true").returncode == 0
        person.see("far   later")
        assert "gone: there is no connection to gone" in person.text
        person.type("q")
        assert person.end() == 0
    assert far.run("nsm", "kill", "later").returncode == 0
    killed = run("nsm", "kill", "--all-hosts", "work", variables=far.here)
    assert killed.stdout.startswith("far: ended "), killed
    socket = far.run("nsm", "status").stdout
    assert f"{far.there}/nsm/control.sock" in socket


@pytest.mark.slow
def test_files_and_directories_are_copied(far: FarMachine, tmp_path: Path) -> None:
    """Descriptors do not come through ssh: all bytes do."""
    (tmp_path / "in" / "below").mkdir(parents=True)
    (tmp_path / "in" / "below" / "large").write_bytes(bytes(range(256)) * 3000)
    (tmp_path / "in" / "small").write_text("small\n")
    make = far.run("nsm", "run", "-e", "bash", "-s", "files", "true")
    assert make.returncode == 0, make
    copied = [
        far.run("nsm", "cp", str(tmp_path / "in"), "files:"),
        far.run("nsm", "cp", "files:in", str(tmp_path / "out")),
        far.run("nsm", "cp", "files:in/small", str(tmp_path / "small")),
    ]
    assert [each.returncode for each in copied] == [0, 0, 0], copied
    assert (tmp_path / "small").read_text() == "small\n"
    large = (tmp_path / "in" / "below" / "large").read_bytes()
    assert (tmp_path / "out" / "below" / "large").read_bytes() == large
    missing = far.run("nsm", "cp", "files:missing", str(tmp_path / "missing"))
    assert (missing.returncode, "missing" in missing.stderr) == (1, True), missing
    far.run("nsm", "kill", "files")


@pytest.mark.slow
def test_a_port_is_open_here_and_comes_back_after_a_cut(far: FarMachine, tmp_path: Path) -> None:
    served = far.run("nsm", "run", "-e", "python", "-s", "web", SERVER)
    assert served.returncode == 0, served
    opened = far.run("nsm", "port", "web", "8000", "--listen", f"unix:{tmp_path}/web")
    assert opened.stdout == f"unix:{tmp_path}/web\n", opened
    assert talk(tmp_path / "web") == b"from afar"
    far.cut()
    assert "web" in far.run("nsm", "port").stdout  # which connects again
    assert talk(tmp_path / "web") == b"from afar"
    assert far.run("nsm", "port", "web", "--close", "8000").returncode == 0
    assert not (tmp_path / "web").exists()
    assert far.run("nsm", "port").stdout == "No open ports.\n"
    far.run("nsm", "kill", "web")


def talk(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(str(path))
        return link.recv(100)


@pytest.mark.slow
def test_a_project_is_copied_before_code_sees_it(far: FarMachine, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / "src").mkdir(parents=True)
    (shop / "src" / "a").write_text("1\n")
    (shop / "build.log").write_text("no\n")
    (shop / ".gitignore").write_text("*.log\n")
    git(shop, "init", "--quiet")

    def seen() -> str:
        variables = {**far.here, "NSM_HOST": far.address, "NSM_HOST_PROJECT": "copy"}
        code = "cd /project && find . -type f -not -path './.git/*' -exec cat {} + | sort"
        done = subprocess.run(
            [program("nsm"), "run", "-e", "bash", code],
            env=variables,
            cwd=shop,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout or done.stderr

    assert seen() == "*.log\n1\n"
    (shop / "src" / "a").unlink()
    (shop / "src").rmdir()
    (shop / "src").write_text("2\n")
    assert seen() == "*.log\n2\n"
    copies = far.there / "nsm-projects"
    shutil.rmtree(copies)
    assert seen() == "*.log\n2\n"
    (shop / ".git" / "index").write_text("garbage")
    assert "was not copied, since nobody knows which files git ignores" in seen()


def git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(directory), *arguments], check=True)


@pytest.mark.slow  # packs and unpacks all that nsm needs
def test_nsm_is_set_up_where_there_is_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    with far_machine(tmp_path_factory.mktemp("bare")) as bare:
        bare.remove_nsm()
        missing = bare.run("nsm", "ps")
        assert missing.returncode == 1
        assert f"`nsm host setup {bare.address}` copies it there" in missing.stderr, missing
        done = bare.run("nsm", "host", "setup", bare.address)
        assert done.returncode == 0, done
        installed = bare.there / ".local" / "share" / "nsm" / "host"
        assert str(installed) in done.stdout
        assert bare.run("nsm", "run", "-e", "python", "print(6 * 7)").stdout == "42\n"
        assert {path.name for path in installed.parent.iterdir()} >= {"host"}
        assert not list(installed.parent.glob("host.*"))


@pytest.mark.usefixtures("variables")
def test_calls_under_way_survive_cuts(far: FarMachine) -> None:
    """Each call runs once, and its answer comes, although the connection is cut meanwhile."""
    cuts = 0

    def cut(_stream: str, _text: str) -> None:
        nonlocal cuts
        cuts += far.cut() > 0

    code = "n += 1; print('begun', flush=True); import time; time.sleep(0.3); print(n)"
    with nsm.Client(host=far.address) as client:
        client.run("n = 0", env="python", session="cut")
        for n in range(1, 6):
            session = client.run(code, env="python", session="cut", on_output=cut)
            assert session.stdout == f"begun\n{n}\n"
        alone = client.run("n = 7\n" + code, env="python", on_output=cut)
        assert alone.stdout == "begun\n8\n"
        client.kill(["cut"])
    assert cuts >= 6


@pytest.mark.slow
@pytest.mark.usefixtures("variables")
def test_no_answer_is_lost_or_doubled(far: FarMachine) -> None:
    """Four clients call at once, and each cut hits at least one of them in the middle of a call."""
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()
    over = threading.Event()
    connected = threading.Barrier(4)

    def began(_stream: str, _text: str) -> None:
        begun.put(None)

    def call(name: str) -> int:
        try:
            return call_often(name)
        except BaseException:
            connected.abort()
            raise
        finally:
            begun.put(None)  # who waits for that is to see the end

    def call_often(name: str) -> int:
        count = 0
        code = "n += 1; print('begun', flush=True); import time; time.sleep(0.1); print(n)"
        with nsm.Client(host=far.address) as client:
            client.run("n = 0", env="python", session=name)
            connected.wait(ANSWER_S)
            while not over.is_set():
                count += 1
                told = client.run(code, env="python", session=name, on_output=began)
                assert told.stdout == f"begun\n{count}\n", (name, count, told)
                alone = client.run(f"n = {count - 1}\n{code}", env="python")
                assert alone.stdout == f"begun\n{count}\n", (name, count, alone)
            client.kill([name])
        return count

    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(call, f"cut-{number}") for number in range(4)]
        cuts = 0
        try:
            while cuts < CUTS and not any(each.done() for each in calls):
                begun.get(timeout=ANSWER_S)
                cuts += far.cut() > 0
                while not begun.empty():  # those that began before the cut
                    begun.get()
        finally:
            over.set()
        failures = [each.exception(timeout=ANSWER_S) for each in calls]
        for failure in failures:
            if failure and not isinstance(failure, threading.BrokenBarrierError):
                raise failure
        assert all(each.result() for each in calls)
    assert cuts == CUTS
