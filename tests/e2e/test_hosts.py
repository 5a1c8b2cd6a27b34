"""Sessions of another machine, over a real sshd: slow, full, changed, of another version, cut."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
import restricted_mounts
from e2e_support import program, run, write_program
from nsm.wire.messages import PROTOCOL_VERSION
from sshd import far_machine
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator

    from sshd import FarMachine

pytestmark = pytest.mark.jail

CUTS = int(os.environ.get("SOAK_CUTS", "30"))
"""Cuts of the long test; 200 take some minutes."""

ANSWER_S = 300.0

ROOM_BYTES = 24 * 2**20
"""Room on a small disk: enough for a supervisor, and not for nsm itself."""

MANY_BYTES = 64 * 2**20

FILE = f"with open('/workspace/made', 'wb') as file: file.truncate({MANY_BYTES})"

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
    with far_machine(tmp_path_factory.mktemp("far")) as machine:
        yield machine


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Generator[FarMachine]:
    """A machine to which large files take long."""
    with far_machine(tmp_path_factory.mktemp("narrow"), bytes_s=4_000_000) as machine:
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


# Slow links


@pytest.mark.usefixtures("variables")
def test_a_link_that_stalls(far: FarMachine) -> None:
    """Nothing passes for a while, and then all that was under way comes."""
    with nsm.Client(host=far.address) as client, ThreadPoolExecutor(1) as pool:
        client.run("x = 6", env="python", session="stall")
        stopped = far.stall()
        try:
            call = pool.submit(client.run, "print(x * 7)", env="python", session="stall")
            with pytest.raises(TimeoutError):
                call.result(1)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert call.result(ANSWER_S).stdout == "42\n"
        client.kill(["stall"])


@pytest.mark.slow  # ssh waits 15 seconds
@pytest.mark.usefixtures("variables")
def test_a_link_that_stalls_for_good(far: FarMachine) -> None:
    """Nobody says that the connection has ended."""
    stopped: list[int] = []

    def stall(_stream: str, _text: str) -> None:
        if not stopped:
            stopped.extend(far.stall())

    code = "n += 1; print('begun', flush=True); import time; time.sleep(0.2); print(n)"
    with nsm.Client(host=far.address) as client:
        client.run("n = 0", env="python", session="asleep")
        told = client.run(code, env="python", session="asleep", on_output=stall)
        assert told.stdout == "begun\n1\n"
        client.kill(["asleep"])
    assert far.cut(stopped)


# A full disk


@contextmanager
def small_disk(directory: Path) -> Generator[FarMachine]:
    """Another machine with a small disk, which has all of its directories."""
    place = directory / "far"
    place.mkdir(mode=0o700)
    mount = restricted_mounts.command(f"tmpfs:{ROOM_BYTES}:{place}")
    wait = ["/bin/sh", "-c", "echo; exec cat"]
    with subprocess.Popen([*mount, *wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        view = Path(f"/proc/{holder.pid}/root{place}")
        within = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        with far_machine(directory, within=within, there=view) as machine:
            yield machine


def fill(directory: Path) -> Path:
    """Use up all room; returns the file that has it."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


