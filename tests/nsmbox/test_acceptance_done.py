"""Boxes: how they begin, run and end, and what they refuse."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from box.world import HOME, PROJECT, SECRET, World, git, have_git
from nsm.jail.etc_files import linked_files
from processes import Watched, ending, tree
from realjail import needs_bwrap
from selection import one_in

pytestmark = [pytest.mark.jail, needs_bwrap]

FLAG = "<--dangerously-skip-permissions>\n"

DOES_GIT = """\
set -e
git config --list --show-scope
git log -1 --format='%an <%ae>'
echo more >>README.md
git commit -qam 'from the box'
git log -1 --format='%an <%ae> %s'
"""

LEAVES_A_CHILD = """\
(sh -c 'exec sleep 1000' &)
echo up
read line
"""
"""A shell with a child of a child that ended: nobody's, and the box's to end."""


@pytest.mark.slow
def test_python_is_there_where_python3_is(shared_world: World) -> None:
    code = "import sys; print(sys.version_info[0])"
    done = shared_world.box("python", "-c", code)
    assert done.stdout == "3\n", done.stderr


def test_files_that_links_in_usr_lead_to_are_there(shared_world: World) -> None:
    script = 'for path; do [ -e "$path" ] || echo "$path"; done'
    done = shared_world.box("sh", "-c", script, "sh", *linked_files(("/etc/alternatives",)))
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_arguments_are_claudes_but_for_three(shared_world: World) -> None:
    for own, rest, seen in (
        ((), ("-p", "--yes", "a b", "", "--continue"), ("-p", "a b", "", "--continue")),
        (("--yes",), ("--yess", "--profile", "x"), ("--yess", "--profile", "x")),
        (("--yes",), ("--net", "off", "mcp", "list"), ("--net", "off", "mcp", "list")),
    ):
        done = shared_world.run("claudebox", *own, *rest)
        assert done.stdout == FLAG + "".join(f"<{word}>\n" for word in seen), done.stderr
        assert done.returncode == 0


def test_root_is_refused_with_the_fix(shared_world: World) -> None:
    done = shared_world.run(
        "unshare", "--user", "--map-root-user", "claudebox", "--yes", "run", "id"
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "root" in done.stderr
    assert "runuser -u USER -- claudebox" in done.stderr


@pytest.mark.parametrize("directory", one_in(3, [HOME, "/home", "/", f"{HOME}/.ssh"]))
def test_a_working_directory_that_shows_too_much_is_refused(
    shared_world: World, directory: str
) -> None:
    done = shared_world.run("claudebox", "--yes", "run", "true", directory=directory)
    assert (done.returncode, done.stdout) == (1, "")
    assert directory in done.stderr or "home directory" in done.stderr.lower(), done.stderr


def test_working_directories_of_any_name(world: World) -> None:
    odd = os.fsdecode(b"/home/ada/a 'b\" $(id)\nc \xff\xe9")
    world.make_directory(odd)
    done = world.run("claudebox", "--yes", "run", "sh", "-c", "pwd; echo x >made", directory=odd)
    assert (done.stdout, done.returncode) == (f"{odd}\n", 0), done.stderr
    assert (world.host(odd) / "made").read_text() == "x\n"


def test_secrets_below_the_working_directory_are_masked(world: World) -> None:
    """Also where they really lie: HOME's are links to a directory of dotfiles."""
    dots = world.make_directory(f"{HOME}/dots")
    shutil.move(world.host(f"{HOME}/.aws"), dots / "aws")
    world.link(f"{HOME}/.aws", "dots/aws")
    shutil.move(world.host(f"{HOME}/.netrc"), dots / "netrc")
    world.link(f"{HOME}/.netrc", f"{HOME}/dots/netrc")
    world.write(f"{HOME}/dots/plain", "plain\n")
    world.link(f"{HOME}/dots/keys", f"{HOME}/.ssh")
    done = world.box("grep", "-rs", ".", ".", "keys/", directory=f"{HOME}/dots")
    assert done.stdout == "./plain:plain\n", done.stderr
    done = world.box("grep", "-rs", SECRET, ".", directory=f"{HOME}/.config")
    assert (done.stdout, done.returncode) == ("", 1), done.stderr
    # Without a box, the same command finds them.
    assert SECRET in world.run("grep", "-rs", SECRET, ".", directory=f"{HOME}/.config").stdout
    # What boxes may do is configured there, also where nobody has configured anything yet.
    done = world.box("sh", "-c", ": >nsm/config.toml", directory=f"{HOME}/.config")
    assert "Read-only file system" in done.stderr
    assert world.host(f"{HOME}/.config/nsm").is_dir()


