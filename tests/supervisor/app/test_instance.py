"""Clients of a supervisor that cannot start; a socket that is removed while it is served."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsm.wire.errors import StartFailedError
from nsm.wire.messages import ClientConnection, Failure, Hello
from nsmd.app import instance as failed_start
from nsmd.app.instance import SocketGuard
from nsmd.host.listeners import LOCK, hold_lock, identity_of, listening_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

WHY = "config.toml: pool.max_spares: must be a number"


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        made.setblocking(False)
        yield made


def connected(listener: socket.socket, words: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    client.sendall(words)
    return client


def heard(client: socket.socket) -> bytes:
    """All that comes, to the end."""
    with client, client.makefile("rb") as stream:
        return stream.read()


def test_everybody_is_told_in_their_own_protocol(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_start, "WORDS_TIMEOUT_S", 0.05)
    protocol = ClientConnection()
    hello = protocol.send(Hello(name="test", program_version="0"))
    control = connected(listener, hello)
    shim = connected(listener, b'{"nsm": 1, "attach": {}}\n')
    silent = connected(listener, b"")
    gone = connected(listener, hello)
    gone.close()
    assert failed_start.refuse_waiting(listener, WHY) == 4
    protocol.receive_data(heard(control))
    told = protocol.next_message()
    assert isinstance(told, Failure)
    assert isinstance(told.error, StartFailedError)
    assert told.error.message == f"The supervisor cannot start: {WHY}"
    answer = json.loads(heard(shim))
    assert answer["error"]["code"] == "start-failed"
    assert WHY in answer["error"]["message"]
    assert heard(silent) == b""
    assert failed_start.refuse_waiting(listener, WHY) == 0


def test_the_configuration_of_the_last_start_is_kept(tmp_path: Path) -> None:
    config, state = tmp_path / "config.toml", str(tmp_path / "state")
    config.write_text("[pool]\nmax_spares = 1\n")
    failed_start.remember_config(str(config), state)
    config.write_text("[pool\n")
    kept = Path(failed_start.last_good(state))
    assert kept.read_text() == "[pool]\nmax_spares = 1\n"
    # Without a file, defaults held.
    failed_start.remember_config(str(tmp_path / "none"), state)
    assert not kept.exists()
    # A directory that cannot be had is no reason not to start.
    failed_start.remember_config(str(config), str(config / "x"))


# A socket that is removed or replaced while it is served.


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
    with hold_lock(str(place / LOCK)) as lock, listening_socket(str(place / "s")) as listener:
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
