"""Copies of local flakes, with real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import trio

from nsm.wire.errors import NixFailedError
from nsmd.environments.nix.flake_copy import flake_copy

VARIABLES = {"PATH": os.environ["PATH"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose configuration has git run a program."""
    made = tmp_path / "project"
    (made / "sub").mkdir(parents=True)
    for name in ("flake.nix", "sub/flake.nix", "untracked"):
        (made / name).write_text("{}")
    for words in (
        ("init", "--quiet"),
        ("add", "flake.nix", "sub"),
        ("config", "core.fsmonitor", f"touch {tmp_path}/proof; false"),
        ("config", "filter.x.clean", f"touch {tmp_path}/proof; cat"),
    ):
        subprocess.run(["git", "-C", str(made), *words], check=True)
    (made / ".gitattributes").write_text("* filter=x\n")
    return made


def listed(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


async def test_nix_sees_what_git_tracks_and_no_configuration(project: Path, tmp_path: Path) -> None:
    tree = str(tmp_path / "state" / "tree")
    async with flake_copy(str(project), tree, VARIABLES) as (directory, flake):
        assert (directory, flake) == (tree, "path:.")
        assert listed(directory) == ["flake.nix", "sub"]
    async with flake_copy(str(project / "sub"), tree, VARIABLES) as (directory, flake):
        assert (directory, flake) == (f"{tree}/sub", ".")
        assert listed(tree) == [".git", "flake.nix", "sub"]
        await trio.run_process(["git", "-C", tree, "status"])
        config = Path(tree, ".git", "config").read_text()
        assert "fsmonitor" not in config
        assert "filter" not in config
    assert not os.path.exists(tree)
    assert not (tmp_path / "proof").exists()


async def test_without_a_repository_nix_looks_for_none(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    async with flake_copy(str(tmp_path / "project"), str(tmp_path / "tree"), VARIABLES) as found:
        assert found == (str(tmp_path / "project"), "path:.")


async def test_a_broken_repository_is_not_evaluated(project: Path, tmp_path: Path) -> None:
    (project / ".git" / "index").write_text("garbage")
    with pytest.raises(NixFailedError, match=f"The files of {project} are not known: git says"):
        async with flake_copy(str(project), str(tmp_path / "tree"), VARIABLES):
            pytest.fail("there is nothing to evaluate")
    assert not (tmp_path / "tree").exists()
