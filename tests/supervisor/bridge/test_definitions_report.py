"""`nsm-supervisor --check-bridge` and `--strict`."""

from __future__ import annotations

import json
import os
import resource
import shutil
from typing import TYPE_CHECKING

import pytest

from definition_files import definition
from nsmd.app import daemon, main
from nsmd.bridge import definitions
from nsmd.model.settings import BridgeSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nsmd.app.startup import Startup

LS = shutil.which("ls") or "/bin/ls"
WRONG = "max_args is 'x', expected a whole number from 0 to 1000"
ON, OFF = Settings(bridge=BridgeSettings(enabled=True)), Settings()


def broken(folder: Path, name: str) -> str:
    """A broken definition; returns what is told of it."""
    return f"{definition(folder, name, LS, 'max_args: x')}:5: {WRONG}"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "run/control.sock"))
    # What a supervisor changes of its own process is not to be that of the tests that follow.
    umask, limits = os.umask(0o022), resource.getrlimit(resource.RLIMIT_NOFILE)
    yield tmp_path / "config/nsm/tools"
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def enable(tools: Path) -> None:
    tools.mkdir(parents=True, exist_ok=True)
    (tools.parent / "config.toml").write_text("[bridge]\nenabled = true\n")


def test_programs_and_problems_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert definitions.report(str(tmp_path), OFF, as_json=False) == 0
    none, off = capsys.readouterr().out.splitlines()
    assert none == f"{tmp_path} has no definitions (*.md)"
    assert "`enabled = true` in `[bridge]`" in off
    good = definition(tmp_path, "deploy", LS)
    assert definitions.report(str(tmp_path), ON, as_json=False) == 0
    assert capsys.readouterr() == (f"deploy: {LS} ({good})\n", "")
    told = broken(tmp_path, "bad")
    assert definitions.report(str(tmp_path), ON, as_json=False) == 1
    assert capsys.readouterr() == (f"deploy: {LS} ({good})\n", f"{told}\n")


def test_json_has_programs_and_problems(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enable(tools)
    good = definition(tools, "deploy", LS, "cwd: /etc", "env: [LANG]", "max_args: 1")
    broken(tools, "bad")
    assert main.main(["--check-bridge", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "directory": str(tools),
        "enabled": True,
        "programs": [
            {
                "name": "deploy",
                "description": "Has deploy done",
                "command": LS,
                "source": str(good),
                "timeout_seconds": 300.0,
                "cwd": "/etc",
                "env": ["LANG"],
                "max_args": 1,
                "allow_options": False,
            }
        ],
        "problems": [
            {
                "source": str(tools / "bad.md"),
                "line": 5,
                "reason": WRONG,
                "name": "bad",
            }
        ],
    }


@pytest.mark.parametrize("option", ["--try", None])
def test_a_strict_supervisor_does_not_start_with_a_bad_definition(
    option: str | None, tools: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    enable(tools)
    told = broken(tools, "bad")
    assert main.main(["--strict", *([option] if option else [])]) == main.EXIT_USAGE
    assert told in capfd.readouterr().err


def test_a_supervisor_starts_without_strict_mistake_or_bridge(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--strict`, without a mistake, and while the bridge is off."""
    started: list[Startup] = []

    async def serve(setup: Startup) -> None:
        started.append(setup)

    monkeypatch.setattr(daemon, "serve", serve)
    enable(tools)
    assert main.main(["--strict"]) == 0
    broken(tools, "bad")
    assert main.main([]) == 0
    (tools.parent / "config.toml").unlink()
    assert main.main(["--strict"]) == 0
    assert len(started) == 3
    enable(tools)
    assert main.main(["--strict"]) == main.EXIT_USAGE
    assert len(started) == 3
