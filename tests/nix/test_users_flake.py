"""A flake as users write it: `lib.mkSandbox` and `lib.fromToml` in it, evaluated purely."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import standin
from agent_process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

FLAKE = "nix/tests/users-flake"
TIMEOUT_S = 300


def nix(place: standin.Place, verb: str, attribute: str, *options: str) -> Any:
    """A command of nix on the flake; its JSON.

    Raises:
        subprocess.CalledProcessError: it failed; `stderr` says why.
    """
    inputs = {
        "nsm": place.source,
        "nsm/nixpkgs": place.nixpkgs,
        "nsm/jail-nix": place.jail,
        "nsm/nix-index-database": place.nix_index_database,
    }
    command = [
        standin.find_nix(),
        verb,
        f"path:{place.source}/{FLAKE}#{attribute}",
        "--json",
        *options,
    ]
    for name, path in inputs.items():
        command += ["--override-input", name, f"path:{path}"]
    command += ["--no-write-lock-file", "--option", "allow-import-from-derivation", "false"]
    done = subprocess.run(
        command,
        env=place.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(place: standin.Place) -> Callable[[str], Path]:
    """Build one of its packages."""

    def build(name: str) -> Path:
        (done,) = nix(place, "build", name, "--no-link")
        return Path(done["outputs"]["out"])

    return build


def run(artifact: Path, code: str) -> str:
    done = subprocess.run(
        [str(artifact / "bin/run")],
        input=code,
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def metadata(artifact: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((artifact / "metadata.json").read_text())
    return told


@pytest.mark.jail
def test_a_sandbox(made: Callable[[str], Path]) -> None:
    artifact = made("data-science")
    told = metadata(artifact)
    assert Path(told.pop("program")).name.startswith("python3")
    assert told == {
        "schema": 1,
        "takes": ["policy", "variables"],
        "template": 2,
        "name": "data-science",
        "interpreter_type": "python",
        "timeout_seconds": 90,
        "memory_mb": 2048,
        "description": "YAML and jq",
        "preload": ["yaml"],
    }
    code = "import subprocess, yaml; subprocess.run(['jq', '-n', str(yaml.safe_load('42'))])"
    assert run(artifact, code) == "42\n"


@pytest.mark.jail
def test_environments_of_a_toml(place: standin.Place, made: Callable[[str], Path]) -> None:
    assert run(made("from-toml"), "tool") == "made by hand\n"
    # Code as an argument is not read from standard input.
    assert run(made("from-toml-argument"), "cat; jq -n 6*7") == "42\n"
    told = nix(place, "eval", "metadata")
    artifact = str(made("from-toml"))
    assert told["environments"]["mine"] == {
        "backend": "jail",
        "artifact": artifact,
        "exec": f"{artifact}/bin/run",
        "session_exec": f"{artifact}/bin/session-run",
        "interpreter_type": "bash",
        "timeout_seconds": 20,
        "memory_mb": 512,
    }
    assert told["environments"]["python"]["memory_mb"] == 1024
    assert told["project"] == {"use_flake": True, "inherit_env": ["API_KEY"]}
    assert nix(place, "eval", "devShellName") == "theirs"


@pytest.mark.jail
@pytest.mark.parametrize(("name", "imports"), [("mixed", True), ("bash-beside-old-python", False)])
def test_a_python_that_can_run_the_agent_does(
    made: Callable[[str], Path], name: str, *, imports: bool
) -> None:
    """The agent runs under the environment's Python whatever its own interpreter is, else a bundled
    one."""
    artifact = made(name)
    agent = AgentProcess([str(artifact / "bin/session-run")], workspace=Path("/workspace"))
    with closing(agent):
        reply = agent.python("import yaml; print(yaml.safe_load('42'))")
        assert (reply.stdout == "42\n") is imports
        assert agent.bash("echo $((6 * 7))").stdout == "42\n"


REFUSED = {
    "no-python": "interpreter_type is python, but none of its packages has bin/python3. "
    "Add one to packages, such as pkgs.python3.",
    "no-node": "interpreter_type is node, but none of its packages has bin/node. "
    "Add one to packages, such as pkgs.nodejs.",
    "old-python": "its python3 cannot run sessions: none",
    "not-there": "preload: its python3 cannot import nosuch, json.nosuch, no.such. ",
    "perl": 'unknown interpreter_type "perl": expected one of bash, node, python.',
    # Nix' own message names neither the environment nor what to do.
    "not-passed": "flake . is in a file that a flake reads, where what is fetched has to be "
    "locked. "
    'Make it an input, and pass it: fromToml { flakes = { "." = inputs.NAME; }; }. '
    "Passed are nixpkgs.",
}
"""By the flake's environment: why it cannot be made."""


@pytest.mark.parametrize("name", REFUSED)
def test_environments_that_cannot_be_made_are_refused_with_the_reason(
    place: standin.Place, name: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        nix(place, "build", name, "--no-link")
    assert f"nsm: environment 'mine': {REFUSED[name]}" in caught.value.stderr
