"""Traps that a box leaves in its working directory for the next box, another one, or the host."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from box.repositories import GIT
from box.world import HOME, PROJECT, SECRET, git, have_git
from terminal import Terminal

if TYPE_CHECKING:
    from box.world import World

RENAMES = """\
try() { "$@" 2>/dev/null && echo "did: $*"; }
try mv .git elsewhere
try mv .git/hooks .git/aside
try mv .git/modules .git/aside
try mv .git/modules/lib .git/aside
try mv scripts aside
try mv -T --exchange .vscode other
try rm -rf .git/commondir .git/hooks
try ln .git/config linked
try ln -f other/file .git/config
try ln -sfn ../evil .git/hooks
try touch .git/hooks/post-commit
try sh -c 'echo >> .git/config'
try sh -c 'echo >> scripts/deploy'
try git config core.fsmonitor evil
try mount --bind other .git/hooks
try mount -o remount,rw .git/hooks
try umount .git/hooks
echo "others: $(ls other)"
git commit -q --allow-empty -m 'from the box' && echo committed
"""


def test_protected_files_cannot_be_led_around(world: World) -> None:
    world.write(f"{HOME}/library/file", "x\n")
    have_git(world, f"{HOME}/library")
    world.write(f"{PROJECT}/scripts/deploy", "deploy\n")
    world.write(f"{PROJECT}/.vscode/tasks.json", "{}\n")
    world.write(f"{PROJECT}/other/file", "x\n")
    have_git(world)
    git(
        world,
        *("-c", "protocol.file.allow=always", "submodule", "--quiet"),
        *("add", f"{HOME}/library", "lib"),
    )
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nprotect_paths = ["scripts/deploy"]\n')
    before = git(world, "config", "--local", "--list")
    done = world.box("sh", "-c", RENAMES)
    assert done.stdout.splitlines() == ["others: file", "committed"], done.stderr
    assert git(world, "config", "--local", "--list") == before
    assert git(world, "log", "-1", "--format=%s") == "from the box\n"
    assert git(world, "status", "--porcelain", ".git", "scripts", ".vscode") == ""


LINKS = """\
mkdir -p githooks conf/vscode .claude .ai
printf 'exit 0\\n' >githooks/pre-commit
for each in m.json conf/vscode/tasks.json .ai/settings.json envrc; do echo good >$each; done
rm -r .git/hooks && ln -s ../githooks .git/hooks
mv .git/config gitconfig && ln -s ../gitconfig .git/config
ln -s m.json .mcp.json
ln -s ../.ai/settings.json .claude/settings.json
ln -s conf/vscode .vscode
ln -s chain .envrc && ln -s conf/chain chain && ln -s ../envrc conf/chain
ln -s absent/codex .codex
"""

EXCHANGE = """\
import ctypes, sys
sys.exit(-ctypes.CDLL(None).renameat2(-100, *map(str.encode, sys.argv[1:2]), -100, b"evil", 2))
"""

ATTACKS = (
    ("echo evil >m.json", ".mcp.json"),
    ("ln -sfn evil .mcp.json", ".mcp.json"),
    ("mv -fT evil .mcp.json", ".mcp.json"),
    ("mv .mcp.json aside; echo evil >.mcp.json", ".mcp.json"),
    ("rm -f .mcp.json m.json; echo evil >.mcp.json", ".mcp.json"),
    ("ln -f m.json other; echo evil >other", ".mcp.json"),
    ('python3 -c "$exchange" .mcp.json', ".mcp.json"),
    ("mv -fT evil m.json", ".mcp.json"),
    ("echo evil >githooks/post-commit", ".git/hooks"),
    ("mv githooks aside; mkdir githooks; cp evil githooks", ".git/hooks"),
    ("rm .git/hooks; mkdir .git/hooks; cp evil .git/hooks", ".git/hooks"),
    ("mv .git aside; cp -a aside .git; cp evil .git/hooks/", ".git/hooks"),
    ("echo evil >>gitconfig", ".git/config"),
    ("git config --file gitconfig core.editor evil", ".git/config"),
    ("rm .git/config; cp evil .git/config", ".git/config"),
    ("echo evil >.ai/settings.json", ".claude"),
    ("mv .ai aside; mkdir .ai; cp evil .ai/settings.json", ".claude"),
    ("rm .claude/settings.json; cp evil .claude/settings.json", ".claude"),
    ("cp evil .vscode/", ".vscode"),
    ("mv conf aside; mkdir -p conf/vscode; cp evil conf/vscode", ".vscode"),
    ("rm -rf conf; mkdir -p conf/vscode; cp evil conf/vscode", ".vscode"),
    ("mkdir -p third/vscode; cp evil third/vscode; mv conf aside; ln -s third conf", ".vscode"),
    ("ln -sfn evil chain", ".envrc"),
    ("ln -sfn ../evil conf/chain", ".envrc"),
    ("mv conf aside; mkdir conf; cp evil conf/chain", ".envrc"),
    ("mkdir -p absent; cp evil absent/codex", ".codex"),
    ("ln -sfn evil .codex", ".codex"),
    ("mkdir elsewhere; cp evil elsewhere/codex; mv -fT elsewhere absent", ".codex"),
)
"""Attacks on a project with `LINKS`, and the name by which the host would then read `evil`."""

ATTACK = """\
import os, shutil, subprocess, sys
attacks, exchange, names = eval(sys.argv[1]), sys.argv[2], ("here", "/tmp/copy")
for command, name in attacks:
    for place in names:
        if place != "here":
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(".", place, symlinks=True)
        open(os.path.join("." if place == "here" else place, "evil"), "w").write("evil\\n")
        where = {"cwd": None if place == "here" else place}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        env = dict(os.environ, exchange=exchange)
        subprocess.run(["sh", "-c", command], env=env, **where, **quiet)
        found = subprocess.run(["grep", "-Rqs", "evil", name], **where).returncode == 0
        if found == (place == "here"):
            print(place, command)
