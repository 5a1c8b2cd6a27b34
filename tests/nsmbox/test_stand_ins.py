"""Stand-ins on the host: made, used by several boxes, removed with the last, also after a kill."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from box.world import AWAY, COMMAND_TIMEOUT_S, HOME, PROJECT, git, have_git
from nsmbox.model.plan import BoxError
from nsmbox.protection import leftovers, stand_ins
from nsmbox.protection.stand_ins import StandIn
from processes import ending
from realjail import needs_bwrap
from terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World
    from nsmbox.protection.leftovers import Before


pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = tmp_path / "project"
    made.mkdir()
    return made


def was(project: Path) -> Before:
    return leftovers.before(str(project), [str(project)])


def those(project: Path) -> list[StandIn]:
    return [
        StandIn(f"{project}/.vscode"),
        StandIn(f"{project}/.mcp.json", "socket", "{}"),
        StandIn(f"{project}/lefthook-local.yml", "file"),
    ]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("kinds", ["as they are", "where there are no sockets"])
def test_stand_ins_that_were_not_noted_are_removed(
    project: Path, monkeypatch: pytest.MonkeyPatch, kinds: str
) -> None:
    """A box may be killed after it made them, and before it knows what it made."""
    write, mknod = stand_ins._write, os.mknod  # pyright: ignore[reportPrivateUsage]

    def first_only(name: str, value: dict[str, object]) -> None:
        if name != "stand-ins.json" or None in value.values():
            write(name, value)

    def without_sockets(name: str, mode: int, *, dir_fd: int) -> None:
        if stat.S_ISSOCK(mode):
            raise PermissionError
        mknod(name, mode, dir_fd=dir_fd)

    def nothing(*arguments: object) -> None:
        pass

    with monkeypatch.context() as patched:
        patched.setattr(stand_ins, "_write", first_only)
        patched.setattr(stand_ins, "_let_owner_write", nothing)
        if kinds != "as they are":
            patched.setattr(os, "mknod", without_sockets)
        box = stand_ins.begin(those(project), was(project))
    os.close(box.descriptor)
    assert len(names(project)) == 3
    (project / "lefthook-local.yml").chmod(0o644)  # as if somebody else had made it
    assert len(stand_ins.abandoned()) == 1
    assert names(project) == ["lefthook-local.yml"]


def test_stand_ins_that_somebody_used_stay(project: Path) -> None:
    box = stand_ins.begin(those(project), was(project))
    (project / ".vscode" / "settings.json").write_text("{}")
    (project / ".mcp.json").unlink()
    (project / ".mcp.json").write_text("{}")
    (project / "lefthook-local.yml").write_text("x")
    assert stand_ins.made() == frozenset()
    stand_ins.end(box)
    os.close(box.descriptor)
    assert names(project) == [".mcp.json", ".vscode", "lefthook-local.yml"]
    assert names(project / ".vscode") == ["settings.json"]


def test_existing_files_are_left_as_they_are(project: Path) -> None:
    (project / ".vscode").mkdir()
    box = stand_ins.begin(those(project), was(project))
    stand_ins.end(box)
    os.close(box.descriptor)
    assert names(project) == [".vscode"]


def test_links_are_not_followed(project: Path) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    project.rmdir()
    project.symlink_to(outside)
    with pytest.raises(BoxError, match="a symbolic link has come on the way"):
        stand_ins.begin(those(project), was(outside))
    assert names(outside) == []
    assert stand_ins.abandoned() == []


def test_records_that_make_no_sense_are_forgotten(project: Path) -> None:
    box = stand_ins.begin(those(project), was(project))
    (project.parent / "state/nsm/boxes" / f"{box.id}.json").write_text("[{")
    os.close(box.descriptor)
    assert stand_ins.abandoned() == []
    assert names(project) == []


FULL = """\
mount -t tmpfs -o size=64k,nr_inodes=4 none "$1"
exec "$2" -P -c "$3" "$1"
"""

ON_FULL = """\
import os, sys
from nsmbox.model.plan import BoxError
from nsmbox.protection import leftovers, stand_ins
project = sys.argv[1]
wanted = [stand_ins.StandIn(f"{project}/n{number}") for number in range(9)]
try:
    stand_ins.begin(wanted, leftovers.before(project, [project]))
