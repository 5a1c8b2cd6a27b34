"""Files that a box leaves in its memory: told at its end, and kept for a day."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from box.world import HOME, OTHER_PROJECT, PROJECT, World
from nsmbox.model.plan import BoxError
from nsmbox.start import unsaved_files
from processes import ending
from realjail import needs_bwrap

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.jail, needs_bwrap]

HEAD = "nsm box: the box wrote files outside of the project, which are not there any more:"

WRITES = """\
cd ~
mkdir -p other/deep .cache/x project/in
echo 'a note' >notes.md
echo '#!/bin/sh' >other/deep/run; chmod 755 other/deep/run
echo x >.cache/x/y; echo x >.hidden; echo x >project/in/x; echo x >/tmp/x; echo x >/var/tmp/x
ln -s /etc/passwd other/link; mkfifo other/pipe; mkdir empty
"""


def told(stderr: str) -> list[str]:
    """Lines about files that were not in the project."""
    _, found, rest = stderr.partition(HEAD)
    return [line.strip() for line in rest.splitlines() if line.strip()] if found else []


def test_vanished_files_are_told_and_come_back(world: World) -> None:
    done = world.box("sh", "-c", f"{WRITES}exit 7")
    assert done.returncode == 7
    first, second, how = told(done.stderr)
    assert (first, second) == ("~/notes.md (7 bytes)", "~/other/deep/run (10 bytes)")
    assert how.startswith("`nsm box --keep-last` here gets them back, until 20")
    assert os.listdir(world.host(OTHER_PROJECT)) == [".env"]
    assert world.host(f"{PROJECT}/in/x").exists()
    # Elsewhere there is nothing, and no box sees what is kept.
    done = world.run("nsm", "box", "--keep-last", directory=OTHER_PROJECT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no box that was started here" in done.stderr
    assert world.box("ls", f"{HOME}/.local/state/nsm/box-last").returncode == 2
    done = world.run("nsm", "box", "--keep-last")
    assert done.stdout == f"2 files in {PROJECT}/box-last\n", done.stderr
    back = world.host(f"{PROJECT}/box-last{HOME}")
    assert (back / "notes.md").read_text() == "a note\n"
    assert (back / "other/deep/run").stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(back)) == ["notes.md", "other"]
    assert world.run("nsm", "box", "--keep-last", "again").returncode == 1


def test_a_box_that_leaves_nothing_is_silent(world: World) -> None:
    done = world.box("sh", "-c", "echo x >~/.history; mkdir ~/empty; echo x >/tmp/x; echo x >here")
    assert told(done.stderr) == []
    assert not world.host(f"{HOME}/.local/state/nsm/box-last").exists()


@pytest.mark.slow
def test_next_to_a_project_in_a_temporary_directory(world: World) -> None:
    world.show(world.make_directory("/home/shared/temporary"), "/var/tmp")
    world.make_directory("/home/shared/temporary/work/shop")
    done = world.box(
        "sh", "-c", "echo x >../beside; echo x >/var/tmp/x", directory="/var/tmp/work/shop"
    )
    assert told(done.stderr)[0] == "/var/tmp/work/beside (2 bytes)", done.stderr


@pytest.mark.slow
def test_the_last_box_counts_and_a_directory_must_be_new(world: World) -> None:
    for number in (1, 2):
        world.box("sh", "-c", f"echo {number} >~/file-{number}")
    world.box("true")
    world.make_directory(f"{PROJECT}/there")
    done = world.run("nsm", "box", "--keep-last", "there")
    assert done.returncode == 1
    assert "File exists" in done.stderr
    done = world.run("nsm", "box", "--keep-last", "new")
    assert done.returncode == 0, done.stderr
    assert os.listdir(world.host(f"{PROJECT}/new{HOME}")) == ["file-2"]


@pytest.mark.slow
def test_a_box_that_is_ended_tells_too(world: World) -> None:
    script = "echo x >~/work; echo up; exec sleep 1000"
    with ending(world.popen("nsm", "box", "--yes", "--", "sh", "-c", script)) as box:
        assert box.stdout is not None
        assert box.stdout.readline() == b"up\n"
        box.send_signal(signal.SIGTERM)
        _, stderr = box.communicate()
    assert box.returncode == -signal.SIGTERM
    assert told(stderr.decode())[0] == "~/work (2 bytes)"


@pytest.mark.slow
def test_many_and_large_files_are_counted(world: World) -> None:
    script = "cd ~; for i in $(seq 20); do echo x >file-$i; done; truncate -s 300M big; echo x >z"
    lines = told(world.box("sh", "-c", script).stderr)
    assert lines[0] == "~/big (300.0 MiB)"
    assert lines[-3] == "and 14 more"
    assert lines[-1] == "1 of them could not be kept"
    done = world.run("nsm", "box", "--keep-last")
    assert done.stdout.startswith("21 files")


@pytest.mark.slow
def test_closed_directories_are_looked_into_and_deep_ones_are_told(world: World) -> None:
    script = """
    cd ~; mkdir shut; echo x >shut/in; chmod 0 shut/in shut
    for i in $(seq 70); do mkdir d; cd d; done; echo x >deep
    """
    lines = told(world.box("sh", "-c", script).stderr)
    assert lines[0] == "~/shut/in (2 bytes)"
    assert lines[-1].startswith("not looked into, and nothing in it was kept: ~/d/d/d/")
    assert world.run("nsm", "box", "--keep-last").stdout.startswith("1 file ")
    done = world.box("sh", "-c", "cd ~; for i in $(seq 70); do mkdir d; cd d; done; echo x >deep")
    (line,) = told(done.stderr)
    assert line.startswith("not looked into")


def test_names_of_files_are_spelled_out(world: World) -> None:
    done = world.box("sh", "-c", "cd ~; touch \"$(printf 'a\\n\\033[2Jb')\"")
    assert "\x1b" not in done.stderr
    assert told(done.stderr)[0].startswith("'~/a\\n\\x1b[2Jb' (0 bytes)")


def test_files_of_the_host_are_none_of_a_boxs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box that is ended while it is made has the host's mounts still."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "private").write_text("of the host")
    words = ["bwrap", "--unshare-user", "--dev-bind", "/", "/", "sh", "-c", "echo $$; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unmade:
        assert unmade.stdout is not None
        number = int(unmade.stdout.readline())
        mounts = os.open(f"/proc/{number}/ns/mnt", os.O_RDONLY)
        unmade.communicate()
    try:
        assert unsaved_files.keep(mounts, str(home / "work"), [str(home)], str(home)) == ""
    finally:
        os.close(mounts)
    assert not (tmp_path / "state").exists()


def test_files_come_back_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box could have its files put anywhere, such as into a directory of started programs."""
    project, victim = tmp_path / "project", tmp_path / "victim"
    for directory in (project, victim):
        directory.mkdir()
    (project / "way").symlink_to(victim)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(project)
    kept = tmp_path / unsaved_files._place(str(project))  # pyright: ignore[reportPrivateUsage]
    (kept / "home").mkdir(parents=True)
    (kept / "home" / "file").write_text("theirs")
    with pytest.raises(BoxError, match="way/out cannot be made"):
        unsaved_files.get_back(str(project), "way/out")
    assert list(victim.iterdir()) == []
    mkdir = os.mkdir

    def swapped(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        if path == "home" and not (project / "out").is_symlink():
            (project / "out").rename(project / "moved")
            (project / "out").symlink_to(victim)

    monkeypatch.setattr(os, "mkdir", swapped)
    assert unsaved_files.get_back(str(project), "out") == (str(project / "out"), 1)
    assert (project / "moved" / "home" / "file").read_text() == "theirs"
    assert list(victim.iterdir()) == []


def test_after_a_day_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name, age in (("old", unsaved_files.DAY_S + 60), ("new", 60)):
        place = tmp_path / "nsm/box-last" / name
        (place / "home").mkdir(parents=True)
        (place / "home/file").write_text("x")
        now = place.stat().st_mtime
        os.utime(place, (now - age, now - age))
    unsaved_files.purge()
    assert os.listdir(tmp_path / "nsm/box-last") == ["new"]
