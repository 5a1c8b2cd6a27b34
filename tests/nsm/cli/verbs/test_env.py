"""`nsm env` and `nsm env show ENV` against a fake supervisor; references that begin here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.cli import main as cli
from nsm.cli.render import environments
from nsm.wire.errors import UnknownEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    Nsm: TypeAlias = Callable[..., tuple[int, str, str]]

TIMEOUT_S = 120
PROGRESS = {
    "phase": "building",
    "activity": "building pandas-2.2 (checkPhase)",
    "built": 3,
    "to_build": 12,
    "copied": 0,
    "to_copy": 0,
    "downloaded_bytes": 5 << 20,
    "to_download_bytes": 50 << 20,
}
READY: dict[str, Any] = {
    "name": "science",
    "reference": "github:me/envs#science",
    "state": "ready",
    "wanted_by": ["nsm env add"],
    "path": "/nix/store/x-science",
    "built_at": 1.0,
    "since_s": None,
    "progress": None,
    "cause": None,
    "error": None,
    "hint": None,
    "lock": "",
    "note": "",
}
BUILDING = {**READY, "state": "building", "path": None, "built_at": None, "since_s": 62.0}
BUILDING["progress"] = PROGRESS
FAILED = {
    **READY,
    "name": "bad",
    "state": "failed",
    "path": None,
    "built_at": None,
    "cause": "error: no\x1b[31m",
    "error": "`nix build` failed.\nerror: no\x1b[31m",
    "hint": "Look at its log.",
}


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def supervisor(path: str) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(path) as supervisor:
        yield supervisor


@pytest.fixture
def nsm(capsys: pytest.CaptureFixture[str]) -> Nsm:
    """Run a command; its exit code and what it said."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else -1
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("3.17", "python3.17"),
        ("3.17.2", "python3.17"),
        ("python3.17", "python3.17"),
        ("./python3.17", "python3.17"),
        ("3.18", ""),
    ],
)
def test_a_python_is_a_version_or_a_program(
    supervisor: FakeSupervisor,
    nsm: Nsm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    meant: str,
) -> None:
    (tmp_path / "python3.17").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    supervisor.handlers["env_add"] = lambda _: {"environment": READY}
    if meant:
        assert nsm("env", "add", "old", "--pip", "numpy", "--python", given)[0] == 0
        (_, program) = supervisor.requests[-1].args["packages"].items()
        assert program == ("interpreter", str(tmp_path / meant))
    else:
        code, _, said = nsm("env", "add", "old", "--pip", "numpy", "--python", given)
        assert code == 2
        assert "there is no python3.18 on PATH; name the program's path" in said


@pytest.mark.parametrize(
    ("command", "operation", "answer", "code", "out", "err"),
    [
        ("add r", "env_add", {"environment": READY}, 0, "science is ready: /nix/store/x", ""),
        ("add r --no-wait", "env_add", {"environment": BUILDING}, 0, "", "in the background"),
        (
            "add r",
            "env_add",
            {"environment": FAILED},
            1,
            "",
            "error: no\\x1b[31m\nLook at its log.",
        ),
        ("update", "env_update", {"environments": [READY]}, 0, "science is up to date", ""),
        (
            "rm science x",
            "env_remove",
            {
                "removed": [{"name": "science", "reference": "r"}],
                "errors": [
                    {
                        "target": "x",
                        "error": UnknownEnvironmentError("No environment 'x'").to_wire(),
                    }
                ],
            },
            1,
            "removed science",
            "No environment 'x'",
        ),
    ],
)
def test_an_action_says_what_came_of_it(
    supervisor: FakeSupervisor,
    nsm: Nsm,
    command: str,
    operation: str,
    answer: dict[str, Any],
    code: int,
    out: str,
    err: str,
) -> None:
    supervisor.handlers["env_list"] = lambda _: {"environments": [READY]}
    supervisor.handlers[operation] = lambda _: answer
    told = nsm("env", *command.split())
    assert (told[0], out in told[1], err in told[2]) == (code, True, True), told