except BoxError as error:
    print(error.message, error.hint, sep="\\n")
print(os.listdir(project), stand_ins.abandoned())
"""


def test_a_full_disk_is_told_and_nothing_is_left(project: Path) -> None:
    unshare = shutil.which("unshare")
    command = [unshare or "", "-Urm", "sh", "-ec", FULL, "sh", str(project), sys.executable]
    if subprocess.run([*command[:2], "true"], check=False, capture_output=True).returncode:
        pytest.skip("not here: no user namespaces for file systems of the test's own")
    done = subprocess.run(
        [*command, ON_FULL], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == [
        f"the box cannot be kept from making {project}/n3: No space left on device.",
        "Free space on that disk (`df -h`, `df -i`), and start the box again.",
        "[] []",
    ], done.stderr


# --------------------------------------------------------------------------------- in real boxes

NOT_MADE = "nsm box: cannot be made in the box, since this computer would run it:"

TRY = textwrap.dedent("""\
    for each in .claude/settings.local.json .vscode/tasks.json .envrc .mcp.json; do
        mkdir -p "$(dirname "$each")"; echo evil >"$each" && echo "made $each"
    done
    mv .vscode aside && echo moved
    rmdir .vscode .envrc && echo removed
    umount .vscode && echo unmounted
    mkdir -p sub/.VSCODE && echo evil >sub/.VSCODE/tasks.json
    git init -q new && git -C new config core.pager evil
    exit 3
