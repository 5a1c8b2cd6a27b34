"""nsm as the flake's package: built, started by its own programs, and used with its presets."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standin
from e2e_support import COMMAND_TIMEOUT_S, end_supervisor
from rungates import RUN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

CLIENT = Path(__file__).resolve().parents[1] / "support" / "vm_client.py"


class Home:
    """A user's home in which nothing runs yet."""

    def __init__(self, directory: Path, run: str) -> None:
        self.socket = str(directory / "run" / "control.sock")
        (directory / "run").mkdir(mode=0o700)
        self.variables = {
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "NSM_SOCKET": self.socket,
            "PATH": "/nowhere",
            RUN_VARIABLE: run,
        }

    def run(self, *command: str | os.PathLike[str]) -> str:
        """The standard output of a command that succeeds, with nothing of ours around it."""
        done = subprocess.run(
            command,
            env=self.variables,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def home() -> Generator[Home]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        home = Home(Path(path), os.environ.get(RUN_VARIABLE, ""))
        yield home
        end_supervisor(home.socket)


@pytest.mark.slow
@pytest.mark.jail
def test_the_shim_of_the_package_starts_a_supervisor_with_its_presets(
    built: Callable[[str], Path], home: Home
) -> None:
    programs = built("default") / "bin"
    told = home.run(sys.executable, "-I", CLIENT, programs / "nsm-mcp")
    assert told.count("\nok ") == 15, told
    listed = json.loads(home.run(programs / "nsm", "env", "--json"))
    sources = {row["name"]: row["source"] for row in listed if row["available"]}
    assert sources == dict.fromkeys(("bash", "node", "python"), "NIX_SANDBOX_METADATA")
    program = home.run(programs / "nsm", "run", "-e", "bash", "command -v jq")
    assert program.startswith(str(standin.default_place().store))
    assert "defaults hold" in home.run(programs / "nsm-supervisor", "--check-config")


@pytest.mark.slow
def test_the_units_of_the_package_start_its_supervisor(built: Callable[[str], Path]) -> None:
    package = built("default")
    units = package / "share/systemd/user"  # where home-manager looks
    assert (package / "lib/systemd/user").samefile(units)  # and NixOS
    clone = standin.ROOT / "systemd"
    service = (units / "nsm-supervisor.service").read_text()
    assert f"ExecStart={package}/bin/nsm-supervisor\n" in service
    expected = (clone / "nsm-supervisor.service").read_text()
    assert service.replace(f"{package}/bin/", "") == expected
    assert (units / "nsm-supervisor.socket").read_text() == (
        clone / "nsm-supervisor.socket"
    ).read_text()


@pytest.mark.slow
def test_a_configuration_of_the_modules_is_checked_when_it_is_built(place: standin.Place) -> None:
    given = f"nixpkgs = {place.nixpkgs}; jailLib = import {place.stand_in_jail}/lib;"
    call = f"import {place.source}/nix/tests/config-file.nix {{ {given} settings = %s; }}"

    def build(settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nix-build", "--no-out-link", "--expr", call % settings],
            env=place.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = build("{ defaults.timeout_seconds = 60; }")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_text() == "[defaults]\ntimeout_seconds = 60\n"
    done = build("{ defaults.timeout_second = 60; }")
    assert done.returncode != 0
    assert "unknown key; did you mean 'timeout_seconds'?" in done.stderr


def test_the_script_of_the_vm_test_is_python(place: standin.Place) -> None:
    """The VM itself is not run here: it takes the real nixpkgs and KVM."""
    attribute = standin.flake(place, "checks.x86_64-linux.vm-not-run-here.test.testScript")
    command = [standin.find_nix(), "eval", "--raw", attribute, *standin.overrides(place)]
    script = subprocess.run(
        command, env=place.environment, capture_output=True, text=True, check=True
    ).stdout
    names = {node.id for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Name)}
    assert {"machine", "subtest", "alice"} <= names
    assert "vm_client.py --python {python} nsm-mcp" in script


@pytest.mark.slow
@pytest.mark.usefixtures("node_in_store")
def test_an_editor_can_start_the_shim_by_nix_run(place: standin.Place) -> None:
    command = [standin.find_nix(), "run", standin.flake(place, "nsm-mcp")]
    command += [*standin.overrides(place), "--", "--version"]
    done = subprocess.run(
        command, env=place.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("nsm-mcp "), done.stderr
