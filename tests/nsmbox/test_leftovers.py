"""Files that a box left and git on the host would run, in repositories made by the real git."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from box.repositories import GIT, commit, git, look, repository, variables
from nsmbox.protection import guarded_files, leftovers

if TYPE_CHECKING:
    from pathlib import Path

WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def before(project: Path) -> leftovers.Before:
    return leftovers.before(str(project), look(project, project.parent / "home").common)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = repository(tmp_path / "project")
    commit(made)
    return made


def stopped_rebase(project: Path, *arguments: str) -> None:
    """A rebase that goes on with `git rebase --continue`."""
    done = subprocess.run(
        [GIT, *WHO, "rebase", "-q", *arguments, "--exec", "false", "HEAD~1"],
        cwd=project,
        env=variables(project.parent / "home"),
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0


def test_what_has_not_changed_is_not_told(project: Path) -> None:
    was = before(project)
    commit(project)
    git(project, "switch", "-q", "-c", "side")
    assert leftovers.told(was) == ""


def test_a_rebase_that_is_left_with_commands(project: Path) -> None:
    was = before(project)
    stopped_rebase(project, "--exec", "false")
    todo = project / ".git" / leftovers.REBASE_LIST
    marker = project.parent / "ran"
    todo.write_text(f"# exec not this\nx\ttouch {marker}\n  exec echo \x1b[2J\r\npick 1234 exec\n")
    said = leftovers.told(was).splitlines()
    assert said[0].startswith(f"before you use git in {project}, look at what the box has left")
    assert said[1:] == [
        f"  .git/{leftovers.REBASE_LIST}: `git rebase --continue` runs touch {marker}",
        f"  .git/{leftovers.REBASE_LIST}: `git rebase --continue` runs echo \ufffd[2J",
    ]
    # What it warns of is what git does.
    todo.write_text(f"x touch {marker}\n")
    git(project, *WHO, "rebase", "--continue")
    assert marker.exists()
    assert leftovers.told(was) == ""


def test_a_rebase_that_was_there_is_said_at_once_and_what_is_added_later(project: Path) -> None:
    stopped_rebase(project, "--exec", "make test")
    todo = project / ".git" / leftovers.REBASE_LIST
    todo.write_text("exec make test\n")
    was = before(project)
    assert leftovers.under_way(was).splitlines()[1:] == [
        f"  .git/{leftovers.REBASE_LIST}: make test"
    ]
    assert leftovers.told(was) == ""
    todo.write_text("exec make test\nexec evil\n")
    assert leftovers.told(was).endswith("`git rebase --continue` runs evil")
    assert "make test" not in leftovers.told(was)
    above = leftovers.under_way(before(project.parent))
    assert above.splitlines()[1:] == [
        f"  project/.git/{leftovers.REBASE_LIST}: make test",
        f"  project/.git/{leftovers.REBASE_LIST}: evil",
    ]
    todo.unlink()
    assert leftovers.under_way(before(project)) == ""


def test_linked_worktrees_and_modules_are_looked_at(project: Path) -> None:
    other = repository(project.parent / "other")
    git(project, "submodule", "-q", "add", str(other), "lib")
    was = before(project)
    git(project, "worktree", "add", "-q", str(project / "side"))
    for place in ("worktrees/side", "modules/lib"):
        todo = project / ".git" / place / leftovers.REBASE_LIST
        todo.parent.mkdir()
        todo.write_text("exec evil\n")
    told = leftovers.told(was)
    assert "  .git/worktrees/side/rebase-merge/git-rebase-todo: " in told
    assert "  .git/modules/lib/rebase-merge/git-rebase-todo: " in told
    assert len(told.splitlines()) == 3


def test_a_new_repository_that_runs_something(project: Path) -> None:
    (project / "had").mkdir()
    git(project / "had", "init", "-q", home=project.parent)
    was = before(project)
    git(project / "had", "config", "core.fsmonitor", "not new", home=project.parent)
    for name in ("plain", "evil"):
        git(project, "clone", "-q", "--no-local", ".", name, home=project.parent)
    git(project / "plain", "config", "core.fsmonitor", "true", home=project.parent)
    git(project / "plain", "config", "alias.st", "status", home=project.parent)
    assert leftovers.told(was) == ""
    evil = project / "evil"
    for key, value in (("core.fsmonitor", "./x"), ("filter.a b.clean", "y"), ("alias.st", "!z")):
        git(evil, "config", key, value, home=project.parent)
    hook = evil / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert leftovers.told(was).splitlines()[1:] == [
        "  evil/.git/config: core.fsmonitor = ./x",
        "  evil/.git/config: filter.a b.clean = y",
        "  evil/.git/config: alias.st = !z",
        "  evil/.git/hooks/post-checkout",
    ]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_submodule_is_found_by_the_index_wherever_it_lies(project: Path, version: int) -> None:
    was = before(project)
    deep = repository(project / ".cache/a/b/c/deep")
    inner = repository(deep / "inner/most")
    for name in ("a", "bb", "later", "long/name/in/a/directory"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "README").touch()
    git(project, "update-index", "--index-version", str(version))
    git(project, "add", "a", "bb", "later", "long")
    if version == 3:
        git(project, "add", "--intent-to-add", "README")
    assert leftovers.told(was) == ""
    git(deep, "config", "core.fsmonitor", "one")
    git(inner, "config", "core.fsmonitor", "two")
    assert leftovers.told(was) == "", "git does not visit them"
    git(project, "add", ".cache/a/b/c/deep")
    git(deep, "add", "inner/most")
    place = ".cache/a/b/c/deep"
    assert leftovers.told(was).splitlines()[1:] == [
        f"  {place}/.git/config: core.fsmonitor = one",
        f"  {place}/inner/most/.git/config: core.fsmonitor = two",
    ]
    # A `.git` file leads to the same.
    (deep / ".git").rename(project / ".cache/moved")
    (deep / ".git").write_text(f"gitdir: {project}/.cache/moved\n")
    assert "  .cache/moved/config: core.fsmonitor = one" in leftovers.told(was)


def test_an_index_that_is_none(project: Path) -> None:
    was = before(project)
    for data in (
        b"",
        b"DIRC",
        b"DIRC" + b"\0\0\0\4" + b"\xff" * 4000,
        b"DIRC\0\0\0\2" + b"\xff" * 99,
    ):
        (project / ".git/index").write_bytes(data)
        assert leftovers.told(was) == ""


def test_a_working_directory_that_becomes_a_repository(tmp_path: Path) -> None:
    was = before(tmp_path)
    git(tmp_path, "init", "-q", "--bare", ".")
    assert leftovers.told(was) == ""
    (tmp_path / "config").write_text(
        "\ufeff[a] [CORE] fsmonitor = evil\n[include]\n\tpath = other\n"
    )
    assert leftovers.told(was).splitlines()[1:] == [
        "  ./config: core.fsmonitor = evil",
        "  ./config: include.path = other",
    ]


def test_much_is_counted(project: Path) -> None:
    was = before(project)
    todo = project / ".git" / leftovers.REBASE_LIST
    todo.parent.mkdir()
    todo.write_text("".join(f"exec {number} {'x' * 1000}\n" for number in range(100)))
    lines = leftovers.told(was).splitlines()
    assert len(lines) == leftovers.MAX_TOLD + 2
    assert lines[-1] == f"  and {100 - leftovers.MAX_TOLD} more"
    assert max(map(len, lines)) < 250


def test_a_list_that_is_no_file(project: Path) -> None:
    was = before(project)
    (project / ".git" / leftovers.REBASE_LIST).mkdir(parents=True)
    (project / ".git/worktrees").symlink_to(project)
    assert leftovers.told(was) == ""


def test_a_configuration_of_a_worktree_that_git_would_read_is_made(project: Path) -> None:
    path = f"{project}/.git/config.worktree"

    def guarded() -> guarded_files.Guarded:
        home = project.parent / "home"
        return guarded_files.look(
            str(project), look(project, home), git=GIT, variables=variables(home)
        )

    assert path not in guarded().read_only
    git(project, "config", "extensions.worktreeConfig", "true")
    git(project, "worktree", "add", "-q", str(project / "side"))
    found = guarded()
    assert {path, f"{project}/.git/worktrees/side/config.worktree"} <= set(found.read_only)
    guarded_files.make(found)
    assert git(project, "status", "--porcelain") == "?? side/\n"
    with open(path, encoding="utf-8") as file:
        assert file.read() == ""
