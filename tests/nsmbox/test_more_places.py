"""Boxes with more or less than their working directory: added, hidden, kept, git's worktrees."""

from __future__ import annotations

import os

import pytest

from box.world import HOME, OTHER_PROJECT, PROJECT, SECRET, World, git, have_git
from realjail import needs_bwrap
from terminal import Terminal

pytestmark = [pytest.mark.jail, needs_bwrap]

OTHER = ("--add", "../other:rw")


def test_an_added_directory_is_read_or_written_as_asked(world: World) -> None:
    world.write(f"{HOME}/lib/a b,c\n/file", "text\n")
    tries = 'cat "$1/file"; echo more >"$1/new"'
    for ending, written in (("", False), (":ro", False), (":rw", True)):
        place = f"{HOME}/lib/a b,c\n"
        done = world.box("sh", "-c", tries, "-", place, options=("--add", f"{place}{ending}"))
        assert done.stdout == "text\n", done.stderr
        assert world.host(f"{place}/new").exists() is written
    # Without it, nothing is there.
    assert world.box("ls", f"{HOME}/lib").returncode == 2


def test_secrets_and_guarded_files_are_protected_there_too(world: World) -> None:
    have_git(world, OTHER_PROJECT)
    world.write(f"{OTHER_PROJECT}/.mcp.json", "{}")
    script = f"""
    cd {OTHER_PROJECT}
    echo hook >.git/hooks/post-checkout; echo x >>.git/config; echo x >.mcp.json
    mv .git .tig; mv .mcp.json other.json
    echo "more" >README.md
    git add README.md && git commit -qm "from the box" && git log --format=%s
    """
    done = world.box("sh", "-c", script, options=OTHER)
    assert done.stdout == "from the box\nfirst\n", done.stderr
    assert done.stderr.count("Read-only file system") == 3
    assert done.stderr.count("busy") == 2
    assert git(world, "log", "--format=%s", directory=OTHER_PROJECT) == "from the box\nfirst\n"
    # A directory of dotfiles, in which secrets lie.
    done = world.box("grep", "-rs", SECRET, f"{HOME}/.config", options=("--add", "~/.config"))
    assert (done.stdout, done.returncode) == ("", 1), done.stderr
    done = world.box("sh", "-c", ": >~/.config/nsm/config.toml", options=("--add", "~/.config:rw"))
    assert "Read-only file system" in done.stderr


@pytest.mark.slow
def test_leftovers_in_an_added_directory_are_told(world: World) -> None:
    script = f"cd {OTHER_PROJECT} && git init -q new && git -C new config core.fsmonitor ./x"
    done = world.box("sh", "-c", script, options=OTHER)
    assert "../other/new/.git/config: core.fsmonitor = ./x" in done.stderr


def test_read_only_in_a_directory_that_is_written(world: World) -> None:
    world.write(f"{PROJECT}/a/vendor/deep/file", "text\n")
    world.make_directory(f"{PROJECT}/a/vendor/own")
    options = ("--add", "a/vendor", "--add", "a/vendor/own:rw", "--hide", "a/vendor/deep/file")
    script = "echo x >a/new; echo x >a/vendor/x; echo x >a/vendor/own/x; cat a/vendor/deep/file"
    done = world.box("sh", "-c", f"{script}; mv a b; echo x >a/vendor/deep/y", options=options)
    assert done.stdout == ""
    for said in (
        "cannot create a/vendor/x: Read-only",
        "cannot create a/vendor/deep/y: Read-only",
        "cannot move 'a' to 'b': Device or resource busy",
    ):
        assert said in done.stderr
    there = [
        name
        for name in ("a/new", "a/vendor/x", "a/vendor/own/x", "a/vendor/deep/y")
        if world.host(f"{PROJECT}/{name}").exists()
    ]
    assert there == ["a/new", "a/vendor/own/x"]


@pytest.mark.slow
def test_a_directory_around_the_working_directory(world: World) -> None:
    world.write(f"{HOME}/work/shop/file", "text\n")
    world.write(f"{HOME}/work/lib/file", "text\n")
    script = "cat ../lib/file; echo x >new; echo x >../lib/new"
    shop = f"{HOME}/work/shop"
    done = world.box("sh", "-c", script, options=("--add", ".."), directory=shop)
    assert done.stdout == "text\n", done.stderr
    assert "Read-only file system" in done.stderr
    assert world.host(f"{shop}/new").exists()


