"""Descriptors are handed to systemd as sd_notify(3) says, also when it is slow."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.fdstore import holder
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.systemd_store import SystemdStore, systemd_keeps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path


class Manager:
    """Takes what systemd is told."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.held: dict[str, int] = {}
        self.barriers = 0
        self.bind()

    def bind(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)

    def again(self) -> None:
        """Bind another socket at the same path."""
        self.socket.close()
        os.unlink(self.path)
        self.bind()

    def take(self) -> None:
        """All that has come."""
        while True:
            try:
                message, fds, _ = holder.receive(self.socket, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for fd in fds:
                os.close(fd)
            told = dict(line.split("=", 1) for line in message.decode().splitlines())
            match told:
                case {"FDSTORE": "1", "FDNAME": name, "FDPOLL": "0"}:
                    self.held[name] = self.held.get(name, 0) + len(fds)
                case {"FDSTOREREMOVE": "1", "FDNAME": name}:
                    self.held.pop(name, None)
                case _:
                    assert told == {"BARRIER": "1"}
                    self.barriers += 1


@pytest.fixture
def manager(tmp_path: Path) -> Generator[Manager]:
    it = Manager(tmp_path / "notify")
    yield it
    it.socket.close()


@pytest.mark.parametrize(
    ("variables", "keeps"),
    [
        ({}, None),
        ({"FDSTORE": "10"}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1", "FDSTORE": "10"}, None),
        ({"NOTIFY_SOCKET": "/run/notify"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "FDSTORE": "0"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "FDSTORE": "512"}, 512),
        ({"NOTIFY_SOCKET": "@notify", "NSM_FDSTORE": "systemd"}, 0),
        ({"NOTIFY_SOCKET": "/run/notify", "NSM_FDSTORE": "yes"}, None),
    ],
)
def test_systemd_says_whether_it_keeps_any(variables: dict[str, str], keeps: int | None) -> None:
    assert systemd_keeps(variables) == keeps


@pytest.fixture
def stack() -> Generator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_systemd_keeps_and_drops_by_name(manager: Manager, stack: ExitStack) -> None:
    store = stack.enter_context(closing(SystemdStore(manager.path, 3, {"session-old": [7, 8]})))
    store.keep("session-a", [0, 2])
    assert "FileDescriptorStoreMax=" in store.problem
    store.drop("session-old")
    store.drop("session-never")
    assert store.problem == ""
    manager.held["session-old"] = 2
    manager.take()
    assert manager.held == {"session-a": 2}
    manager.again()  # systemctl daemon-reexec, at worst
    store.keep("session-b", [0])
    manager.take()
    assert manager.held == {"session-a": 2, "session-b": 1}


class Strict(Manager):
    """Keeps the descriptors themselves and, as systemd does, none twice, whatever its name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept: dict[str, set[tuple[int, int]]] = {}

    def take(self) -> None:
        while True:
            try:
                message, fds, _ = holder.receive(self.socket, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            told = dict(line.split("=", 1) for line in message.decode().splitlines())
            if "FDSTOREREMOVE" in told:
                self.kept.pop(told["FDNAME"], None)
            have = {each for kept in self.kept.values() for each in kept}
            for fd in fds:
                identity = os.fstat(fd).st_dev, os.fstat(fd).st_ino
                if identity not in have:
                    self.kept.setdefault(told["FDNAME"], set()).add(identity)
                os.close(fd)


@pytest.fixture
def strict(tmp_path: Path) -> Generator[Strict]:
    it = Strict(tmp_path / "notify")
    yield it
    it.socket.close()


def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    return stack.enter_context(ours), stack.enter_context(theirs)


def record(stack: ExitStack, number: int) -> int:
    """A record's file, which is closed in the end."""
    fd = memory_file(b"%d" % number)
    stack.callback(os.close, fd)
    return fd


async def tell_all(
    store: SystemdStore, manager: Manager, wanted: Callable[[], Iterable[tuple[str, Sequence[int]]]]
) -> None:
    """Have it told all that it could not be told before."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, wanted)
        with trio.fail_after(120):
            while store.problem:
                await trio.lowlevel.wait_readable(manager.socket)
                manager.take()
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    manager.take()


def test_a_session_outlives_the_names_of_its_records(strict: Strict, stack: ExitStack) -> None:
    store = stack.enter_context(closing(SystemdStore(strict.path)))
    ours, theirs = pair(stack)
    files = [record(stack, number) for number in range(4)]
    store.keep("session-a.1", [ours.fileno(), files[0]])
    store.keep("session-b.1", [theirs.fileno(), files[1]])
    store.keep("session-a.2", [ours.fileno(), files[2]])
    store.drop("session-a.1")
    strict.take()
    names = {"session-a.2", "session-a.held", "session-b.1", "session-b.held"}
    assert {name: len(kept) for name, kept in strict.kept.items()} == dict.fromkeys(names, 1)
    # The next supervisor finds all these names, and drops those that were there before.
    given = {name: [0] * len(kept) for name, kept in strict.kept.items()}
    again = stack.enter_context(closing(SystemdStore(strict.path, kept=given)))
    again.keep("session-a.3", [ours.fileno(), files[3]])
    for name in ("session-a.held", "session-a.2"):
        again.drop(name)
    strict.take()
    assert strict.kept.keys() == names - {"session-a.2"} | {"session-a.3"}
    again.drop("session-a.3")
    for name in ("session-b.held", "session-b.1"):
        again.drop(name)
    strict.take()
    assert strict.kept == {}


async def test_a_session_that_had_to_wait_outlives_the_names_of_its_records(
    strict: Strict, stack: ExitStack
) -> None:
    store = stack.enter_context(closing(SystemdStore(strict.path)))
    ours, _ = pair(stack)
    files = [record(stack, number) for number in range(2)]
    while not store.problem:  # as much as its socket takes
        store.keep("spec-a", [0])
    wanted = {"session-a.1": [ours.fileno(), files[0]], "spec-a": [0]}
    store.keep("session-a.1", wanted["session-a.1"])
    await tell_all(store, strict, wanted.items)
    store.keep("session-a.2", [ours.fileno(), files[1]])
    store.drop("session-a.1")
    strict.take()
    assert strict.kept.keys() == {"spec-a", "session-a.2", "session-a.held"}


async def test_a_replaced_descriptor_is_not_kept_when_the_socket_was_full(
    strict: Strict, stack: ExitStack
) -> None:
    store = stack.enter_context(closing(SystemdStore(strict.path)))
    before, after = (record(stack, number) for number in range(2))
    store.keep("http-port", [before])
    while not store.problem:  # as much as its socket takes
        store.keep("spec-a", [0])
    store.drop("http-port")
    store.keep("http-port", [after])
    await tell_all(store, strict, {"spec-a": [0], "http-port": [after]}.items)
    assert strict.kept["http-port"] == {(os.fstat(after).st_dev, os.fstat(after).st_ino)}


@pytest.mark.alone  # the kernel counts descriptors on their way for the whole user
@pytest.mark.usefixtures("many_descriptors")
async def test_a_session_outlives_a_socket_that_was_full(strict: Strict, stack: ExitStack) -> None:
    """The sockets are told later, under the name where they are looked for, and not dropped."""
    store = stack.enter_context(closing(SystemdStore(strict.path)))
    wanted: dict[str, list[int]] = {}
    for number in range(400):
        name = f"session-{number}.1"
        wanted[name] = [pair(stack)[0].fileno(), record(stack, number)]
        store.keep(name, wanted[name])
    short = "session-399.1"  # of which there can be no record at the moment
    lacking: dict[str, list[int]] = {short: []}
    assert "has not taken" in store.problem

    def refill() -> list[tuple[str, list[int]]]:
        return [*{**wanted, **lacking}.items()]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, refill)
        with trio.fail_after(120):
            while len(strict.kept) < 2 * len(wanted) - 2:
                await trio.lowlevel.wait_readable(strict.socket)
                strict.take()
                await trio.testing.wait_all_tasks_blocked()
            assert "has not taken 2 things" in store.problem
            lacking.clear()
            while store.problem:
                await trio.lowlevel.wait_readable(strict.socket)
                strict.take()
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    strict.take()
    held = {f"{name.removesuffix('.1')}.held" for name in wanted}
    assert {name: len(kept) for name, kept in strict.kept.items()} == dict.fromkeys(
        held | wanted.keys(), 1
    )


async def test_the_end_is_waited_for(manager: Manager) -> None:
    store = SystemdStore(manager.path)
    for number in range(1000):  # more than the socket takes at once
        store.keep(f"session-{number}", [0])
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, store.end)
            while not manager.barriers:
                await trio.lowlevel.wait_readable(manager.socket)
                manager.take()
    assert manager.held == {}


async def test_systemd_is_told_later_what_it_cannot_take_now(
    manager: Manager, stack: ExitStack
) -> None:
    store = stack.enter_context(closing(SystemdStore(manager.path)))
    wanted: dict[str, list[int]] = {}
    for number in range(2000):
        wanted[f"session-{number}"] = [0, 2]
        store.keep(f"session-{number}", [0, 2])
    for number in range(1990, 2000):
        del wanted[f"session-{number}"]
        store.drop(f"session-{number}")
    assert "has not taken" in store.problem
    await tell_all(store, manager, wanted.items)
    assert manager.held == {name: len(fds) for name, fds in wanted.items()}
    manager.socket.close()
    store.keep("session-late", [0])
    assert "has not taken 1 thing" in store.problem
