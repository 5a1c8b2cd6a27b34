"""git on repositories that somebody else has written: what it lists, and what it does not run."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from nsm import git
from nsm.git import GitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with a commit, a new file and an ignored one."""
    made = tmp_path / "top"
    (made / "src").mkdir(parents=True)
    (made / "src" / "a").write_text("1")
    (made / "b").write_text("2")
    (made / ".gitignore").write_text(".env\n")
    (made / ".env").write_text("secret")
    run(made, "init", "--quiet")
    run(made, "add", "src", ".gitignore")
    run(made, "commit", "--quiet", "-m", "one")
    return made


def run(directory: Path, *arguments: str) -> str:
    me = (
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@example.org",
        "-c",
        "protocol.file.allow=always",
    )
    command = ["git", "-C", str(directory), *me, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def listed(directory: Path, **variables: str) -> list[str] | None:
    names = git.list_files(str(directory), {"PATH": os.environ["PATH"], **variables})
    return None if names is None else sorted(names)


ALL = [".gitignore", "b", "src/a"]


# What is listed


def test_ignored_files_are_not_listed(top: Path) -> None:
    assert listed(top) == ALL
    assert listed(top / "src") == ["a"]
    (top / "src" / "new").touch()
    assert listed(top / "src") == ["a", "new"]
    (top / ".git" / "info" / "exclude").write_text("new\n")
    assert listed(top / "src") == ["a"]
    assert run(top, "status", "--porcelain") == "?? b\n"  # and nothing of git's was changed


def test_lists_of_what_is_ignored_are_those_that_git_would_use(top: Path, tmp_path: Path) -> None:
    (tmp_path / "of-user").write_text("b\n")
    (tmp_path / "config").write_text(f"[core]\n\texcludesFile = {tmp_path}/of-user\n")
    assert listed(top, GIT_CONFIG_GLOBAL=str(tmp_path / "config")) == [".gitignore", "src/a"]
    run(top, "config", "include.path", str(tmp_path / "config"))
    assert listed(top) == [".gitignore", "src/a"]


def test_a_sparse_index_is_listed_in_full(top: Path) -> None:
    (top / "src" / "deep").mkdir()
    (top / "other").mkdir()
    (top / "other" / "c").write_text("3")
    run(top, "add", "other")
    run(top, "commit", "--quiet", "-m", "two")
    run(top, "sparse-checkout", "set", "--cone", "--sparse-index", "src")
    assert "other/\n" in run(top, "ls-files", "--sparse")
    assert listed(top) == [".gitignore", "b", "other/c", "src/a"]


def test_other_kinds_of_repositories_are_listed(top: Path, tmp_path: Path) -> None:
    run(top, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    assert listed(tmp_path / "tree") == [".gitignore", "src/a"]
    run(top, "submodule", "--quiet", "add", str(top), "module")
    assert (top / "module" / ".git").is_file()
    assert listed(top / "module") == [".gitignore", "src/a"]
    run(top, "update-index", "--split-index")
    assert listed(top) == [".gitignore", ".gitmodules", "b", "module", "src/a"]
    (top / ".git").rename(tmp_path / "moved")
    (top / ".git").symlink_to(tmp_path / "moved")
    assert listed(top) == [".gitignore", ".gitmodules", "b", "module", "src/a"]
    (tmp_path / "new").mkdir()
    run(tmp_path / "new", "init", "--quiet", "--object-format=sha256")
    (tmp_path / "new" / "x").touch()
    run(tmp_path / "new", "add", "x")
    assert listed(tmp_path / "new") == ["x"]


# What is copied


def copied(directory: Path, target: Path) -> str | None:
    target.mkdir()
    return git.copy_tracked(str(directory), str(target), {"PATH": os.environ["PATH"]})


def test_tracked_files_are_copied_as_they_are(top: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    (top / "src" / "a").write_text("changed")
    (top / "src" / "a").chmod(0o755)
    (top / "link").symlink_to("src")
    (top / "gone").touch()
    run(top, "add", "link", "gone")
    (top / "gone").unlink()
    run(top, "config", "core.fsmonitor", "false")
    assert copied(top / "src", target) == str(target / "src")
    assert sorted(path.name for path in target.iterdir()) == [".git", ".gitignore", "link", "src"]
    assert (target / "src" / "a").read_text() == "changed"
    assert os.access(target / "src" / "a", os.X_OK)
    assert (target / "link").readlink().name == "src"
    assert run(target, "ls-files") == ".gitignore\ngone\nlink\nsrc/a\n"
    assert "fsmonitor" not in (target / ".git" / "config").read_text()
    assert copied(tmp_path, tmp_path / "none") is None


def test_nothing_behind_a_link_is_copied(top: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a").write_text("secret")
    run(top, "rm", "--quiet", "--cached", "src/a")
    run(top, "add", "src/a")
    (top / "src").rename(top / "old")
    (top / "src").symlink_to(tmp_path / "secret")
    assert copied(top, tmp_path / "copy") == str(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [".git", ".gitignore"]


# What is refused


def test_a_broken_repository_is_refused(top: Path) -> None:
    (top / ".git" / "index").write_text("garbage")
    with pytest.raises(GitError, match=r"git says: .*index file smaller than expected"):
        listed(top)
    (top / ".git" / "index").unlink()
    assert listed(top) == ALL
    (top / ".git" / "config").write_text("[garbage")
    with pytest.raises(GitError, match=r"git says: .*bad config line"):
        listed(top)
    (top / ".git" / "config").unlink()
    (top / ".git" / "HEAD").unlink()
    for directory in (top, top / "src"):
        with pytest.raises(GitError, match="names none"):
            listed(directory)


@pytest.mark.parametrize("pointer", ["gitdir: /nowhere", "garbage", ""])
def test_a_git_file_that_names_no_repository_is_refused(top: Path, pointer: str) -> None:
    (top / "src" / ".git").write_text(pointer)
    with pytest.raises(GitError, match="names none"):
        listed(top / "src")


def test_a_git_file_that_names_another_repository_shows_only_names(
    top: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    run(victim, "init", "--quiet")
    (victim / "id_victim").write_text("key")
    run(victim, "add", "id_victim")
    (top / "src" / ".git").write_text(f"gitdir: {victim}/.git")
    assert listed(top / "src") == ["a", "id_victim"]  # of which the second is not there


def test_no_pipe_keeps_git_waiting(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "LIST_S", 0.5)
    (top / ".gitignore").unlink()
    os.mkfifo(top / ".gitignore")
    with pytest.raises(GitError, match=r"longer than 0\.5 s"):
        listed(top)


@pytest.mark.parametrize("name", [b"../b", b"/etc", b"a/../../b"])
def test_names_that_lead_out_are_refused(top: Path, name: bytes) -> None:
    path = top / ("x" * len(name))
    path.touch()
    run(top, "add", path.name)
    index = (top / ".git" / "index").read_bytes()[:-20].replace(path.name.encode(), name)
    (top / ".git" / "index").write_bytes(index + hashlib.sha1(index).digest())
    with pytest.raises(GitError, match="lies outside"):
        listed(top)


def test_git_is_not_taken_from_the_repository(top: Path, tmp_path: Path) -> None:
    (top / "bin").mkdir()
    script(top / "bin" / "git", tmp_path / "proof")
    assert listed(top / "src", PATH=f"{top}/bin:{os.environ['PATH']}") == ["a"]
    assert not (tmp_path / "proof").exists()
    with pytest.raises(GitError, match="no git on PATH"):
        listed(top, PATH=f"{top}/bin")


# What is not run


def script(path: Path, proof: Path) -> None:
    path.write_text(f"#!/bin/sh\ntouch '{proof}'\nexit 1\n")
    path.chmod(0o755)


def fetching(top: Path, **config: str) -> None:
    """Have a sparse index whose tree is missing, which git fetches from a promisor."""
    (top / "other").mkdir()
    (top / "other" / "c").write_text("3")
    run(top, "add", "other")
    run(top, "commit", "--quiet", "-m", "two")
    run(top, "sparse-checkout", "set", "--cone", "--sparse-index", "src")
    tree = run(top, "rev-parse", "HEAD:other").strip()
    (top / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    entries = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        **config,
    }
    for key, value in entries.items():
        run(top, "config", key, value)


def monitor(top: Path, program: str) -> None:
    run(top, "config", "core.fsmonitor", program)


def monitor_of_the_work_tree(top: Path, program: str) -> None:
    run(top, "config", "core.repositoryformatversion", "1")
    run(top, "config", "extensions.worktreeConfig", "true")
    run(top, "config", "--worktree", "core.fsmonitor", program)


def monitor_of_an_included_file(top: Path, program: str) -> None:
    (top / "evil").write_text(f"[core]\n\tfsmonitor = {program}\n")
    run(top, "config", f"includeIf.gitdir:{top}/.path", "../evil")


def external_transport(top: Path, program: str) -> None:
    fetching(top, **{"remote.origin.url": f"ext::{program}", "protocol.ext.allow": "always"})


def rewritten_address(top: Path, program: str) -> None:
    fetching(
        top,
        **{
            "remote.origin.url": "https://example.org/x",
            f"url.ext::{program} .insteadOf": "https://example.org/",
            "protocol.ext.allow": "always",
        },
    )


def upload_pack(top: Path, program: str) -> None:
    fetching(top, **{"remote.origin.url": str(top), "remote.origin.uploadpack": program})


def ssh_command(top: Path, program: str) -> None:
    fetching(top, **{"remote.origin.url": "ssh://example.org/x", "core.sshCommand": program})


def proxy_command(top: Path, program: str) -> None:
    fetching(top, **{"remote.origin.url": "git://example.org/x", "core.gitProxy": program})


@pytest.mark.parametrize(
    "prepare",
    [
        monitor,
        monitor_of_the_work_tree,
        monitor_of_an_included_file,
        external_transport,
        rewritten_address,
        upload_pack,
        ssh_command,
        proxy_command,
    ],
)
def test_no_program_of_the_configuration_runs(
    top: Path, tmp_path: Path, prepare: Callable[[Path, str], None]
) -> None:
    proof = tmp_path / "proof"
    script(tmp_path / "program", proof)
    prepare(top, str(tmp_path / "program"))
    command = ["git", "-C", str(top), "ls-files", "--cached", "--others"]
    subprocess.run(command, check=False, capture_output=True)
    assert proof.exists(), "this git would run it"
    proof.unlink()
    assert {".gitignore", "b", "src/a"} <= set(listed(top) or ())
    assert not proof.exists()


def test_no_other_program_runs_either(top: Path, tmp_path: Path) -> None:
    """git runs none of these to list files, and is to go on like that."""
    proof = tmp_path / "proof"
    program = tmp_path / "program"
    script(program, proof)
    for name in (
        "post-index-change",
        "reference-transaction",
        "post-checkout",
        "fsmonitor-watchman",
    ):
        script(top / ".git" / "hooks" / name, proof)
    for key in (
        *("alias.ls-files", "alias.config", "core.pager", "pager.ls-files", "pager.config"),
        *("core.editor", "diff.external", "filter.x.clean", "filter.x.process", "core.askPass"),
    ):
        run(top, "config", key, f"!{program}" if key.startswith("alias") else str(program))
    (top / ".gitattributes").write_text("* filter=x diff=x\n")
    assert listed(top) == [".gitattributes", *ALL]
    assert not proof.exists()


# Linked worktrees


def test_a_linked_worktree_shares_a_directory(top: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    run(top, "worktree", "add", "-q", str(linked))
    common = str(top / ".git")
    assert git.shared_directory(str(linked)) == (common, common)
    (linked / ".git").write_text("gitdir: ../top/.git/worktrees/linked\n")
    assert git.shared_directory(str(linked)) == (common, "../top/.git")
    assert git.shared_directory(str(top)) is None


def test_a_file_that_names_what_is_not_its_own_is_not_believed(top: Path, tmp_path: Path) -> None:
    linked, other = tmp_path / "linked", tmp_path / "other"
    run(top, "worktree", "add", "-q", str(linked))
    other.mkdir()
    (other / ".git").write_text((linked / ".git").read_text())
    assert git.shared_directory(str(other)) is None
    # The directory itself is written to look like a worktree's: its repository is no other.
    own = tmp_path / "own" / "worktrees" / "x"
    own.mkdir(parents=True)
    for name, text in (("HEAD", "x"), ("gitdir", f"{other}/.git"), ("commondir", f"{top}/.git")):
        (own / name).write_text(text)
    for named in (own, top / ".git", tmp_path / "nowhere"):
        (other / ".git").write_text(f"gitdir: {named}\n")
        assert git.shared_directory(str(other)) is None
