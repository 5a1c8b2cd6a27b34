"""A socket that is removed or replaced while it is served is there again, or it is said why not."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.app.instance import SocketGuard
from nsmd.host.listeners import LOCK, hold_lock, identity_of, listening_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

SECONDS = 20.0
"""Far above the milliseconds that it takes."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "nsm"
    directory.mkdir(mode=0o700)
    return directory


async def greet(stream: trio.SocketStream) -> None:
    async with stream:
        await stream.send_all(b"hello")
        await stream.receive_some(1)


@asynccontextmanager
async def guarded(place: Path, *, ours: bool = True) -> AsyncGenerator[int]:
    """A guard that serves; gives the lock's descriptor."""
    with (
        hold_lock(str(place / LOCK)) as lock,
        listening_socket(str(place / "s")) as listener,
    ):
        number = listener.fileno()
        guard = SocketGuard(listener, lock, str(place / LOCK), ours=ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.serve, greet, nursery)
            nursery.start_soon(guard.watch)
            await trio.testing.wait_all_tasks_blocked()
            yield lock
            if ours:
                assert listener.fileno() == number
                assert listener.getsockname() == str(place / "s")
            nursery.cancel_scope.cancel()
        assert listener.fileno() == -1


async def greeted(place: Path) -> trio.SocketStream:
    """Connect, as soon as that is possible again."""
    with trio.fail_after(SECONDS):
        while True:
            try:
                stream = await trio.open_unix_socket(str(place / "s"))
            except OSError:
                await trio.lowlevel.checkpoint()
                continue
            assert await stream.receive_some(5) == b"hello"
            return stream


def locked(place: Path) -> bool:
    """The lock is held by this process; `hold_lock` would wait for it to be let go."""
    try:
        with (place / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return (place / LOCK).read_text().strip() == str(os.getpid())
    return False


def remove_socket(place: Path) -> None:
    (place / "s").unlink()


def remove_all(place: Path) -> None:
    shutil.rmtree(place)


def move_directory(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))


def replace_directory(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.mkdir(mode=0o700)


@pytest.mark.parametrize("fault", [remove_socket, remove_all, move_directory, replace_directory])
async def test_a_socket_that_is_removed_is_there_again(place: Path, fault: object) -> None:
    assert callable(fault)
    async with guarded(place):
        early = await greeted(place)
        for _ in range(3):
            fault(place)
            if (moved := place.with_name("elsewhere")).exists():
                shutil.rmtree(moved)
            late = await greeted(place)
            with trio.fail_after(SECONDS):
                while not locked(place):  # it may be made after the socket that was found
                    await trio.lowlevel.checkpoint()
            await late.aclose()
        await early.send_all(b"x")
        assert await early.receive_some(1) == b"", "the connection went on to its end"
        await early.aclose()
        assert (place / "s").stat().st_mode & 0o777 == 0o600
        assert place.stat().st_mode & 0o777 == 0o700


async def test_a_lock_that_is_removed_is_held_again(place: Path) -> None:
    async with guarded(place) as lock:
        (place / LOCK).unlink()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert locked(place)
        held = os.fstat(lock)
        assert identity_of(str(place / LOCK)) == (held.st_dev, held.st_ino)


async def test_a_socket_of_others_in_its_place_is_left_and_logged(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place / "other"))
        other.listen()
        async with guarded(place):
            (place / "other").replace(place / "s")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert "something else is in its place" in caplog.text
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(place / "s"))
            (place / "s").unlink()
            await (await greeted(place)).aclose()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_another_supervisor_in_its_place_is_said(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(place):
        remove_all(place)
        place.mkdir(mode=0o700)
        with hold_lock(str(place / LOCK)), listening_socket(str(place / "s")):
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert "another supervisor has taken its place" in caplog.text


async def test_a_service_manager_s_socket_is_not_replaced(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(place, ours=False):
        (place / "s").unlink()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert "Restart nsm-supervisor.socket" in caplog.text
        assert not (place / "s").exists()
