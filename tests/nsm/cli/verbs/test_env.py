"""`nsm env` against a fake supervisor: builds, references, environments found in a project."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import samples
from cli_bench import NSM, TIMEOUT_S
from fakesupervisor import answer
from nsm.cli.render import environments
from nsm.cli.render.environments import found_table, hints
from nsm.wire.environments import FoundRow
from nsm.wire.errors import ForbiddenError, UnknownEnvironmentError
from nsm.wire.messages import read

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor

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
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


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
    supervisor.handlers["env_add"] = answer(environment=READY)
    if meant:
        assert nsm("env", "add", "old", "--pip", "numpy", "--python", given)[0] == 0
        (_, program) = supervisor.requests[-1].args["packages"].items()
        assert program == ("interpreter", str(tmp_path / meant))
    else:
        code, _, said = nsm("env", "add", "old", "--pip", "numpy", "--python", given)
        assert code == 2
        assert "there is no python3.18 on PATH; name the program's path" in said


@pytest.mark.parametrize(
    ("command", "operation", "result", "code", "out", "err"),
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
    result: dict[str, Any],
    code: int,
    out: str,
    err: str,
) -> None:
    supervisor.handlers["env_list"] = answer(environments=[READY])
    supervisor.handlers[operation] = answer(**result)
    told = nsm("env", *command.split())
    assert (told[0], out in told[1], err in told[2]) == (code, True, True), told


def test_ctrl_c_leaves_the_build_going_on(supervisor: FakeSupervisor, path: str) -> None:
    def add(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("progress", {"environment": BUILDING})
        assert exchange.cancelled.wait(TIMEOUT_S)
        return {"environment": BUILDING}

    supervisor.handlers["env_add"] = add
    command = [*NSM, "env", "add", "github:me/envs#science"]
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
    supervisor.handlers["env_list"] = answer(environments=rows)
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
    supervisor.handlers["env_list"] = answer(environments=[])
    assert "nsm env add" in nsm("env", "builds")[1]


def test_log(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def log(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("log", {"text": "one\n\ttwo\x1b[2J\n"})
        return {"environment": READY}

    supervisor.handlers["env_log"] = log
    assert nsm("env", "log", "science") == (0, "one\n\ttwo\N{REPLACEMENT CHARACTER}[2J\n", "")
    _, out, _ = nsm("env", "log", "science", "--json")
    assert json.loads(out) == {"environment": READY, "log": "one\n\ttwo\x1b[2J\n"}
    supervisor.handlers["env_log"] = answer(environment=READY)
    assert nsm("env", "log", "science")[2] == "nsm: nothing was built of science yet\n"


def test_show_tells_about_one_environment(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    environments = [
        samples.environment_row(name="python", aliases=["py"]),
        samples.environment_row(name="bad", available=False, problem="its build failed"),
    ]
    supervisor.handlers["envs"] = answer(environments=environments)
    supervisor.handlers["env_list"] = answer(environments=[FAILED])
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


# Environments that lie in a project.


VENV: dict[str, Any] = {
    "path": ".venv",
    "kind": "venv",
    "version": "3.12.1",
    "packages": [
        {"name": "numpy", "version": "1.26", "chosen": True},
        {"name": "pandas", "version": "2.2", "chosen": True},
        {"name": "six", "version": "1.16", "chosen": False},
    ],
    "package_count": 16,
    "name": None,
    "changed": False,
    "problem": None,
}


def test_names_that_others_chose_cannot_drive_the_terminal() -> None:
    evil = "a\x1b[2J\u202e'; rm -rf ~"
    packages = [{"name": evil, "version": evil, "chosen": True}]
    row = {**VENV, "path": evil, "version": evil, "packages": packages, "problem": evil}
    rows = read(list[FoundRow], [row])
    for text in (*hints(rows), found_table(rows).replace("\n", "")):
        assert text.isprintable()
    assert "`nsm env use 'a\\x1b" in hints(rows)[0]


def test_a_list_ends_with_environments_found_in_the_project(
    supervisor: FakeSupervisor, nsm: Nsm
) -> None:
    supervisor.handlers |= {
        "envs": answer(environments=[samples.environment_row()]),
        "env_found": answer(found=[VENV]),
    }
    assert nsm("env").out.splitlines()[-1].startswith("found: .venv (")
    assert supervisor.requests[-1].args == {"project": os.getcwd()}
    assert len(json.loads(nsm("env", "--json").out)) == 1

    def refuse(_: Exchange) -> dict[str, Any]:
        raise ForbiddenError("no")

    supervisor.handlers["env_found"] = refuse
    assert "found" not in nsm("env").out


def test_an_environment_of_a_project_is_used_and_forgotten(
    supervisor: FakeSupervisor, nsm: Nsm
) -> None:
    supervisor.handlers |= {
        "env_use": answer(found={**VENV, "name": "science"}),
        "env_forget": lambda exchange: {"name": exchange.args["target"]},
    }
    said = nsm("env", "use", ".venv", "--name", "science").out
    assert "is science now: `nsm run -e science CODE`" in said
    os.mkdir("real")
    os.symlink("real", "link")
    assert nsm("env", "use", os.path.abspath("link/.venv"), "--project", "link").code == 0
    assert [request.args for request in supervisor.requests] == [
        {"project": os.getcwd(), "path": ".venv", "name": "science", "wait": True},
        {"project": os.path.abspath("link"), "path": os.path.abspath("real/.venv"), "wait": True},
    ]
    assert nsm("env", "use", "--forget", "science").out == "science is not used any more\n"