def test_git_knows_who_commits_and_nothing_else_of_the_hosts(world: World) -> None:
    have_git(world)
    done = world.box("sh", "-c", DOES_GIT)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if not line.startswith(("global\t", "local\t", "system\t"))] == [
        "Ada Lovelace <ada@example.org>",
        "Ada Lovelace <ada@example.org> from the box",
    ]
    assert sorted(line for line in lines if line.startswith("global\t")) == [
        "global\tsafe.directory=*",
        "global\tuser.email=ada@example.org",
        "global\tuser.name=Ada Lovelace",
    ]
    assert "credential.helper" not in done.stdout
    assert git(world, "log", "--format=%s") == "from the box\nfirst\n"


@pytest.mark.slow
def test_git_works_in_a_linked_worktree(world: World) -> None:
    have_git(world)
    git(world, "worktree", "add", "-q", "-b", "side", f"{HOME}/side")
    done = world.box("sh", "-c", DOES_GIT, directory=f"{HOME}/side")
    assert done.returncode == 0, done.stderr
    assert git(world, "log", "-1", "--format=%s", "side") == "from the box\n"
    # The repository's own working tree is another directory, and stays one.
    assert world.box("ls", PROJECT, directory=f"{HOME}/side").stdout.split() == []


MAKES_A_WORKTREE = """\
set -e
git worktree add -q .claude/worktrees/side
cd .claude/worktrees/side
git commit -qm 'from the box' --allow-empty
touch ordinary .envrc
touch ../../hooks 2>/dev/null || echo protected
"""


@pytest.mark.parametrize("before", one_in(2, [True, False]))
def test_claude_makes_worktrees_beside_its_settings(world: World, *, before: bool) -> None:
    have_git(world)
    if before:
        world.write(f"{PROJECT}/.claude/settings.json", "{}\n")
    done = world.run("claudebox", "--yes", "run", "sh", "-c", MAKES_A_WORKTREE)
    assert (done.stdout, done.returncode) == ("protected\n", 0), done.stderr
    assert git(world, "log", "-1", "--format=%s", "side") == "from the box\n"
    side = ".claude/worktrees/side"
    assert world.host(f"{PROJECT}/{side}/ordinary").exists()
    assert f"{side}/.envrc" in done.stderr
    assert f"{side}/ordinary" not in done.stderr
    # What an earlier box has made still works, and where its repository is cannot be changed.
    script = f"git -C {side} status --short && echo x >{side}/.git"
    again = world.run("claudebox", "--yes", "run", "sh", "-c", script)
    assert ("ordinary" in again.stdout, again.returncode) == (True, 2), again.stderr


REBASES = """\
set -e
git commit -q --allow-empty -m first
git commit -q --allow-empty -m second
git rebase -q --exec true HEAD~1
git rebase -q --exec false --exec 'touch RAN' HEAD~1 2>/dev/null || true
"""


@pytest.mark.slow
def test_a_rebase_works_and_one_that_is_left_with_commands_is_told_of(world: World) -> None:
    have_git(world)
    done = world.box("sh", "-c", f"{REBASES}git rebase --abort; git log --format=%s -2")
    assert done.stdout.split() == ["second", "first"], done.stderr
    assert "rebase" not in done.stderr
    done = world.box("sh", "-c", f"{REBASES}exit 5")
    assert done.returncode == 5
    said = "git-rebase-todo: `git rebase --continue` runs touch RAN"
    assert f"nsm box: before you go on in {PROJECT}, look at" in done.stderr
    assert said in done.stderr
    again = world.box("git", "rebase", "--continue")
    assert "a rebase is under way here" in again.stderr
    assert again.returncode == 0, again.stderr
    assert said not in again.stderr, "it was there before"


@pytest.mark.parametrize(("script", "code"), [("exit 41", 41), ("kill -9 $$", 137)])
def test_exit_codes_pass_through(shared_world: World, script: str, code: int) -> None:
    assert shared_world.run("claudebox", "--yes", "run", "sh", "-c", script).returncode == code


