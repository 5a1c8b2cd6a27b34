"""Boxes in a part of a repository, and git's worktrees beside one."""

from __future__ import annotations

import os

import pytest

from box.world import HOME, PROJECT, World, git, have_git
from realjail import needs_bwrap
from terminal import Terminal

pytestmark = [pytest.mark.jail, needs_bwrap]

PART = f"{PROJECT}/api/v1"
WORKTREES = f"{PROJECT}.worktrees"
QUESTION = "This is a part of the repository ~/project, and git does not work in a part."


@pytest.fixture
def repository(world: World) -> World:
    """A world whose project is a repository, with a directory in it."""
    world.write(f"{PART}/script", "#!/bin/sh\npwd; git log --format=%s\n", 0o755)
    have_git(world)
    return world


def on_terminal(world: World, *command: str, directory: str = PROJECT) -> Terminal:
    return Terminal(
        world.command(*command, directory=directory), world.variables, rows=40, columns=100
    )


def test_the_whole_repository_is_asked_for_once(repository: World) -> None:
    options = ("--add", "../../../other:rw", "--hide", "./hidden")
    repository.write(f"{PART}/hidden", "SECRET\n")
    script = "./script; cat hidden; ls -d /home/ada/other; pwd"
    command = ("nsm", "box", *options, "--", "sh", "-c", script)
    with on_terminal(repository, *command, directory=PART) as terminal:
        terminal.see(QUESTION, "[n]o:")
        terminal.type("y\r")
        terminal.see("A box for shell in ~/project:", "~/other", "Start it?", "[n]o:")
        terminal.type("y\r")
        assert terminal.end() == 0
        assert "SECRET" not in terminal.text
        assert f"{PART}\r\nfirst".replace("\r", "") in terminal.text.replace("\r", "")
    # Both answers are remembered, also where nobody is asked.
    done = repository.box("./script", directory=PART)
    assert done.stdout == f"{PART}\nfirst\n", done.stderr
    with on_terminal(repository, *command, directory=PART) as terminal:
        assert terminal.end() == 0
        assert "[n]o" not in terminal.text


@pytest.mark.slow
def test_without_an_answer_a_part_is_all(repository: World) -> None:
    done = repository.box("sh", "-c", "git log; ls ../..", directory=PART)
    assert "not a git repository" in done.stderr
    assert done.stdout == "api\n"
    with on_terminal(repository, "nsm", "box", "--", "git", "log", directory=PART) as terminal:
        terminal.see(QUESTION, "[n]o:")
        terminal.type("n\r")
        terminal.see("A box for shell in ~/project/api/v1:", "Start it?", "[n]o:")
        terminal.type("o\r")
        assert terminal.end() == 128


@pytest.mark.slow
def test_repositories_that_are_none_of_hers_are_not_asked_for(repository: World) -> None:
    part = "/home/shared/project/part"
    repository.make_directory(part)
    place = repository.host("/home/shared/project/.git")
    for kind in ("link", "empty"):
        if kind == "link":
            place.symlink_to(f"{PROJECT}/.git")
        else:
            place.unlink()
            place.mkdir()
        with on_terminal(repository, "nsm", "box", "--", "true", directory=part) as terminal:
            terminal.see("Start it?", "[n]o:")
            terminal.type("n\r")
            assert terminal.end() == 1
            assert QUESTION.partition("~")[0] not in terminal.text


def test_worktrees_are_made_where_they_stay(repository: World) -> None:
    script = (
        f"cat /run/nsm/rules.md; git worktree add -q {WORKTREES}/one -b one && cd {WORKTREES}/one"
        " && echo x >new && git add new && git commit -qm 'in one'"
    )
    done = repository.box("sh", "-c", script, options=("--worktrees",))
    assert done.returncode == 0, done.stderr
    assert f"Make git's worktrees in `{WORKTREES}`." in done.stdout
    assert git(repository, "log", "-1", "--format=%s", "one") == "in one\n"
    # Granted once: the next box has it without being asked for, claudebox, too.
    script = (
        f"cd {WORKTREES}/one && git log -1 --format=%s; echo x >.git; mv .git g; cd ..; mv one o"
    )
    done = repository.run("claudebox", "--yes", "run", "sh", "-c", script)
    assert done.stdout == "in one\n", done.stderr
    assert "Read-only file system" in done.stderr
    assert done.stderr.count("busy") == 2
    done = repository.box("ls", WORKTREES, options=("--no-worktrees",))
    assert done.returncode == 2
    assert repository.box("ls", WORKTREES).returncode == 2, "taken back"


@pytest.mark.slow
def test_nothing_is_made_unless_a_box_starts(repository: World) -> None:
    for command in (("--dry-run",), ()):
        arguments = ("nsm", "box", "--worktrees", *command, "--", "true")
        if command:
            assert repository.run(*arguments).returncode == 0
        else:
            with on_terminal(repository, *arguments) as terminal:
                terminal.see(f"~/{os.path.basename(WORKTREES)}", "Start it?", "[n]o:")
                terminal.type("n\r")
                assert terminal.end() == 1
        assert not repository.host(WORKTREES).exists()
    assert repository.box("ls", WORKTREES).returncode == 2, "not remembered"


def test_worktrees_need_a_repository_and_a_directory(repository: World) -> None:
    done = repository.box("true", options=("--worktrees",), directory=f"{HOME}/other")
    assert done.returncode == 2
    assert "not the top of a repository" in done.stderr
    repository.link(WORKTREES, f"{HOME}/.ssh")
    done = repository.box("true", options=("--worktrees",))
    assert done.returncode == 1
    assert "is a symbolic link" in done.stderr
