"""Sources that boxes can write to are opened without following links."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection import mount_sources
from realjail import BWRAP, needs_bwrap

if TYPE_CHECKING:
    from pathlib import Path


def bind(path: Path, *, linkless: bool = True) -> Mount:
    return Mount(kind="bind", source=str(path), target="/work", linkless=linkless)


def inode(fd: int) -> int:
    found = os.fstat(fd).st_ino
    os.close(fd)
    return found


def test_only_what_boxes_can_write_to_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    mounts = [
        bind(tmp_path, linkless=False),
        bind(tmp_path / "file"),
        Mount(kind="dir", target="/"),
    ]
    opened = mount_sources.open_sources(mounts)
    assert list(opened) == [1]
    assert os.get_inheritable(opened[1])
    assert inode(opened[1]) == (tmp_path / "file").stat().st_ino


@pytest.mark.parametrize("at", ["outer", "outer/inner", "outer/inner/config"])
def test_a_link_that_has_come_on_the_way_is_refused(tmp_path: Path, at: str) -> None:
    source = tmp_path / "outer" / "inner" / "config"
    source.parent.mkdir(parents=True)
    source.write_text("")
    (tmp_path / at).rename(tmp_path / "aside")
    (tmp_path / at).symlink_to(tmp_path / "aside")
    assert source.exists()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BoxError, match="a symbolic link has come on the way") as caught:
        mount_sources.open_sources([bind(tmp_path), bind(source)])
    assert str(source) in caught.value.message
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_that_leads_elsewhere_by_now_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there")
    for says in ("there", "elsewhere"):
        mount = Mount(kind="link", target=str(tmp_path / "link"), source=says, linkless=True)
        if says == "there":
            assert mount_sources.open_sources([mount]) == {}
            continue
        with pytest.raises(BoxError, match="the link leads elsewhere"):
            mount_sources.open_sources([mount])


def test_a_missing_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(BoxError, match="No such file"):
        mount_sources.open_sources([bind(tmp_path / "gone")])


@needs_bwrap
def test_a_link_put_in_place_of_a_source_is_not_shown(tmp_path: Path) -> None:
    """Bubblewrap mounts what was opened, and leaves the descriptor open for nobody."""
    assert BWRAP is not None
    if not mount_sources.is_known_to(BWRAP):
        pytest.skip("not here: this bubblewrap takes no descriptors of sources")
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("")
    ((_, fd),) = mount_sources.open_sources([bind(work)]).items()
    work.rename(tmp_path / "aside")
    work.symlink_to(tmp_path / "secret")
    done = subprocess.run(
        [
            *(BWRAP, "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/mnt"),
            *("--proc", "/proc", "--bind-fd", str(fd), "/mnt/work"),
            *("--", "/bin/sh", "-c", "ls /mnt/work; readlink /proc/self/fd/* | grep ^/ | sort -u"),
        ],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(fd)
    assert (done.stdout.split(), done.stderr) == (["mine", "/dev/null"], "")


def test_a_program_that_hides_behind_a_script_is_given_paths(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec bwrap-real --ro-bind\n")
    assert not mount_sources.is_known_to(str(tmp_path / "bwrap"))
    assert not mount_sources.is_known_to(str(tmp_path / "gone"))
