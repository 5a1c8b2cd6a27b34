"""Copies of projects on the machine that has the sessions."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from nsm.hosts import received
from nsm.wire.errors import HostError


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Path(received.open_copy("0123456789ab", "shop"))


def difference(*entries: tuple[str, bytes], remove: tuple[str, ...] = ()) -> io.BytesIO:
    """A difference; contents that begin with `->` are links."""
    stream = io.BytesIO()
    stream.write(json.dumps({"remove": remove}).encode() + b"\n")
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if content.startswith(b"->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[2:].decode()
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)
    return stream


def test_a_difference_is_taken_over(copy: Path) -> None:
    received.receive(str(copy), difference(("src/a", b"1"), ("b", b"2"), ("link", b"->b")))
    assert (copy / "link").read_bytes() == b"2"
    told = received.receive(str(copy), difference(("b", b"33"), remove=("src/a", "link")))
    assert told == {"received": 1, "removed": 2}
    assert sorted(received.names_below(str(copy))) == ["b"]
    assert not (copy / "src").exists()
    assert received.seen_in(str(copy), ["b", "gone"]).keys() == {"b"}
    assert received.open_copy("0123456789ab", "shop") == str(copy)


def test_a_python_of_debian_12_takes_it_too(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract = tarfile.TarFile.extract

    def of_3_11_2(
        self: tarfile.TarFile,
        member: tarfile.TarInfo,
        path: str = "",
        set_attrs: bool = True,
        *,
        numeric_owner: bool = False,
    ) -> None:
        extract(self, member, path, set_attrs, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extract", of_3_11_2)
    received.receive(str(copy), difference(("b", b"2"), ("link", b"->/etc")))
    assert (copy / "b").read_bytes() == b"2"
    assert (copy / "link").readlink() == Path("/etc")


@pytest.mark.parametrize("name", ["../out", "/out", "link/out", ".", "a/../../out"])
def test_nothing_outside_is_touched(copy: Path, name: str) -> None:
    out = copy.parent / "out"
    out.write_text("mine")
    received.receive(str(copy), difference(("link", b"->..")))
    for asked in (difference((name, b"theirs")), difference(remove=(name,))):
        with pytest.raises(HostError, match="outside"):
            received.receive(str(copy), asked)
    assert out.read_text() == "mine"


def test_a_link_that_comes_meanwhile_leads_nowhere(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in a session swaps a directory when its name has been looked at."""
    out = copy.parent / "out"
    out.mkdir()
    (out / "b").write_text("mine")
    received.receive(str(copy), difference(("src/b", b"1")))
    unlink = os.unlink

    def swapped(path: str, *, dir_fd: int | None = None) -> None:
        if not (copy / "src").is_symlink():
            (copy / "src").rename(copy / "old")
            (copy / "src").symlink_to(out)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", swapped)
    received.receive(str(copy), difference(("src/b", b"2")))
    assert (out / "b").read_text() == "mine"
    assert (copy / "old" / "b").read_text() == "2"


def test_a_directory_that_nsm_has_not_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = tmp_path / "nsm-projects" / "0123456789ab"
    theirs.mkdir(parents=True)
    (theirs / "notes").touch()
    with pytest.raises(HostError, match="nsm has not made it"):
        received.open_copy("0123456789ab", "shop")
    assert list(theirs.parent.iterdir()) == [theirs]
    (theirs / "notes").unlink()
    assert received.open_copy("0123456789ab", "shop") == str(theirs / "shop")
    for key, name in (("../x", "shop"), ("0123456789ab", ".."), ("0123456789ab", "a/b")):
        with pytest.raises(HostError, match="name no copy"):
            received.open_copy(key, name)