@pytest.mark.root  # only root enters a mount namespace from outside
@pytest.mark.slow
def test_a_full_disk(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Sessions go on; what needs the disk says so, leaves nothing, and works once there is room."""
    (tmp_path / "numbers").write_text("1 2 39\n" * 100)
    with small_disk(tmp_path_factory.mktemp("full")) as far:

        def brought() -> subprocess.CompletedProcess[str]:
            variables = {**far.here, "NSM_HOST": far.address, "NSM_HOST_PROJECT": "copy"}
            command = [program("nsm"), "run", "-e", "bash", "wc -w </project/numbers"]
            return subprocess.run(
                command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
            )

        assert far.run("nsm", "run", "-e", "python", "-s", "work", "x = 6").returncode == 0
        before = files_of(far)
        filler = fill(far.there)
        assert far.run("nsm", "run", "-e", "python", "-s", "work", "print(x * 7)").stdout == "42\n"
        assert far.run("nsm", "cp", str(tmp_path / "numbers"), "work:").returncode == 0
        assert far.run("nsm", "run", "-e", "bash", "echo alone").stdout == "alone\n"
        refused = brought()
        assert refused.returncode == 125
        assert "did not take the project: " in refused.stderr
        assert "No space left on device" in refused.stderr
        refused = far.run("nsm", "host", "setup", far.address)
        assert refused.returncode == 1
        assert "could not be copied" in refused.stderr
        assert "No space left on device" in refused.stderr
        assert far.run("nsm", "shutdown").returncode == 0
        again = far.run("nsm", "run", "-e", "python", "print(6 * 7)")
        assert (again.stdout, again.returncode) == ("42\n", 0), again.stderr
        filler.unlink()
        assert files_of(far) <= before
        assert brought().stdout == "300\n"


def files_of(far: FarMachine) -> set[str]:
    """Files there, without those that each supervisor makes."""
    files = {str(path.relative_to(far.there)) for path in far.there.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith(("nsm/", "state/"))}


# Another key, another version


def test_a_changed_host_key_is_refused(far: FarMachine) -> None:
    far.cut()
    known = far.directory / "known_hosts"
    right = known.read_text()
    known.write_text(f"far {(far.directory / 'key.pub').read_text()}")
    try:
        refused = far.run("nsm", "run", "-e", "python", "print(1)")
        assert (refused.stdout, refused.returncode) == ("", 125), refused
        assert "host key of ssh://far is not the one that your ssh knows" in refused.stderr
        forget = re.search(r"`(ssh-keygen .*)`", refused.stderr)
        assert forget, refused.stderr
        subprocess.run(forget[1].split(), check=True, capture_output=True)
        assert "far" not in known.read_text()
    finally:
        known.write_text(right)
    assert far.run("nsm", "run", "-e", "python", "print(1)").stdout == "1\n"


OTHER_VERSION = """\
import sys
from nsm.wire import messages
messages.PROTOCOL_VERSION += 1
from nsm.cli.main import main
sys.exit(main())
"""
"""nsm as it would be with the next version of the control protocol."""


@pytest.mark.slow
def test_another_version_is_refused_and_can_be_replaced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with far_machine(tmp_path_factory.mktemp("next")) as far:
        programs = far.directory / "programs"
        programs.mkdir()
        write_program(programs / "nsm", OTHER_VERSION)
        far.replace_programs(programs)
        refused = far.run("nsm", "run", "-e", "python", "print(1)")
        assert (refused.stdout, refused.returncode) == ("", 125), refused
        assert f"speaks version {PROTOCOL_VERSION + 1} of the control" in refused.stderr
        assert f"`nsm host setup {far.address}` copies this one" in refused.stderr


# Ctrl-C


def interrupted(far: FarMachine, shown: str, *command: str) -> tuple[int, str]:
    """Exit code and output of a command that makes the connection and gets Ctrl-C."""
    far.cut()
    words = [program(command[0]), *command[1:]]
    with Terminal(words, {**far.here, "NSM_HOST": far.address}) as person:
        person.see(shown)
        person.type("\x03")
        return person.end(), person.text


def helpers_of(far: FarMachine) -> list[int]:
    """Processes of ssh that carry out a command there, as opposed to the connection."""
    return [
        pid
        for pid in processes_with(os.fsencode(far.directory / "ssh_config"), b"\0-T\0")
        if Path(f"/proc/{pid}/comm").read_text() == "ssh\n"
    ]


def processes_with(*parts: bytes) -> list[int]:
    """Processes whose command line has all these parts."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            if all(part in line for part in parts):
                found.append(int(path.parent.name))
    return found


def test_ctrl_c_in_run(far: FarMachine) -> None:
    code = "import time; print('begun', flush=True); time.sleep(1000)"
    code_, shown = interrupted(far, "begun", "nsm", "run", "-e", "python", "-s", "c", code)
    assert code_ == 130, shown
    assert helpers_of(far) == []
    rows = far.run("nsm", "ps", "--json").stdout
    assert '"state": "idle"' in rows, rows
    assert far.run("nsm", "kill", "c").returncode == 0
    code_, shown = interrupted(far, "begun", "nsm", "run", "-e", "python", code)
    assert code_ == 130, shown
    assert far.run("nsm", "ps").stdout == "No sessions.\n"


@pytest.mark.slow
@pytest.mark.usefixtures("variables")
def test_an_interrupt_that_is_lost_with_its_connection(far: FarMachine) -> None:

    stalled: list[int] = []

    def interrupt(_stream: str, _text: str) -> None:
        if not stalled:
            stalled.extend(far.stall())
            signal.raise_signal(signal.SIGINT)
            threading.Timer(0.5, far.cut, [stalled]).start()

    code = "import time; print('begun', flush=True); time.sleep(1000)"
    with nsm.Client(host=far.address) as client:
        told = client.run(code, env="python", session="i", on_output=interrupt)
        assert (told.interrupted, told.timed_out) == (True, False)
        client.kill(["i"])
    assert stalled


@pytest.mark.slow
def test_ctrl_c_in_cp(narrow: FarMachine, tmp_path: Path) -> None:
    """A file appears whole or not at all, on both sides."""
    large, back = tmp_path / "large", tmp_path / "back"
    with large.open("wb") as file:
        file.truncate(MANY_BYTES)
    back.mkdir()
    assert narrow.run("nsm", "run", "-e", "python", "-s", "f", FILE).returncode == 0
    for command in ((str(large), "f:large"), ("f:made", str(back))):
        code, shown = interrupted(narrow, " MiB of ", "nsm", "cp", *command)
        assert code == 130, shown
        assert helpers_of(narrow) == []
    assert list(back.iterdir()) == []
    listed = narrow.run("nsm", "exec", "f", "--", "ls", "-A", "/workspace")
    assert listed.stdout == "made\n", listed
    narrow.run("nsm", "kill", "f")


@pytest.mark.slow
def test_ctrl_c_in_host_setup(narrow: FarMachine) -> None:
    """Nothing of the archive stays there."""
    place = narrow.there / ".local" / "share" / "nsm"
    command = [program("nsm"), "host", "setup", narrow.address]
    with Terminal(command, narrow.here) as person:
        person.see("copying nsm to ssh://far")
        while not list(place.glob("host.*.pyz")):  # its first part has arrived
            assert person.process.poll() is None, person.text
        person.type("\x03")
        assert person.end() == 130
    # The shell there goes on until it has seen the end of the archive, and tells nobody.
    for pid in processes_with(b"host.$$.pyz"):
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(pid)], [], [], ANSWER_S)
    assert list(place.iterdir()) == []
    assert narrow.run("nsm", "host", "setup", narrow.address).returncode == 0
    assert [path.name for path in place.iterdir()] == ["host"]


