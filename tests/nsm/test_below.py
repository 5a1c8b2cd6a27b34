"""Files below a directory that others write to, with openat2(2) and without it."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from nsm import below

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

NO_SUCH_CALL = 1_000_000
"""A number for which the kernel says what containers' filters say: ENOSYS."""


@pytest.fixture(params=[below._OPENAT2, NO_SUCH_CALL], ids=["openat2", "by-names"])  # pyright: ignore[reportPrivateUsage]
def top(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[int]:
    monkeypatch.setattr(below, "_OPENAT2", request.param)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tmp_path / "top" / "a" / "a").mkdir(parents=True)
    (tmp_path / "top" / "a" / "a" / "file").write_text("mine")
    fd = os.open(tmp_path / "top", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def content(top: int, path: str) -> bytes:
    fd = below.open_file(top, path)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_file_below_is_opened(top: int) -> None:
    assert content(top, "a/a/file") == b"mine"
    os.close(below.open_below(top, "", below.DIRECTORY))
    assert below.look(top, "a/none") is None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(below.open_below(top, "a/new", flags, 0o600))
    new = below.look(top, "a/new")
    assert new is not None
    assert new.st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        below.open_below(top, "a/new", flags, 0o600)


@pytest.mark.parametrize("place", ["x", "a/x", "a/a/x"])
def test_no_link_is_followed_at_any_depth(top: int, tmp_path: Path, place: str) -> None:
    (tmp_path / "top" / place).symlink_to(tmp_path / "secret")
    inside = os.path.relpath(tmp_path / "top" / "a", (tmp_path / "top" / place).parent)
    (tmp_path / "top" / f"{place}-inside").symlink_to(inside)
    for path in (f"{place}/key", f"{place}-inside/a/file"):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            content(top, path)
        assert below.look(top, path) is None
    (tmp_path / "top" / "link").symlink_to(tmp_path / "secret" / "key")
    with pytest.raises(OSError, match="link"):
        content(top, "link")
    assert below.read_link(top, "link") == str(tmp_path / "secret" / "key")


@pytest.mark.parametrize("path", ["../secret/key", "a/../../secret/key", "/etc/passwd"])
def test_no_name_leads_out(top: int, path: str) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
        content(top, path)


def test_a_pipe_does_not_block(top: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "top" / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        content(top, "pipe")


def test_a_path_is_opened_where_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with below.opened_around(str(tmp_path / "file")) as (root, name):
        assert os.path.samestat(os.fstat(root), tmp_path.stat())
        assert name == "file"


def test_names_are_looked_up_in_directories_that_cannot_be_read(top: int, tmp_path: Path) -> None:
    place = tmp_path / "top/a"
    place.chmod(0o311)
    try:
        assert content(top, "a/a/file") == b"mine"
        with (
            below.parent_of(top, "a/new") as (parent, _),
            below.opened_around(str(place / "a")) as (root, name),
        ):
            os.close(below.open_below(root, name, below.DIRECTORY))
            # Root reads every directory; but nobody reads by such a descriptor.
            for fd in parent, root:
                assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH
    finally:
        place.chmod(0o755)


def test_an_error_names_the_path_as_it_was_given(tmp_path: Path) -> None:
    with (
        pytest.raises(IsADirectoryError) as caught,
        below.opened_around(str(tmp_path)) as (root, name),
    ):
        below.open_below(root, name, os.O_WRONLY)
    assert caught.value.filename == str(tmp_path)


def test_a_file_is_read_without_waiting_or_following(top: int, tmp_path: Path) -> None:
    assert below.read_file("a/a/file", 2, root=top) == b"mi"
    os.mkfifo(tmp_path / "top" / "pipe")
    (tmp_path / "top" / "link").symlink_to("a/a/file")
    for name, number in (("pipe", errno.EINVAL), ("a", errno.EINVAL), ("link", errno.ELOOP)):
        with pytest.raises(OSError, match=name) as inside:
            below.read_file(name, 9, root=top)
        with pytest.raises(OSError, match=name) as outside:
            below.read_file(str(tmp_path / "top" / name), 9)
        assert {inside.value.errno, outside.value.errno} == {number}
    assert below.read_file(str(tmp_path / "top" / "link"), 9, links=True) == b"mine"


def test_what_the_kernel_knows_without_a_disk(tmp_path: Path, top: int) -> None:
    place, link = tmp_path / "top", tmp_path / "to"
    link.symlink_to(place)
    found = os.stat(place)
    # The kernel follows no link from memory whose time of access it has to note.
    os.utime(link, (found.st_mtime + 60, found.st_mtime), follow_symlinks=False)
    knows = below._OPENAT2 != NO_SUCH_CALL  # pyright: ignore[reportPrivateUsage]
    expected = (found.st_dev, found.st_ino) if knows else None
    assert below.known_identity(str(place)) == below.known_identity(str(link)) == expected
    place.rename(tmp_path / "away")
    assert below.known_identity(str(place)) is None
    place.mkdir()
    assert expected is None or below.known_identity(str(place)) not in (None, expected)
