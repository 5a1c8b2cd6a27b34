"""Completion: candidates, and the bash script in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import samples
from cli_bench import TIMEOUT_S
from nsm.cli import main as cli
from nsm.cli.verbs.completion import candidates

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor


@pytest.fixture
def supervisor(supervisor: FakeSupervisor) -> FakeSupervisor:
    def sessions(_exchange: Exchange) -> dict[str, Any]:
        named = [("s-1", "work"), ("s-2", None), ("t-3", "evil; rm"), ("s-4", "word")]
        return {"sessions": [samples.session_row(id=id_, name=name) for id_, name in named]}

    def envs(_exchange: Exchange) -> dict[str, Any]:
        return {
            "environments": [
                samples.environment_row(name="python"),
                samples.environment_row(name="node", available=False, problem="missing"),
                samples.environment_row(name="bash"),
            ]
        }

    def programs(_exchange: Exchange) -> dict[str, Any]:
        rows = [samples.program_row(name=name) for name in ("deploy", "restart-db", "docs")]
        return {"enabled": True, "programs": rows, "problems": []}

    supervisor.handlers |= {"sessions": sessions, "envs": envs, "bridge_programs": programs}
    return supervisor


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s"], ["save", "secrets", "service", "setup", "shutdown", "status"]),
        (["c"], ["completion", "config", "cp"]),
        (["help", "sh"], ["shutdown"]),
        (["nope", ""], []),
        (
            ["ps", "-"],
            ["--all", "--all-hosts", "--help", "--json", "--label", "--sort", "-a", "-h", "-s"],
        ),
        (["ps", ""], []),
        (
            ["ps", "--json", "-"],
            ["--all", "--all-hosts", "--help", "--label", "--sort", "-a", "-h", "-s"],
        ),
        (["ps", "--sort", "m"], ["memory"]),
        (["config", "s"], ["show"]),
        (["config", "show", "--config", ""], [":files"]),
        (["run", "-f", ""], [":files"]),
        (["run", "--project", "/x"], [":directories"]),
        (["run", "-e", ""], ["bash", "python"]),
        (["run", "-e", "python", "-s", ""], ["word", "work"]),
        (["run", "-e", "python", ""], []),
        (["kill", ""], ["s-1", "s-2", "s-4", "t-3", "word", "work"]),
        (["bridge", "run", ""], ["deploy", "docs", "restart-db"]),
        (["bridge", "run", "--json", "d"], ["deploy", "docs"]),
        (["bridge", "run", "-"], ["--help", "--json", "-h"]),
        (["bridge", "run", "deploy", "--"], [":files"]),
        (["bridge", "help", "do"], ["docs"]),
        (["net", "wor"], ["word", "work"]),
        (["net", "--json", "work", ""], ["allow", "deny", "list", "off"]),
        (["net", "work", "allow", ""], []),
        (["inspect", "work", ""], []),
        (["diff", "work", "--stat", "a", ""], [":files"]),
        (["run", "--project-mode", "o"], ["overlay"]),
        (["cp", "dat"], [":files"]),
        (["cp", "wor"], ["word:", "work:"]),
        (["cp", "a", "work:"], []),
        (["cp", "a", "work", ":", "x"], []),
        (["box", "--pro"], ["--profile", "--protect"]),
        (["box", "--profile", "c"], ["claude", "codex"]),
        (["box", "--network", ""], ["full", "off"]),
        (["box", "--net"], ["--network"]),
        (["box", "--", ""], []),
        (["box", "--", "nsm-test-"], ["nsm-test-one", "nsm-test-two"]),
        (["box", "--yes", "--", "./"], [":files"]),
        (["box", "--", "bash", "-"], [":files"]),
    ],
)
def test_candidates(
    supervisor: FakeSupervisor,
    words: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "nsm-test-one").touch()
    (tmp_path / "nsm-test-two").touch()
    monkeypatch.setenv("PATH", f"/nonexistent:{tmp_path}")
    assert candidates(words) == expected


def test_without_a_supervisor_none_is_started(path: str, nsm: Nsm) -> None:
    assert nsm("__complete", "--", "run", "-e", "") == (0, "", "")
    assert nsm("__complete", "--", "kill", "") == (0, "", "")
    code, out, err = nsm("__complete")
    words = [line.partition("\t")[0] for line in out.split("\n") if line]
    assert words == sorted([*cli.VERBS, "--help", "--version"])
    assert (code, err) == (0, "")
    assert not os.path.exists(path)


@pytest.fixture
def bin_path(tmp_path: Path) -> str:
    """PATH with an `nsm` on it, whatever is installed."""
    program = tmp_path / "bin" / "nsm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nsm.cli "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


ASK_BASH = """
eval "$(nsm completion bash)"
COMP_WORDS=({words})
COMP_CWORD={last}
compopt() {{ echo "compopt $*"; }}
"_${{COMP_WORDS[0]}}"
for word in "${{COMPREPLY[@]}}"; do echo "$word"; done
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nsm s", ["save", "secrets", "service", "setup", "shutdown", "status"]),
        ("nsm run -f ''", ["compopt -o default"]),
        ("nsm cp work", ["compopt -o nospace", "work:"]),
        ("claudebox --yes --d", ["--dry-run"]),
    ],
)
def test_bash(supervisor: FakeSupervisor, bin_path: str, words: str, expected: list[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-c", ASK_BASH.format(words=words, last=len(words.split()) - 1)],
        env={**os.environ, "PATH": bin_path},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout.split("\n")[:-1], done.stderr) == (expected, "")


DESCRIBED: list[tuple[str, list[str]]] = [
    ("nsm dra", ["drain:take no new work, and wait until nothing runs"]),
    ("nsm status ti", ["times:show how long things take"]),
    ("nsm env --js", ["--json:print an array of objects as JSON"]),
    ("nsm kill wor", ["word:", "work:"]),
    ("nsm kill zzz", []),
    ("claudebox --d", ["--dry-run:print the command, and start nothing"]),
]

ASK_ZSH = """
compdef() {{ }}
_describe() {{ print -l -- ${{(P)2}} }}
eval "$(nsm completion zsh)"
words=({words})
CURRENT=$#words
_$words[1] || true
"""


@pytest.mark.parametrize(("words", "expected"), DESCRIBED)
def test_zsh(supervisor: FakeSupervisor, bin_path: str, words: str, expected: list[str]) -> None:
    assert _said("zsh", ["-f", "-c", ASK_ZSH.format(words=words)], bin_path) == expected


@pytest.mark.parametrize(("words", "expected"), DESCRIBED)
def test_fish(supervisor: FakeSupervisor, bin_path: str, words: str, expected: list[str]) -> None:
    script = f"nsm completion fish | source; complete -C '{words}'"
    shown = [line.replace("\t", ":") for line in _said("fish", ["-N", "-c", script], bin_path)]
    assert shown == [line.rstrip(":") for line in expected]


def _said(shell: str, arguments: list[str], bin_path: str) -> list[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"not here: {shell} is not installed, and nsm does not need it")
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, "PATH": bin_path},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]