def test_ctrl_c_leaves_the_build_going_on(supervisor: FakeSupervisor, path: str) -> None:
    def add(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("progress", {"environment": BUILDING})
        assert exchange.cancelled.wait(TIMEOUT_S)
        return {"environment": BUILDING}

    supervisor.handlers["env_add"] = add
    command = [sys.executable, "-m", "nsm.cli", "env", "add", "github:me/envs#science"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "nsm: science: building\n"
        process.send_signal(2)
        assert "goes on being built" in process.stderr.read()
        assert process.wait(TIMEOUT_S) == 130


def test_ls(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    other = {**READY, "wanted_by": ["config.toml"], "name": "lab"}
    kept = {**FAILED, "path": "/nix/store/old"}
    rows = [READY, BUILDING, other, FAILED, kept]
    supervisor.handlers["env_list"] = lambda _: {"environments": rows}
    code, out, _ = nsm("env", "builds")
    assert code == 0
    header, *lines = out.splitlines()
    assert header.split() == "NAME STATE BUILT REFERENCE NOTE".split()
    assert lines[0].startswith("science  ready")
    note = "building pandas-2.2 (checkPhase), 3 of 12 built, 5.0 MiB of 50.0 MiB, 1m02s"
    assert lines[1].endswith(note)
    assert lines[2].endswith("named by config.toml")
    assert lines[3].endswith("error: no\\x1b[31m")
    assert lines[4].endswith("(the one built before is used)")
    code, out, _ = nsm("env", "builds", "--json")
    assert json.loads(out) == rows
    supervisor.handlers["env_list"] = lambda _: {"environments": []}
    assert "nsm env add" in nsm("env", "builds")[1]


def test_log(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def log(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("log", {"text": "one\n\ttwo\x1b[2J\n"})
        return {"environment": READY}

    supervisor.handlers["env_log"] = log
    assert nsm("env", "log", "science") == (0, "one\n\ttwo\N{REPLACEMENT CHARACTER}[2J\n", "")
    _, out, _ = nsm("env", "log", "science", "--json")
    assert json.loads(out) == {"environment": READY, "log": "one\n\ttwo\x1b[2J\n"}
    supervisor.handlers["env_log"] = lambda _: {"environment": READY}
    assert nsm("env", "log", "science")[2] == "nsm: nothing was built of science yet\n"


def test_show_tells_about_one_environment(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    environments = [
        samples.environment_row(name="python", aliases=["py"]),
        samples.environment_row(name="bad", available=False, problem="its build failed"),
    ]
    supervisor.handlers["envs"] = lambda _: {"environments": environments}
    supervisor.handlers["env_list"] = lambda _: {"environments": [FAILED]}
    code, out, _ = nsm("env", "show", "py")
    assert code == 0
    assert out.startswith("name         python, py\n")
    code, out, _ = nsm("env", "show", "bad")
    assert code == 0
    assert "unavailable  its build failed\n" in out
    assert out.endswith("\n\n`nix build` failed.\nerror: no\\x1b[31m\nLook at its log.\n")
    code, out, _ = nsm("env", "show", "bad", "--json")
    assert json.loads(out)["build"] == FAILED
    assert nsm("env", "show", "nope") == (
        1,
        "",
        "nsm: no environment 'nope'\nThere are: python, bad\n",
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (".#x", "{here}#x"),
        ("./a b#x", "{here}/a%20b#x"),
        ("..", "{above}"),
        ("path:.#x", "path:{here}#x"),
        ("git+file:./a?ref=main#x", "git+file://{here}/a?ref=main#x"),
        ("github:me/envs#x", "github:me/envs#x"),
        ("/a/b#x", "/a/b#x"),
        ("nixpkgs#hello", "nixpkgs#hello"),
        (".hidden#x", ".hidden#x"),
    ],
)
def test_references_that_begin_here(typed: str, meant: str) -> None:
    here = os.getcwd()
    assert environments.absolute(typed) == meant.format(here=here, above=os.path.dirname(here))