@pytest.mark.slow
def test_two_laptops_on_one_host(far: FarMachine) -> None:
    """They start one supervisor, install at once, see one set of sessions, and fail alone."""
    other = far.laptop("other") | {"NSM_HOST": far.address}
    near = {**far.here, "NSM_HOST": far.address}
    far.run("nsm", "shutdown")
    far.cut()
    with ThreadPoolExecutor() as pool:

        def both(*command: str) -> list[str]:
            calls = [pool.submit(run, *command, variables=each) for each in (near, other)]
            done = [call.result() for call in calls]
            assert [each.returncode for each in done] == [0, 0], done
            return [each.stdout for each in done]

        both("nsm", "run", "-e", "python", "-s", "shared", "n = globals().get('n', 0) + 1")
        assert both("nsm", "run", "-e", "python", "-s", "shared", "print(n)") == ["2\n", "2\n"]
        both("nsm", "host", "setup", far.address)
        place = far.there / ".local" / "share" / "nsm"
        assert [path.name for path in place.iterdir()] == ["host"]
    ways = far.ways()
    assert len(ways) == 2
    far.cut(ways[:1])
    for each in (near, other):
        assert run("nsm", "run", "-e", "python", "-s", "shared", "n", variables=each).stdout
    far.run("nsm", "kill", "shared")
