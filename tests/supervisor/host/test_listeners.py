"""The supervisor's lock and socket: one at a time, ours alone, nothing of others touched."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nsmd.host import listeners
from nsmd.host.listeners import (
    LOCK_RETRY_S,
    PlaceError,
    check_passed,
    check_way,
    hold_lock,
    listening_socket,
)
from nsmd.host.paths import trusted_owners

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """A clock on which waiting takes no time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the module."""
    made = Clock()
    monkeypatch.setattr(listeners, "time", made)
    return made


def test_the_lock_is_held_by_one(tmp_path: Path, clock: Clock) -> None:
    path = str(tmp_path / "lock")
    with (
        hold_lock(path),
        pytest.raises(PlaceError, match=rf"running already \(pid {os.getpid()}\)"),
        hold_lock(path),
    ):
        pass
    assert clock.monotonic() >= listeners.LOCK_S
    with hold_lock(path):  # and can be had again
        pass


def test_the_lock_of_a_supervisor_that_is_dying_is_waited_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lets go of it some time after others have seen the end of the process."""
    path = str(tmp_path / "lock")
    with ExitStack() as dying:
        dying.enter_context(hold_lock(path))

        def wait(seconds: float) -> None:
            clock.waits.append(seconds)
            if len(clock.waits) == 3:
                dying.close()

        monkeypatch.setattr(clock, "sleep", wait)
        with hold_lock(path):
            assert clock.waits == [LOCK_RETRY_S] * 3


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlaceError, match="cannot be opened"), hold_lock(str(tmp_path / "lock")):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_on_a_full_disk_holds(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_space(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_space)
    path = str(tmp_path / "lock")
    with (
        hold_lock(path),
        pytest.raises(PlaceError, match=r"running already \(pid unknown\)"),
        hold_lock(path),
    ):
        pass
    assert "No space left" in caplog.text


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
def test_a_file_that_is_no_socket_is_left_alone(kind: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_way_that_everybody_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    open_to_all = tmp_path / "all"
    (open_to_all / "nsm").mkdir(parents=True, mode=0o700)
    open_to_all.chmod(mode)
    with pytest.raises(PlaceError, match=f"everybody may write to {open_to_all}"):
        check_way(str(open_to_all / "nsm"), trusted_owners())
    open_to_all.chmod(mode | stat.S_ISVTX)
    check_way(str(open_to_all / "nsm"), trusted_owners())


def test_a_way_through_another_user_s_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nsm").mkdir(mode=0o700)
    with pytest.raises(PlaceError, match="belongs to user"):
        check_way(str(tmp_path / "nsm"), {4_000_000})


def test_a_way_through_a_link_is_as_good_as_where_it_leads(tmp_path: Path) -> None:
    open_to_all = tmp_path / "all"
    (open_to_all / "nsm").mkdir(parents=True, mode=0o700)
    (tmp_path / "link").symlink_to(open_to_all)
    check_way(str(tmp_path / "link" / "nsm"), trusted_owners())
    open_to_all.chmod(0o777)
    with pytest.raises(PlaceError, match="everybody may write"):
        check_way(str(tmp_path / "link" / "nsm"), trusted_owners())
    open_to_all.chmod(0o700)
    (tmp_path / "last").symlink_to(open_to_all / "nsm")
    with pytest.raises(PlaceError, match="is a symbolic link"):
        check_way(str(tmp_path / "last"), trusted_owners())


def test_a_passed_socket_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with pytest.raises(PlaceError, match="cannot be looked at"):
        check_passed(str(path), trusted_owners())
    path.write_text("")
    with pytest.raises(PlaceError, match="is not the socket"):
        check_passed(str(path), trusted_owners())
    path.unlink()
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(path))
        path.chmod(0o660)
        with pytest.raises(PlaceError, match=r"open to others \(mode 0660\).*SocketMode=0600"):
            check_passed(str(path), trusted_owners())
        path.chmod(0o600)
        check_passed(str(path), trusted_owners())
        with pytest.raises(PlaceError, match="is not the socket"):
            check_passed(str(path), frozenset({4_000_000}))