""")


def test_a_box_makes_nothing_that_runs_and_the_rest_is_told(world: World) -> None:
    have_git(world)
    done = world.box("sh", "-c", TRY)
    assert (done.stdout, done.returncode) == ("", 3), done.stderr
    first, *_ = done.stderr.splitlines()
    assert first.startswith(NOT_MADE)
    assert done.stderr.splitlines()[-2:] == [
        "  new/.git/config: core.pager = evil",
        "  sub/.VSCODE/tasks.json (added): VS Code and its forks, when it opens the directory",
    ]
    assert sorted(os.listdir(world.host(PROJECT))) == [".git", "README.md", "new", "sub"]
    assert git(world, "status", "--porcelain") == "?? new/\n?? sub/\n"


@pytest.mark.slow
def test_a_few_names_are_told_and_all_in_a_dry_run(world: World) -> None:
    have_git(world)
    world.write(f"{HOME}/docs/index.md", "")
    add = ("--add", f"{HOME}/docs:rw")
    first = world.box("true", options=add).stderr.splitlines()[0]
    told = re.fullmatch(rf"{NOT_MADE} (.+) and (\d+) more, which --dry-run names \(.*\)", first)
    assert told is not None, first
    assert told[1].split() == [".claude", ".cursor", ".envrc", ".husky", ".mcp.json", ".vscode"]
    dry = world.run("nsm", "box", "--dry-run", *add, "--", "true").stderr
    (line,) = (line for line in dry.splitlines() if "placeholders" in line)
    names, _, also = line.partition("would run it: ")[2].partition(" (the same in ")
    assert len(names.split()) == 6 + int(told[2])
    assert also.startswith("~/docs) (")


def test_a_new_project_is_made_in_an_empty_directory(world: World) -> None:
    world.write(f"{PROJECT}/.envrc", "")
    have_git(world)
    clone = ("git", "clone", "-q", PROJECT, ".")
    done = world.box(*clone, options=("--add", PROJECT), directory=AWAY)
    assert done.returncode == 0, done.stderr
    assert "This directory is empty" in done.stderr
    assert ".envrc (added): direnv" in done.stderr
    assert names(world.host(AWAY)) == [".envrc", ".git", "README.md"]


def test_git_in_a_box_takes_no_stand_in_for_a_file(world: World) -> None:
    have_git(world)
    script = "git status --porcelain; echo x >new; git add -A; git commit -qm more; git ls-files"
    done = world.box("sh", "-c", script)
    assert done.stdout.split() == ["README.md", "new"], done.stderr
    assert "box has left" not in done.stderr


@pytest.mark.slow
def test_the_project_can_be_copied_in_a_box(world: World) -> None:
    copytree = "import shutil; shutil.copytree('.', '/tmp/d')"
    script = f'cp -r . /tmp/c && tar cf /tmp/t . && python3 -c "{copytree}"'
    assert world.box("sh", "-c", script).returncode == 0


def test_somebody_may_allow_it_by_name(world: World) -> None:
    script = "mkdir -p .claude; echo mine >.claude/settings.local.json; echo >.envrc"
    done = world.box("sh", "-c", script, options=("--unprotect", ".claude"))
    assert (world.host(PROJECT) / ".claude/settings.local.json").read_text() == "mine\n"
    assert not (world.host(PROJECT) / ".envrc").exists()
    assert done.stderr.splitlines()[-1] == (
        "  .claude/settings.local.json (added): Claude Code, when it starts in the directory"
    )
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nunprotect = [".envrc"]\n')
    world.box("sh", "-c", "echo x >.envrc")
    assert (world.host(PROJECT) / ".envrc").read_text() == "x\n"


def test_boxes_share_stand_ins(world: World) -> None:
    first = world.popen("nsm", "box", "--yes", "--", "sh", "-c", "echo on; read x; mkdir .zed/a")
    with ending(first):
        assert first.stdout is not None
        assert first.stdout.readline() == b"on\n"
        assert world.box("ls", "-A").returncode == 0
        assert (world.host(PROJECT) / ".zed").is_dir(), "the first still needs it"
        _, errors = first.communicate(b"\n", timeout=COMMAND_TIMEOUT_S)
    assert b"Read-only file system" in errors
    assert os.listdir(world.host(PROJECT)) == ["README.md"]


def test_after_a_kill_the_next_box_tells_and_tidies(world: World) -> None:
    script = "mkdir -p sub/.vscode; echo x >sub/.vscode/tasks.json; echo on; sleep 60"
    box = world.popen("nsm", "box", "--yes", "--", "sh", "-c", script, start_new_session=True)
    with ending(box):
        assert box.stdout is not None
        assert box.stdout.readline() == b"on\n"
        box.send_signal(signal.SIGKILL)
        box.wait(COMMAND_TIMEOUT_S)
        box.stdout.read()  # to its end: nobody of the box is left
    assert (world.host(PROJECT) / ".zed").is_dir()
    assert f"a box in {PROJECT} was killed" in world.run("nsm", "box", "--list").stderr
    done = world.box("true", directory=f"{HOME}/other")
    assert (
        f"a box was killed with the process that waited for it: before you go on in {PROJECT}"
        in (done.stderr)
    )
    assert "  sub/.vscode/tasks.json (added): VS Code" in done.stderr
    assert sorted(os.listdir(world.host(PROJECT))) == ["README.md", "sub"]
    assert f"a box in {PROJECT} was killed: what it wrote outside of" in done.stderr
    assert "killed" not in world.box("true").stderr


@pytest.mark.slow
def test_a_directory_that_is_renamed_meanwhile_is_tidied_and_looked_at(world: World) -> None:
    script = "echo on; read x; mkdir -p sub/.vscode; echo x >sub/.vscode/tasks.json"
    box = world.popen("nsm", "box", "--yes", "--", "sh", "-c", script)
    with ending(box):
        assert box.stdout is not None
        assert box.stdout.readline() == b"on\n"
        world.host(PROJECT).rename(world.host(f"{HOME}/renamed"))
        _, errors = box.communicate(b"\n", timeout=COMMAND_TIMEOUT_S)
    assert f"before you go on in {HOME}/renamed".encode() in errors
    assert b"  sub/.vscode/tasks.json (added): VS Code" in errors
    assert sorted(os.listdir(world.host(f"{HOME}/renamed"))) == ["README.md", "sub"]


def test_stand_ins_removed_by_the_host_and_made_by_the_box_are_told(world: World) -> None:
    script = "echo on; read x; mkdir -p .zed; echo x >.zed/settings.json"
    box = world.popen("nsm", "box", "--yes", "--", "sh", "-c", script)
    with ending(box):
        assert box.stdout is not None
        assert box.stdout.readline() == b"on\n"
        (world.host(PROJECT) / ".zed").rmdir()
        _, errors = box.communicate(b"\n", timeout=COMMAND_TIMEOUT_S)
    assert b"  .zed/settings.json (added): Zed, when it opens the directory" in errors


@pytest.mark.slow
def test_a_person_is_shown_the_names(world: World) -> None:
    command = world.command("nsm", "box", "--", "true")
    with Terminal(command, world.variables, rows=60, columns=120) as terminal:
        terminal.see("[n]o:")
        shown = re.sub(r"\s+", " ", terminal.text)
        assert "cannot make .aider.conf.yml .amazonq .claude" in shown
        terminal.type("o\r")
        assert terminal.end() == 0
        assert "cannot be made in the box" not in terminal.text


def test_no_process_of_a_box_reaches_the_records(world: World) -> None:
    script = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c nsm/boxes; ls ~/.local/state"
    done = world.box("sh", "-c", script)
    assert done.stdout == "0\n", done.stdout


def test_opencode_has_a_directory_of_its_own(world: World) -> None:
    """opencode fails to start where it cannot write there."""
    done = world.box("sh", "-c", "echo x >.opencode/.gitignore && cat .opencode/.gitignore")
    assert done.stdout == "x\n", done.stderr
    assert os.listdir(world.host(PROJECT)) == ["README.md"]


@pytest.mark.slow
def test_an_opencode_directory_that_is_there_is_kept_and_can_be_written(world: World) -> None:
    there = f"{PROJECT}/.opencode"
    world.write(f"{there}/package.json", "{}")
    world.write(f"{there}/agent/review.md", "a")
    world.link(f"{there}/link", "/etc/passwd")
    script = """
    cd .opencode; ls -A; echo x >.gitignore && echo y >package.json && mkdir node_modules
    echo evil >agent/review.md; mv agent aside; cat agent/review.md; rmdir ../.opencode
    """
    done = world.box("sh", "-c", script)
    assert done.stdout == "agent\npackage.json\na", done.stderr
    assert sorted(os.listdir(world.host(there))) == ["agent", "link", "package.json"]
    assert world.host(f"{there}/package.json").read_text() == "{}"
    assert world.host(f"{there}/agent/review.md").read_text() == "a"
    assert "before you go on" not in done.stderr
    assert ".opencode" in world.box("cat", "/run/nsm/rules.md").stdout.partition("cannot change")[2]


@pytest.mark.slow
def test_whenever_a_box_is_killed_the_next_one_tidies(world: World) -> None:
    """At any step: before its record, while stand-ins are made, as it runs, at its end."""
    for step in range(12):
        box = world.popen(
            *("nsm", "box", "--yes", "--", "sh", "-c", "mkdir -p s/.vscode; echo x >s/.vscode/a"),
            start_new_session=True,
        )
        with ending(box):
            try:
                box.wait(0.12 * step)
            except subprocess.TimeoutExpired:
                os.killpg(box.pid, signal.SIGKILL)
            box.communicate(timeout=COMMAND_TIMEOUT_S)
    assert world.box("true").returncode == 0
    left = set(os.listdir(world.host(PROJECT))) - {"README.md", "s"}
    assert left == set()
    kept = os.listdir(world.host(f"{HOME}/.local/state/nsm/boxes"))
    assert kept == ["stand-ins.json"]


@pytest.mark.slow
def test_a_project_that_is_read_only_needs_none(world: World) -> None:
    world.host(PROJECT).chmod(0o555)
    done = world.box("ls", "-A")
    assert (done.stdout, done.returncode) == ("README.md\n", 0), done.stderr
