"""All of Nix' files without building: syntax, rules, units, outputs; facts that nsm has, too."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import cast

import pytest
import trio

import standin
from nix.evaluation import evaluate, failures
from nsmbox.host import program_links
from nsmd.environments.catalog import ALIASES
from nsmd.environments.nix.program import Nix, NixExitError, find_nix, flake_copy
from nsmd.jail.arguments import SYNTHETIC_FILES
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.settings import (
    DEFAULT_JAIL_UID,
    MAX_MEGABYTES,
    MAX_SECONDS,
    OLDER_PRESETS,
    PRESETS,
    EnvironmentSettings,
)

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
            "list[list[str]]", evaluate(place, f"map builtins.attrNames [ ({lib}) {combinators} ]")
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


def checks(place: standin.Place) -> str:
    """An expression for the checks of what users write."""
    return f"import {place.source}/nix/lib/checks.nix"


@pytest.mark.slow
def test_etc_has_the_same_files(place: standin.Place) -> None:
    etc = f"import {place.source}/nix/backends/etc.nix {{ pkgs = ({packages(place)}); }}"
    files = evaluate(place, f"({etc}).files")
    assert files == {os.path.basename(path): text for path, text in SYNTHETIC_FILES}


def test_bounds_are_the_same(place: standin.Place) -> None:
    accepted = " ".join(
        f'(map (v: (builtins.tryEval (({checks(place)}).{check} "x" v)).success)'
        f" [ {largest} {largest + 1} 1 0 ])"
        for check, largest in (("timeout", MAX_SECONDS), ("memory", MAX_MEGABYTES))
    )
    assert evaluate(place, f"[ {accepted} ]") == [[True, False, True, False]] * 2


def test_names_are_the_same(place: standin.Place) -> None:
    names = ["a", "a" * 64, "a" * 65, "", "-a", "0-", "A", "a_b", "a.b", "a\n", "é"]
    listed = " ".join(f'"{name}"' for name in names)
    accepted = f"map (v: (builtins.tryEval (({checks(place)}).name v)).success) [ {listed} ]"
    assert evaluate(place, accepted) == [bool(ENVIRONMENT_NAME.fullmatch(name)) for name in names]


def test_presets_are_the_same(place: standin.Place) -> None:
    of_environments = f"import {place.source}/nix/environments {{ pkgs = ({packages(place)}); }}"
    types = evaluate(place, f"builtins.mapAttrs (_: p: p.interpreter_type) ({of_environments})")
    assert types == {name: name for name in PRESETS}
    assert ALIASES == OLDER_PRESETS == {"shell": "bash"}  # `older` of nix/lib/default.nix


def test_keys_of_environments_are_the_same(place: standin.Place) -> None:
    """One config.toml serves both."""
    text = (place.source / "nix/lib/fromToml.nix").read_text()
    known, supervisors, packaged = (
        set(re.findall(r'"(\w+)"', text.partition(f"  {name} = [")[2].partition("]")[0]))
        for name in ("known", "supervisors", "packaged")
    )
    settings = {each.name for each in dataclasses.fields(EnvironmentSettings)}
    assert known | supervisors | packaged == settings | {
        "backend"
    }  # which the supervisor accepts, too


def test_root_s_jails_are_the_same_user_s(place: standin.Place) -> None:
    wrapper = (place.source / "nix/backends/wrapper.bash").read_text()
    assert f"--userspec={DEFAULT_JAIL_UID}:{DEFAULT_JAIL_UID} " in wrapper


def test_programs_that_no_box_has_are_the_same(place: standin.Place) -> None:
    tools = f"import {place.source}/nix/boxTools.nix {{ pkgs = {{ }}; comma = null; }}"
    assert evaluate(place, f"({tools}).forbidden") == list(program_links.KEYS)


def test_the_example_can_be_looked_at_in_the_flake(place: standin.Place) -> None:
    command = [standin.find_nix(), "eval", "--json"]
    command += [standin.flake(place, "debug.x86_64-linux.metadata"), *standin.overrides(place)]
    done = subprocess.run(
        command, env=place.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["environments"]) == {"python", "scratch"}