def test_hidden_files_are_empty_and_stay_in_their_place(world: World) -> None:
    for path in (f"{PROJECT}/.env", f"{PROJECT}/api/.env", f"{OTHER_PROJECT}/x/.env"):
        world.write(path, "TOKEN=1\n")
    world.write(f"{PROJECT}/keys/one.pem", "key\n")
    options = ("--hide", ".env", "--hide", "keys", *OTHER)
    script = f"grep -rs . . {OTHER_PROJECT}/x; ls keys; mv api a; mv .env e; rm .env; echo x >.env"
    done = world.box("sh", "-c", script, options=options)
    assert done.stdout == "./README.md:a project\n", done.stderr
    assert done.stderr.count("busy") == 3, done.stderr
    for path in (f"{PROJECT}/.env", f"{PROJECT}/api/.env", f"{OTHER_PROJECT}/x/.env"):
        assert world.host(path).read_text() == "TOKEN=1\n"


@pytest.mark.slow
def test_variables_are_passed_and_set(world: World) -> None:
    given = ("ONE", "TWO=a=b c", "LANG=C", "ABSENT", "E=")
    options = tuple(word for name in given for word in ("--env", name))
    script = 'echo "$ONE|$TWO|$LANG|${ABSENT-none}|${E-none}"'
    done = world.box("sh", "-c", script, options=options, variables={"ONE": "1"})
    assert done.stdout == "1|a=b c|C|none|\n", done.stderr
    assert "ABSENT is not set" in done.stderr
    for wrong, why in (
        ("PATH=/x", "PATH cannot be set"),
        ("1X=secret", "'1X' is not a variable name"),
        ("=secret", "'' is not a variable name"),
    ):
        done = world.box("true", options=("--env", wrong))
        assert done.returncode == 2
        assert why in done.stderr
        assert "secret" not in done.stderr


@pytest.mark.slow
def test_the_configuration_has_them_for_claudebox(world: World) -> None:
    world.write(f"{PROJECT}/.env", "TOKEN=1\n")
    world.write(
        f"{HOME}/.config/nsm/config.toml",
        '[box]\nadd = ["~/other:rw"]\nhide = [".env"]\nenv = ["ONE"]\n',
    )
    script = f"cat .env; echo $ONE; echo x >{OTHER_PROJECT}/new"
    done = world.run("claudebox", "--yes", "run", "sh", "-c", script, variables={"ONE": "1"})
    assert done.stdout == "1\n", done.stderr
    assert world.host(f"{OTHER_PROJECT}/new").exists()
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nadd = ["~/none"]\n')
    done = world.run("claudebox", "--yes", "run", "true")
    assert done.returncode == 2
    assert "[box] add: '/home/ada/none' cannot be shown" in done.stderr


def test_caches_are_kept_for_each_project(world: World) -> None:
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\npersist = ["~/.cache/uv", "~/.npm"]\n')
    world.write(f"{HOME}/.npm/hosts", "of the host\n")
    script = "cat ~/.npm/* ~/.cache/uv/*; echo kept >~/.npm/own; echo kept >~/.cache/uv/own"
    for directory, said in ((PROJECT, ""), (PROJECT, "kept\nkept\n"), (OTHER_PROJECT, "")):
        done = world.box("sh", "-c", script, directory=directory)
        assert (done.stdout, done.returncode) == (said, 0), done.stderr
    assert not world.host(f"{HOME}/.npm/own").exists()
    # A box that kept more could have put a link there; that is not followed.
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\npersist = ["~/.cache"]\n')
    assert world.box("ln", "-s", f"{HOME}/.ssh", f"{HOME}/.cache/uv").returncode == 0
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\npersist = ["~/.cache/uv"]\n')
    done = world.box("sh", "-c", "cat ~/.cache/uv/*")
    assert done.stdout == "kept\n", done.stderr
    # The caches lie where no box sees them.
    assert world.box("ls", f"{HOME}/.cache/nsm").returncode == 2


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
