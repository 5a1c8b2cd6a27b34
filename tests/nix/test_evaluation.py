"""Every Nix file, without building: syntax, house rules, unit tests, the flake's outputs. And what
evaluating a project's flake does not run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import cast

import pytest
import trio

import standin
from nix.evaluation import evaluate, failures
from nsmd.environments.nix.program import Nix, NixExitError, find_nix, flake_copy

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = [ROOT / "flake.nix", *sorted((ROOT / "nix").rglob("*.nix"))]

# What is in strings and comments, which may speak of anything.
NOT_CODE = re.compile(r"''.*?''|\"(?:[^\"\\]|\\.)*\"|#[^\n]*|/\*.*?\*/", re.DOTALL)

RULES = {
    "with lib;": re.compile(r"\bwith\s+(?:\w+\.)?lib\s*;"),
    "getEnv": re.compile(r"\bgetEnv\b"),
    "import from a channel": re.compile(r"<[a-z][\w./-]*>"),
}


def test_every_file_parses(place: standin.Place) -> None:
    done = subprocess.run(
        ["nix-instantiate", "--parse", *map(str, FILES)],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rule", RULES)
def test_house_rules(rule: str) -> None:
    breaking = [
        str(file.relative_to(ROOT))
        for file in FILES
        if RULES[rule].search(NOT_CODE.sub("", file.read_text()))
    ]
    assert breaking == []


def packages(place: standin.Place) -> str:
    """An expression for the stand-in's package set."""
    return f'import {place.nixpkgs} {{ system = "x86_64-linux"; }}'


def test_unit_tests(place: standin.Place) -> None:
    given = f"pkgs = {packages(place)}; jailLib = import {place.jail}/lib;"
    assert failures(place, f"import {place.source}/nix/tests/unit {{ {given} }}") == []


def test_the_stand_in_for_jail_nix_refuses_what_jail_nix_lacks(place: standin.Place) -> None:
    tests = f"import {place.stand_in_jail}/rejections.nix {{ pkgs = {packages(place)}; }}"
    assert failures(place, tests) == []


def test_the_stand_in_for_jail_nix_has_its_combinators(place: standin.Place) -> None:
    if not (tree := os.environ.get(standin.JAIL_NIX_VARIABLE)):
        pytest.skip(f"not here: {standin.JAIL_NIX_VARIABLE} names no tree of jail.nix")

    def names(flake: object) -> list[list[str]]:
        lib = f"import {flake}/lib"
        combinators = f"(({lib}).init ({packages(place)})).combinators"
        return cast(
            "list[list[str]]",
            evaluate(place, f"map builtins.attrNames [ ({lib}) {combinators} ]"),
        )

    assert names(place.stand_in_jail) == names(tree)


def test_every_output_of_the_flake_evaluates_for_every_system(place: standin.Place) -> None:
    check = [standin.find_nix(), "flake", "check", "--no-build", standin.flake(place)]
    check += [*standin.overrides(place), "--option", "allow-import-from-derivation", "false"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*check, *options], env=place.environment, capture_output=True, text=True, check=False
        )

    done = run("--all-systems")
    if "unrecognised flag" in done.stderr:  # older ones always do
        done = run()
    assert done.returncode == 0, done.stderr
    # What both have said, so that no output was left out.
    assert "aarch64-darwin is not supported" in done.stderr


def test_the_lock_names_what_the_flake_takes(place: standin.Place) -> None:
    """Offline, a lock that lacks an input or names another one would first fail at a user's."""
    lock = evaluate(place, f"builtins.fromJSON (builtins.readFile {place.source}/flake.lock)")
    inputs = evaluate(place, f"(import {place.source}/flake.nix).inputs")
    assert lock["nodes"]["root"]["inputs"].keys() == inputs.keys()
    for name in inputs:
        locked = lock["nodes"][lock["nodes"]["root"]["inputs"][name]]["locked"]
        assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", locked["narHash"])
        assert re.fullmatch(r"[0-9a-f]{40}", locked["rev"])


OF_PROJECT = (
    "{ inputs.x = { url = %s; flake = false; }; outputs = { x, ... }: { x = x.outPath; }; }"
)


@pytest.mark.parametrize(
    "flake",
    [
        OF_PROJECT % '"git+file://@project@"',
        OF_PROJECT % '"git+file://@project@?ref=main"',
        '{ outputs = _: { x = (builtins.fetchGit { url = "@project@"; }).outPath; }; }',
        '{ outputs = _: { x = (builtins.fetchGit { url = "@project@/.git"; }).outPath; }; }',
    ],
)
def test_a_flake_that_names_a_repository_runs_nothing_there(
    place: standin.Place, tmp_path: Path, flake: str
) -> None:
    project, proof = tmp_path / "project", tmp_path / "proof"
    project.mkdir()
    (project / "flake.nix").write_text(flake.replace("@project@", str(project)))
    (project / ".gitattributes").write_text("* filter=x\n")
    for words in (
        ("init", "--quiet", "--initial-branch=master"),
        ("add", "."),
        ("-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "--quiet", "-m", "one"),
        ("branch", "main"),
        ("config", "core.fsmonitor", f"touch {proof}; false"),
        ("config", "filter.x.smudge", f"touch {proof}; cat"),
        ("config", "filter.x.clean", f"touch {proof}; cat"),
    ):
        subprocess.run(["git", "-C", str(project), *words], check=True)
    nix = find_nix(os.environ["PATH"], place.environment, str(tmp_path))
    assert isinstance(nix, Nix)
    said = trio.run(evaluated, nix, project, str(tmp_path / "tree"))
    assert not proof.exists()
    # Newer ones read repositories without git.
    assert nix.version >= (2, 20) or f"nsm runs no git in {project}" in said


async def evaluated(nix: Nix, project: Path, tree: str) -> str:
    """The attribute `x` of a project's flake, or why there is none."""
    async with flake_copy(str(project), tree, nix.variables) as (directory, flake):
        words = ["eval", "--impure", "--no-write-lock-file", f"{flake}#x"]
        try:
            told = await nix.run(words, timeout_s=60, directory=directory, tree=tree)
        except NixExitError as error:
            return "\n".join(error.tail)
    return told.decode()
