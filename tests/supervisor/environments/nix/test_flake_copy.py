"""Copies of local flakes, and Nix's git, with real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import trio

from nsm.wire.errors import NixFailedError, NixUnavailableError
from nsmd.environments.nix.program import Nix, NixExitError, find_nix, flake_copy

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


async def test_a_broken_repository_is_not_evaluated(project: Path, tmp_path: Path) -> None:
    (project / ".git" / "index").write_text("garbage")
    with pytest.raises(NixFailedError, match=f"The files of {project} are not known: git says"):
        async with flake_copy(str(project), str(tmp_path / "tree"), VARIABLES):
            pytest.fail("there is nothing to evaluate")
    assert not (tmp_path / "tree").exists()


# Nix's git


@pytest.fixture
def nix(tmp_path: Path) -> Nix:
    """A program that does with git what a shell command says, as Nix would."""
    program = tmp_path / "bin" / "nix"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec echo nix 2.8.0\nshift 4\neval "$1"\n'
    )
    program.chmod(0o755)
    (tmp_path / "cache" / "nix").mkdir(parents=True)
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    found = find_nix(f"{program.parent}:{VARIABLES['PATH']}", variables, str(tmp_path))
    assert isinstance(found, Nix)
    return found


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("git -C {project} diff HEAD --quiet", "nsm runs no git in {project}"),
        ("git -C {project} --git-dir=.git rev-parse HEAD", "nsm runs no git in"),
        ("git -C {cache}/../../project status", "write path:"),
        ("git -C {cache}/link ls-files", "nsm runs no git in"),
        ("git --git-dir={project}/.git status", "nsm does not run 'git --git-dir"),
        ("cd {project} && git status", "nsm does not run 'git status'"),
        ("git ls-remote --symref {project}", "nsm runs no git in {project}"),
        ("git -C {cache} fetch -- file://{project} x:x", "nsm runs no git in {project}"),
        ("git -C {cache} clone ../../project", "transport 'file' not allowed"),
        ("hg status -R {project}", "nsm runs no Mercurial"),
    ],
)
async def test_git_of_nix_keeps_out_of_other_repositories(
    project: Path, tmp_path: Path, nix: Nix, command: str, why: str
) -> None:
    cache = tmp_path / "cache" / "nix"
    (cache / "link").symlink_to(project)
    with pytest.raises(NixExitError) as caught:
        await nix.run([command.format(project=project, cache=cache)], timeout_s=60)
    assert why.format(project=project) in "\n".join(caught.value.tail)
    assert not (tmp_path / "proof").exists()


async def test_git_of_nix_works_in_its_cache_and_in_the_copy(
    project: Path, tmp_path: Path, nix: Nix
) -> None:
    cache, tree = tmp_path / "cache" / "nix" / "gitv3", str(tmp_path / "state" / "tree")
    new = f"git -c init.defaultBranch=x init --quiet --bare {cache}"
    assert await nix.run([f"{new} && git -C {cache} rev-parse --git-dir"], timeout_s=60) == b".\n"
    temporary = f"{tmp_path}/nix-$$-0"  # of submodules
    fetch = f"git init --quiet {temporary} && git -C {temporary} fetch -- {cache} 'refs/*:refs/*'"
    assert await nix.run([fetch], timeout_s=60) == b""
    async with flake_copy(str(project / "sub"), tree, nix.variables) as (directory, _):
        command = f"git -C {tree} ls-files"
        told = await nix.run([command], timeout_s=60, directory=directory, tree=tree)
    assert told == b"flake.nix\nsub/flake.nix\n"


def test_nix_is_not_run_without_git_of_nsm(nix: Nix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsmd.environments.nix.program._PROGRAMS", "/nonexistent")
    found = find_nix(os.path.dirname(nix.program), {}, "/")
    assert isinstance(found, NixUnavailableError)
    assert "nsm's /nonexistent/hg cannot be executed" in found.message
