"""The package `claudebox`: what a box of it has on PATH, and how it starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standin
from nix.evaluation import evaluate
from nsmbox.host import program_links
from selection import one_in

if TYPE_CHECKING:
    from collections.abc import Callable


def build_path(place: standin.Place, extra: str) -> subprocess.CompletedProcess[str]:
    """Build PATH of boxes with more packages, a function of nixpkgs in Nix."""
    given = f"nixpkgs = {place.nixpkgs}; jailLib = import {place.stand_in_jail}/lib;"
    call = f"import {place.source}/nix/tests/box-path.nix {{ {given} extraTools = {extra}; }}"
    return subprocess.run(
        ["nix-build", "--no-out-link", "--expr", call],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def names(directories: list[str]) -> set[str]:
    return {program.name for directory in directories for program in Path(directory).iterdir()}


@pytest.mark.slow
def test_path_is_of_the_store_and_hands_out_no_keys(
    place: standin.Place, built: Callable[[str], Path]
) -> None:
    lines = (built("claudebox") / "bin/claudebox").read_text()
    file = lines.partition("NSM_BOX_TOOLS=$(<")[2].partition(")")[0]
    directories = Path(file).read_text().split(":")
    assert [each for each in directories if not each.startswith(f"{place.store}/")] == []
    found = names(directories)
    assert {"bash", "env", "git", "node", "python3", "rg", "nix", "nsm", "nsm-mcp", ","} <= found
    assert not [name for name in found if program_links.holds_keys(name)]


@pytest.mark.slow
def test_claudebox_starts_the_agent_of_the_store(
    place: standin.Place, built: Callable[[str], Path]
) -> None:
    """One program in place of the shell, which was checked by shellcheck when it was built."""
    script = (built("claudebox") / "bin/claudebox").read_text()
    assert f"export NSM_BOX_STORE={place.store}\n" in script
    [last] = [line for line in script.splitlines() if line.startswith("exec ")]
    assert last.endswith('/bin/claudebox "$@"')


@pytest.mark.slow
@pytest.mark.usefixtures("node_in_store")
@pytest.mark.parametrize("program", one_in(4, ["ssh", "gpg2", "age-keygen", "tailscale"]))
def test_tools_that_hand_out_keys_end_the_build(place: standin.Place, program: str) -> None:
    done = build_path(place, f'pkgs: [ (pkgs.writeShellScriptBin "{program}" "") ]')
    assert done.returncode != 0
    assert f"/bin/{program} must not be on PATH in a box" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("node_in_store")
def test_extra_packages_come_first_on_path(place: standin.Place) -> None:
    done = build_path(place, 'pkgs: [ (pkgs.writeShellScriptBin "own-tool" "") ]')
    assert done.returncode == 0, done.stderr
    first = Path(done.stdout.strip()).read_text().split(":")[0]
    assert first.endswith("-own-tool/bin")


def test_forbidden_programs_are_the_same(place: standin.Place) -> None:
    tools = f"import {place.source}/nix/boxTools.nix {{ pkgs = {{ }}; comma = null; }}"
    assert evaluate(place, f"({tools}).forbidden") == list(program_links.KEYS)
