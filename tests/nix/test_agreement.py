"""Facts written both in Nix and in the supervisor agree; without building."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess

import pytest

import standin
from nix.evaluation import evaluate
from nsmbox.host import program_links
from nsmd.environments.catalog import ALIASES
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


def checks(place: standin.Place) -> str:
    """An expression for the checks of what users write."""
    return f"import {place.source}/nix/lib/checks.nix"


def pkgs(place: standin.Place) -> str:
    """An expression for the stand-in's package set."""
    return f'(import {place.nixpkgs} {{ system = "x86_64-linux"; }})'


@pytest.mark.slow
def test_etc_has_the_same_files(place: standin.Place) -> None:
    etc = f"import {place.source}/nix/backends/etc.nix {{ pkgs = {pkgs(place)}; }}"
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
    of_environments = f"import {place.source}/nix/environments {{ pkgs = {pkgs(place)}; }}"
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