@pytest.mark.parametrize("number", one_in(2, [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]))
async def test_a_signal_ends_the_box_and_leaves_nothing(
    world: World, number: signal.Signals
) -> None:
    before = set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))
    with ending(
        world.popen("nsm", "box", "--yes", "--", "sh", "-c", LEAVES_A_CHILD, stderr=None)
    ) as box:
        assert box.stdout is not None
        assert box.stdout.readline() == b"up\n"
        inside = list(tree(box.pid))
        # No shell is between: who was started waits for bwrap itself.
        assert os.readlink(f"/proc/{inside[1]}/exe") == os.path.realpath(
            shutil.which("bwrap") or ""
        )
        assert len(inside) >= 5, "who waits, bwrap, its init, the shell, the child"
        with Watched(inside) as processes:
            box.send_signal(number)
            assert box.wait() == -number
            await processes.all_ended()
    left = (set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))) - before
    assert not {name for name in left if "box" in name or "bwrap" in name}


TIDIES_UP = """\
trap 'echo told; read line; echo "$line"; exit 7' TERM HUP
echo up
sleep 1000 & wait
"""


@pytest.mark.parametrize("number", one_in(2, [signal.SIGTERM, signal.SIGHUP]))
@pytest.mark.parametrize("program", [("nsm", "box", "--yes", "--"), ("claudebox", "--yes", "run")])
async def test_a_command_tidies_up_before_its_box_ends(
    shared_world: World, program: tuple[str, ...], number: signal.Signals
) -> None:
    with ending(shared_world.popen(*program, "bash", "-c", TIDIES_UP, stderr=None)) as box:
        assert box.stdout is not None
        assert box.stdout.readline() == b"up\n"
        with Watched(tree(box.pid)) as processes:
            box.send_signal(number)
            assert box.stdout.readline() == b"told\n"
            said, _ = box.communicate(b"tidy\n")
            assert (said, box.returncode) == (b"tidy\n", 7)
            await processes.all_ended()


async def test_a_box_ends_with_its_command_and_reaps(shared_world: World) -> None:
    script = "(sh -c 'exit 3' &); (exec sleep 1000 &); cat /proc/[0-9]*/stat >/dev/null; echo end"
    with ending(
        shared_world.popen("nsm", "box", "--yes", "--", "sh", "-c", f"{script}; read x")
    ) as box:
        assert box.stdout is not None
        assert box.stdout.readline() == b"end\n"
        with Watched(tree(box.pid)) as processes:
            box.communicate(b"\n")
            assert box.returncode == 0
            await processes.all_ended()


@pytest.mark.slow
def test_process_1_reaps_what_has_lost_its_parent(shared_world: World) -> None:
    """The kernel counts processes until they are reaped; Bash tries again for some seconds."""
    loses = "for i in {1..100}; do (: &); done; echo all"
    done = shared_world.box("bash", "-c", loses, options=("--limit", "processes=16"))
    assert done.stdout == "all\n", done.stderr


def test_a_dry_run_prints_what_can_be_pasted_and_does_nothing(world: World) -> None:
    variables = {"CLAUDEBOX_EXTRA_ENV": "MY_TOKEN", "MY_TOKEN": "tok-12345"}
    have_git(world)
    command = ("run", "sh", "-c", "echo $MY_TOKEN $HOME; touch done; cat ~/.gitconfig")
    done = world.run("claudebox", "--dry-run", *command, variables=variables)
    assert done.returncode == 0, done.stderr
    for value in ("tok-12345", "sk-ant-of-ada"):
        assert value not in done.stdout + done.stderr
    assert not world.host(f"{HOME}/.claudebox").exists()
    assert not world.host(f"{PROJECT}/done").exists()
    assert not world.host(f"{PROJECT}/.git/commondir").exists()
    pasted = world.run("bash", "-c", done.stdout, variables=variables)
    real = world.run("claudebox", "--yes", *command, variables=variables)
    assert pasted.returncode == real.returncode == 0, pasted.stderr + real.stderr
    assert pasted.stdout == real.stdout
    assert pasted.stdout.startswith(f"tok-12345 {HOME}\n")
    assert world.host(f"{PROJECT}/done").exists()


@pytest.mark.slow
def test_a_command_of_more_words_than_bwrap_takes_is_refused(world: World) -> None:
    assert world.box("sh", "-c", "echo $#", *["x"] * 8000).stdout == "7999\n"
    done = world.box("true", *["x"] * 9000)
    assert done.returncode == 1
    assert "no more than" in done.stderr