"""


def test_links_that_lead_to_what_is_protected_are_no_way_around(world: World) -> None:
    """Each attack succeeds in a copy of the project, which nothing protects."""
    have_git(world)
    assert world.run("sh", "-ec", LINKS, directory=PROJECT).returncode == 0
    done = world.box("python3", "-c", ATTACK, repr(ATTACKS), EXCHANGE)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert "links" not in done.stderr
    assert world.run("grep", "-Rs", "evil", *{name for _, name in ATTACKS}).stdout == ""


def test_a_repository_that_a_link_names_elsewhere(world: World) -> None:
    have_git(world)
    os.rename(world.host(f"{PROJECT}/.git"), world.make_directory(f"{HOME}/store") / "git")
    world.link(f"{PROJECT}/.git", "../store/git")
    done = world.box("sh", "-c", "git status; cat /run/nsm/rules.md")
    assert f".git is a symbolic link to {HOME}/store/git, which is not shown" in done.stderr
    assert "git does not work: the box does not show the repository" in done.stdout
    script = "echo >>.git/config; rm .git; git commit -q --allow-empty -m x && echo done"
    done = world.box("sh", "-c", script, options=("--add", "../store:rw"))
    assert done.stdout == "done\n", done.stderr
    assert git(world, "log", "-1", "--format=%s") == "x\n"
    assert "is a symbolic link to" not in done.stderr


def test_a_git_file_that_a_box_has_written_shows_nothing_of_others(world: World) -> None:
    other = f"{HOME}/other"
    have_git(world, other)
    git(world, "worktree", "add", "-q", f"{HOME}/linked", directory=other)
    shutil.copy(world.host(f"{HOME}/linked/.git"), world.host(f"{PROJECT}/.git"))
    for named in (None, f"{HOME}/.ssh", HOME):
        if named:
            world.write(f"{PROJECT}/.git", f"gitdir: {named}\n")
        done = world.box("sh", "-c", f"ls -A ~; ls -A {other}; grep -rs {SECRET.split()[0]} ~")
        assert "other" not in done.stdout.split(), done.stdout
        assert (SECRET in done.stdout, ".ssh" in done.stdout.split()) == (False, False)


@pytest.mark.parametrize("name", [".vscode", ""])
def test_a_link_that_comes_while_the_plan_is_shown_is_not_followed(world: World, name: str) -> None:
    """Another box, in an outer directory, could put one there, or in the place of the inner."""
    inner = f"{PROJECT}/inner"
    world.make_directory(f"{inner}/{name}")
    command = world.command("nsm", "box", "--", "cat", f"./{name}/id_ed25519", directory=inner)
    with Terminal(command, world.variables, rows=60, columns=120) as terminal:
        terminal.see("[n]o:")
        os.rename(world.host(f"{inner}/{name}"), world.host(f"{PROJECT}/aside"))
        world.link(f"{inner}/{name}".rstrip("/"), f"{HOME}/.ssh")
        terminal.type("o\r")
        terminal.see("cannot be shown as it was when it was looked at")
        assert terminal.end() == 1
        assert SECRET not in terminal.text


CONNECT = """\
import socket
for name in ("agent", "other"):
    with socket.socket(socket.AF_UNIX) as s:
        print(s.connect_ex(name + ".sock") == 0)
