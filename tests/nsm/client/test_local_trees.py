"""Archives that a session sends: what of them is written here, and where."""

from __future__ import annotations

import os
import tarfile
import threading
from typing import TYPE_CHECKING

import pytest

from nsm.client import local_trees
from nsm.client.local_files import LinkError
from nsm.wire.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

    from nsm.wire.files import Skipped


def unpack(data: bytes, path: Path, *, follow: bool = False) -> tuple[int, list[Skipped]]:
    """Unpack an archive below a directory; returns what came and what did not."""
    skipped: list[Skipped] = []
    read_end, write_end = os.pipe()

    def send() -> None:
        with open(write_end, "wb") as pipe:
            pipe.write(data)

    sender = threading.Thread(target=send)
    sender.start()
    with local_trees.open_target(str(path), "", follow=follow) as top:
        entries = local_trees.unpack(read_end, top, str(path), None, skipped)
    sender.join()
    return entries, skipped


def archive(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Make an archive of files of that name, which have it as their content, too."""
    data = b""
    for name in names:
        info = tarfile.TarInfo(name)
        info.type = kind
        content = name.encode() if kind == tarfile.REGTYPE else b""
        info.size = len(content)
        data += info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        data += content + bytes(-len(content) % tarfile.BLOCKSIZE)
    return data + bytes(2 * tarfile.BLOCKSIZE)


def below(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_names_that_a_session_makes_up_lead_nowhere(tmp_path: Path, kind: bytes) -> None:
    evil = ["..", "/etc", "../out", "a/../../out", f"{tmp_path}/out"]
    entries, skipped = unpack(archive(*evil, "good", kind=kind), tmp_path / "in")
    assert (entries, [each.path for each in skipped]) == (1, evil)
    assert {each.why for each in skipped} == {"its name leads out of the directory"}
    assert below(tmp_path) == ["in", "in/good"]


def test_links_and_special_files_are_left_out_by_rule(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        entries, skipped = unpack(archive("x", kind=kind), tmp_path)
        assert (entries, [each.by_rule for each in skipped]) == (0, [True])
    assert below(tmp_path) == []


def test_links_pipes_and_directories_here_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    top = tmp_path / "in"
    (top / "directory").mkdir(parents=True)
    (top / "link").symlink_to(tmp_path / "mine")
    (top / "around").symlink_to(tmp_path)
    os.mkfifo(top / "pipe")
    names = ["link", "pipe", "directory", "around/mine", "good"]
    entries, skipped = unpack(archive(*names), top)
    assert (entries, [each.path for each in skipped]) == (1, names[:-1])
    assert not any(each.by_rule for each in skipped)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (top / "good").read_text() == "good"
    entries, skipped = unpack(archive("link", "pipe", kind=tarfile.DIRTYPE), top)
    assert (entries, len(skipped)) == (0, 2)


def test_the_deepest_directory(tmp_path: Path) -> None:
    deepest = "/".join(["d"] * local_trees.DEEPEST)
    entries, skipped = unpack(archive(deepest, f"e{deepest}/d"), tmp_path)
    assert (entries, [each.path for each in skipped]) == (1, [f"e{deepest}/d"])


def test_no_archive(tmp_path: Path) -> None:
    for data in (b"x" * 1024, archive("a")[:600]):
        with pytest.raises(FileError, match="the session sent no archive"):
            unpack(data, tmp_path)


def test_a_link_to_the_directory_is_followed_if_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(LinkError):
        unpack(archive("a"), tmp_path / "link")
    assert unpack(archive("a"), tmp_path / "link", follow=True)[0] == 1
    assert unpack(archive("a"), tmp_path / "new" / "deep")[0] == 1
    assert below(tmp_path / "real") == ["a"]


def test_the_size_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "a").write_bytes(bytes(5))
    (tmp_path / "d" / "e" / "b").write_bytes(bytes(6))
    (tmp_path / "d" / "link").symlink_to("a")
    os.mkfifo(tmp_path / "d" / "pipe")
    top = os.open(tmp_path / "d", os.O_RDONLY)
    assert local_trees.size_of(top) == 11
    os.close(top)
