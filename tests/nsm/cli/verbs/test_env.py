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
from nsm.cli.verbs.completion import candidates
from nsm.wire.environments import BuiltRow
from nsm.wire.errors import BadRequestError, UnknownEnvironmentError
from nsm.wire.messages import read

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


def test_add_waits_and_shows_phases(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def add(exchange: Exchange) -> dict[str, Any]:
        for row in (BUILDING, BUILDING, {**BUILDING, "progress": {**PROGRESS, "phase": "x\x07"}}):
            exchange.emit("progress", {"environment": row})
        return {"environment": READY}

    supervisor.handlers["env_add"] = add
    assert nsm("env", "add", "./envs#science", "--name", "science") == (
        0,
        "science is ready: /nix/store/x-science\n",
        "nsm: science: building\nnsm: science: x\\x07\n",
    )
    assert supervisor.requests[-1].args == {
        "reference": f"{os.getcwd()}/envs#science",
        "name": "science",
        "wait": True,
    }


def test_a_project_is_its_file_or_its_directory(
    supervisor: FakeSupervisor, nsm: Nsm, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def add(exchange: Exchange) -> dict[str, Any]:
        asked.append(exchange.args["packages"])
        return {"environment": READY}

    supervisor.handlers["env_add"] = add
    for given in (".", "pyproject.toml", str(tmp_path)):
        assert nsm("env", "add", "web", "--pyproject", given)[0] == 0
    assert asked == [{"project": str(tmp_path / "pyproject.toml")}] * 3


def test_devices_are_asked_for_beside_the_packages(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    supervisor.handlers["env_add"] = lambda _: {"environment": READY}
    options = ("--device", "nvidia:0", "--device", "nvidia:1")
    assert nsm("env", "add", "ml", "--pip", "torch", *options)[0] == 0
    assert supervisor.requests[-1].args == {
        "name": "ml",
        "packages": {"pip": ["torch"]},
        "devices": ["nvidia:0", "nvidia:1"],
        "wait": True,
    }
    # Of a flake they are not left out silently: the supervisor refuses them.
    assert nsm("env", "add", "me", "--device", "nvidia")[0] == 0
    assert supervisor.requests[-1].args == {
        "name": "me",
        "packages": {},
        "devices": ["nvidia"],
        "wait": True,
    }


@pytest.mark.parametrize("option", ["--preload=json", "--allow-builds", "--python=/bin/python3"])
def test_options_for_packages_are_refused_without_some(
    supervisor: FakeSupervisor, nsm: Nsm, option: str
) -> None:
    supervisor.handlers["env_add"] = lambda _: {"environment": READY}
    assert nsm("env", "add", "me", option)[0] == 0
    assert "packages" in supervisor.requests[-1].args, "which the supervisor checks"


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


def test_add_that_fails(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    supervisor.handlers["env_add"] = lambda _: {"environment": FAILED}
    code, out, err = nsm("env", "add", "github:me/envs#bad")
    assert (code, out) == (1, "")
    assert err == "nsm: `nix build` failed.\nerror: no\\x1b[31m\nLook at its log.\n"
    code, out, _ = nsm("env", "add", "github:me/envs#bad", "--json")
    assert (code, json.loads(out)) == (1, FAILED)


def test_add_without_waiting(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    supervisor.handlers["env_add"] = lambda _: {"environment": BUILDING}
    code, out, err = nsm("env", "add", "github:me/envs#science", "--no-wait")
    assert (code, out) == (0, "")
    assert "science goes on being built in the background; `nsm env log -f science`" in err
    assert "wait" not in supervisor.requests[-1].args


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


def test_what_the_supervisor_refuses(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def refuse(_: Exchange) -> dict[str, Any]:
        raise BadRequestError("'-x' is no reference to a flake.", hint="Like this.")

    supervisor.handlers["env_add"] = refuse
    assert nsm("env", "add", "--", "-x") == (
        1,
        "",
        "nsm: '-x' is no reference to a flake.\nLike this.\n",
    )


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


def test_update_says_what_is_new(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    new = {**READY, "path": "/nix/store/y-science"}
    supervisor.handlers["env_list"] = lambda _: {"environments": [READY]}
    supervisor.handlers["env_update"] = lambda _: {"environments": [new]}
    assert nsm("env", "update") == (0, "science is new: /nix/store/y-science\n", "")
    supervisor.handlers["env_update"] = lambda _: {"environments": [READY, FAILED]}
    code, out, err = nsm("env", "update", "science", "bad")
    assert (code, out) == (1, "science is up to date\n")
    assert "error: no" in err


def test_rm(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    error = UnknownEnvironmentError("No environment 'x' is built by nsm.", hint="There are: a.")
    supervisor.handlers["env_remove"] = lambda _: {
        "removed": [{"name": "science", "reference": "r"}],
        "errors": [{"target": "x", "error": error.to_wire()}],
    }
    assert nsm("env", "rm", "science", "x") == (
        1,
        "removed science\n",
        "nsm: No environment 'x' is built by nsm.\nThere are: a.\n",
    )


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


def test_the_log_of_a_failed_build_begins_with_why(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def log(exchange: Exchange) -> Any:
        exchange.emit("log", {"text": "bad> compiling\n"})
        return {"environment": FAILED}

    supervisor.handlers["env_log"] = log
    told = (0, "bad> compiling\n", "nsm: its build failed: error: no\\x1b[31m\n")
    assert nsm("env", "log", "bad") == told


def test_one_environment_in_detail(supervisor: FakeSupervisor, nsm: Nsm) -> None:
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


def test_the_line_on_a_terminal() -> None:
    row = read(BuiltRow, BUILDING)
    assert environments.progress_line(row).startswith(
        "science: building pandas-2.2 (checkPhase), 3 of 12 built"
    )
    assert environments.progress_line(read(BuiltRow, READY)) == ""
    queued = read(BuiltRow, {**BUILDING, "state": "queued"})
    assert environments.progress_line(queued) == "science: waits for other builds, 1m02s"


def test_completion(supervisor: FakeSupervisor) -> None:
    supervisor.handlers["env_list"] = lambda _: {"environments": [READY, FAILED]}
    assert candidates(["env", "u"]) == ["update", "use"]
    assert candidates(["env", "rm", ""]) == ["bad", "science"]
    assert candidates(["env", "log", "-"]) == ["--follow", "--help", "--json", "-f", "-h"]
    assert candidates(["env", "add", ""]) == []
