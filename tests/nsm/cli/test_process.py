"""The command as a process: what it loads, signals, closed and broken pipes, odd surroundings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import samples
from cli_bench import NSM, TIMEOUT_S
from fakesupervisor import answer
from processes import ending

if TYPE_CHECKING:
    from fakesupervisor import Exchange, FakeSupervisor


HEAVY = {
    "trio": "0.1 s",
    "pydantic": "0.1 s",
    "mcp": "0.8 s",
    "prometheus_client": "50 ms",
    "dataclasses": "10 ms",
    "inspect": "8 ms",
    "threading": "2 ms, and the process then ends the slow way",
    "subprocess": "10 ms",
    "shutil": "4 ms",
    "signal": "only runs need it",
    "json": "only --json needs it",
    "difflib": "only a typing mistake needs it",
    "nsm.cli.verbs.run": "of another verb",
    "nsm.startup.spawn": "only a start needs it",
    "nsmd": "nothing imports the supervisor",
}


def test_ps_loads_little(supervisor: FakeSupervisor) -> None:
    """`nsm ps` may take three times as long as a bare Python; each of these is too much."""
    supervisor.handlers["sessions"] = answer(sessions=[samples.session_row()])
    program = (
        "import sys; before = set(sys.modules); from nsm.cli.main import main; main(['ps']); "
        "sys.stderr.write(' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert "s-1" in done.stdout
    loaded = set(done.stderr.split())
    assert "nsm.cli.verbs.sessions" in loaded
    assert loaded.isdisjoint(HEAVY), {name: HEAVY[name] for name in loaded & set(HEAVY)}


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "nsm.wire.errors":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["nsm", "--version"]
from nsm.cli.entry import program
program()
"""


@pytest.mark.parametrize(("ignored", "code"), [(False, 130), (True, 0)])
def test_ctrl_c_while_modules_are_loaded_ends_it_quietly(*, ignored: bool, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL
        ),
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == ignored


def test_ctrl_c_interrupts_the_run_and_shows_what_there_is(supervisor: FakeSupervisor) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "before\n")
        exchange.cancelled.wait(TIMEOUT_S)
        return samples.run_result(stdout="before\nafter\n", interrupted=True, exit_code=130)

    supervisor.handlers["run"] = run
    with ending(
        subprocess.Popen(
            [*NSM, "run", "-e", "python", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (out, err, process.returncode) == (b"after\n", b"nsm: interrupted\n", 130)
    assert supervisor.cancelled == [1]


def test_a_reader_that_goes_ends_it_quietly(supervisor: FakeSupervisor) -> None:
    """`nsm run ... | head -1`: the code is cancelled, nobody complains."""

    def run(exchange: Exchange) -> dict[str, Any]:
        while not exchange.cancelled.is_set():
            exchange.output("stdout", "y\n" * 1000)
        return samples.run_result()

    supervisor.handlers["run"] = run
    with ending(
        subprocess.Popen(
            [*NSM, "run", "-e", "python", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 141


def test_a_full_device_is_told(supervisor: FakeSupervisor) -> None:
    supervisor.handlers |= {
        "sessions": answer(sessions=[]),
        "run": answer(**samples.run_result(stdout="x")),
    }
    commands = ((["ps"], 1), (["run", "-e", "python", "x"], 125))
    for arguments, code in commands:
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*NSM, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
                timeout=TIMEOUT_S,
            )
        assert done.returncode == code
        assert done.stderr == b"nsm: standard output: No space left on device\nMake room there.\n"
        assert b"Traceback" not in done.stderr


def test_closed_standard_streams(supervisor: FakeSupervisor) -> None:
    supervisor.handlers["sessions"] = answer(sessions=[])
    for command, closed in product(("ps", "--version"), (">&-", ">&- 2>&- <&-")):
        shell = f"'{sys.executable}' -m nsm.cli {command} {closed}"
        done = subprocess.run(
            ["sh", "-c", shell], capture_output=True, check=False, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, (closed, done.stderr)
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [("", 2, b"no code"), ("-", 125, b"is closed"), ("-f -", 125, b"is closed"), ("x", 0, b"")],
)
def test_code_from_a_closed_standard_input(
    supervisor: FakeSupervisor, arguments: str, code: int, told: bytes
) -> None:
    supervisor.handlers["run"] = answer(**samples.run_result())
    command = f"'{sys.executable}' -m nsm.cli run -e python {arguments} <&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == code
    assert told in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("locale", ["C", ""])
def test_locales(supervisor: FakeSupervisor, locale: str) -> None:
    row = samples.session_row(name="ü日")
    supervisor.handlers |= {
        "sessions": answer(sessions=[row]),
        "run": answer(**samples.run_result(stdout="ü日\n")),
    }
    environment = {"NSM_SOCKET": os.environ["NSM_SOCKET"], "LC_ALL": locale}
    subprocess.run([*NSM, "ps"], env=environment, check=True, timeout=TIMEOUT_S)
    environment["PYTHONIOENCODING"] = "latin-1"
    done = subprocess.run(
        [*NSM, "ps"], env=environment, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S
    )
    assert b"\xfc\\u65e5" in done.stdout
    done = subprocess.run(
        [*NSM, "run", "-e", "python", "--no-project", "x"],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout == "ü日\n".encode()  # the code's own bytes