print(open("kubeconfig").read() == "")
"""


def test_secrets_that_variables_name_are_hidden_in_the_working_directory(world: World) -> None:
    for name in ("agent", "other"):
        world.listen(f"{PROJECT}/{name}.sock")
    world.write(f"{PROJECT}/kubeconfig", SECRET)
    named = {
        "SSH_AUTH_SOCK": f"{PROJECT}/agent.sock",
        "KUBECONFIG": f"{HOME}/.kube/config:{PROJECT}/kubeconfig",
    }
    done = world.box("python3", "-c", CONNECT, variables=named)
    assert done.stdout.splitlines() == ["False", "True", "True"], done.stderr


def test_programs_that_a_box_has_left_are_not_run_outside(world: World) -> None:
    """A PATH with `node_modules/.bin` in it is a common one."""
    folder = f"{PROJECT}/node_modules/.bin"
    evil = f"#!/bin/sh\necho evil >{PROJECT}/evil\n"
    for name in ("git", "bwrap", "env", "nix"):
        world.write(f"{folder}/{name}", evil, 0o755)
    path = f"{folder}:.:{world.variables['PATH']}"
    done = world.box("id", "-un", variables={"PATH": path})
    assert (done.stdout, done.returncode) == ("ada\n", 0), done.stderr
    assert not (world.host(PROJECT) / "evil").exists()


def test_a_script_that_a_box_has_left_does_not_say_what_is_shown(world: World) -> None:
    world.write(f"{HOME}/private/notes", "the notes\n", 0o600)
    for first in (f"#!{HOME}/private/notes", f"#!{HOME}/.ssh/id_ed25519", "#! "):
        world.write(f"{PROJECT}/run", f"{first}\necho ran\n", 0o755)
        done = world.box("./run", options=("--dry-run",))
        assert done.returncode == 0, done.stderr
        assert ("private" in done.stdout, ".ssh" in done.stdout) == (False, False)


LEAVES = """\
mkdir -p .clinerules/hooks
echo >.clinerules/hooks/TaskStart
echo >prettier.config.mts
for name in .gitmodules pylintrc.toml Gemfile CMakeLists.txt; do echo >>$name; done
echo 'build = "x.rs"' >>Cargo.toml
echo 'init-hook = "x"' >>pyproject.toml
echo 'x = 1' >>harmless/Cargo.toml
"""


def test_files_that_programs_of_the_host_run_are_told(world: World) -> None:
    for name in ("Gemfile", "CMakeLists.txt", "Cargo.toml", "pyproject.toml"):
        world.write(f"{PROJECT}/{name}", "x = 1\n")
    world.write(f"{PROJECT}/harmless/Cargo.toml", "x = 1\n")
    done = world.box("sh", "-c", LEAVES)
    told = [line.split(" (")[0].strip() for line in done.stderr.splitlines() if "): " in line]
    assert told == [
        *(".gitmodules", "CMakeLists.txt", "Cargo.toml", "Gemfile", "prettier.config.mts"),
        *("pylintrc.toml", "pyproject.toml", ".clinerules/hooks/TaskStart"),
    ]


def test_the_hosts_git_runs_nothing_of_what_it_finds_afterwards(world: World) -> None:
    """Each of these ran code at the next `git status` while it could still be written."""
    have_git(world)
    script = f"""\
        mkdir -p evil/hooks
        cp -r .git/objects .git/refs evil/
        printf '[core]\\n\\tfsmonitor = "echo >{PROJECT}/ran; false"\\n' >evil/config
        echo ../evil >.git/commondir
        cat evil/config >>.git/config
        cp evil/config .git/config.lock && mv -f .git/config.lock .git/config
        printf '#!/bin/sh\\necho >{PROJECT}/ran\\n' >.git/hooks/post-index-change
        chmod +x .git/hooks/post-index-change
        """
    done = world.box("sh", "-c", script)
    assert done.returncode != 0
    git(world, "status")
    git(world, "add", ".")
    assert not (world.host(PROJECT) / "ran").exists()
    # Without protection, the same box has the host run it.
    done = world.box("sh", "-c", script, options=("--no-protect",))
    world.run(GIT, "status")
    assert (world.host(PROJECT) / "ran").exists()
