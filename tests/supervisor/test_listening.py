"""The supervisor's lock and socket: one at a time, ours alone, nothing of others touched."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from nsmd.listening import PlaceError, hold_lock, listening_socket

if TYPE_CHECKING:
    from pathlib import Path


def test_the_lock_is_held_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with (
        hold_lock(path),
        pytest.raises(PlaceError, match=rf"running already \(pid {os.getpid()}\)"),
        hold_lock(path),
    ):
        pass
    with hold_lock(path):  # and can be had again
        pass


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(PlaceError, match="cannot be opened"),
        hold_lock(str(tmp_path / "lock")),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_on_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_space)
    path = str(tmp_path / "lock")
    with pytest.raises(PlaceError, match=rf"{path} .*No space left"), hold_lock(path):
        pass


def test_the_socket_is_private_and_goes_with_the_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    before = os.umask(0)
    try:
        with listening_socket(str(path)):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        assert not path.exists()
    finally:
        os.umask(before)


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening_socket(str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with (
            pytest.raises(PlaceError, match="Another program listens"),
            listening_socket(str(path)),
        ):
            pass
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_what_is_no_socket_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    match kind:
        case "file":
            path.write_text("mine")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            path.symlink_to(tmp_path / "target")
    with pytest.raises(PlaceError, match="not a socket of yours"), listening_socket(str(path)):
        pass
    assert os.path.lexists(path)


def test_a_path_too_long_for_the_kernel(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 110))
    with pytest.raises(PlaceError, match=r"Linux allows 107.*NSM_SOCKET"), listening_socket(path):
        pass


def test_another_one_in_our_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with listening_socket(str(path)):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"
