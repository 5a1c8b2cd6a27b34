"""Ports of a session: what the store and the relay learn, and when."""

from __future__ import annotations

import os
import socket
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from fake_fdstore import Held
from nsm.http.listen_address import Port
from nsmd.model.events import Events
from nsmd.ports.relayed import EACH, FILE_BYTES, OPEN, SENT, SLOTS, TOTAL, PortCounts
from nsmd.ports.session_ports import (
    PORT,
    OpenPort,
    PortRecord,
    PortTotals,
    RelayProcess,
    SessionPorts,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from nsmd.sessions.session import Session

SESSION = cast("Session", SimpleNamespace(id="s-1", name="web", tenancy=None, live=True))
Left = tuple[RelayProcess, int]
LOOPBACK = Port("127.0.0.1", 0)


@pytest.fixture
def relay() -> Generator[tuple[socket.socket, Left]]:
    """A relay that an earlier supervisor has left: our end of its channel, and what was kept."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    counts = os.memfd_create("counts")
    os.truncate(counts, FILE_BYTES)
    with ours, subprocess.Popen(["sleep", "infinity"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            yield ours, (RelayProcess.taken_up(pidfd, its.detach()), counts)
        finally:
            process.kill()


def told(channel: socket.socket) -> bytes:
    """The next message to the relay; empty if there is none."""
    try:
        message, descriptors, _, _ = socket.recv_fds(channel, 256, 1)
    except BlockingIOError:
        return b""
    for descriptor in descriptors:
        os.close(descriptor)
    return message


def ports_of(store: Held, nursery: trio.Nursery, totals: PortTotals | None = None) -> SessionPorts:
    return SessionPorts(
        SESSION,
        store=store,
        totals=totals or PortTotals(),
        events=Events(),
        nursery=nursery,
        unused=lambda _: None,
    )


def test_a_port_is_kept_before_the_relay_has_it(relay: tuple[socket.socket, Left]) -> None:
    """Otherwise a supervisor that is killed in between would leave a port that nobody lists."""
    channel, left = relay
    before: list[bytes] = []

    class Watched(Held):
        def keep(self, name: str, descriptors: Sequence[int]) -> None:
            if name.startswith(PORT):
                before.append(told(channel))
            super().keep(name, descriptors)

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            ports = ports_of(store, nursery)
            ports.take_up([earlier()], left)
            assert told(channel) == b"open 7 8000"
            await ports.open(8001, LOOPBACK, "test")
            assert told(channel) == b"open 0 8001"
            nursery.cancel_scope.cancel()
        ports.end()

    store = Watched()
    trio.run(use)
    assert before == [b""]
    store.close()


def earlier() -> OpenPort:
    """A port that an earlier supervisor has kept, and may not have passed to the relay."""
    listener = socket.create_server(("127.0.0.1", 0))
    record = PortRecord(id="p-1", session=SESSION.id, number=8000, slot=7, address="127.0.0.1:1")
    return OpenPort(record, listener)


def test_totals_begin_at_zero_and_keep_what_closed_ports_have_passed(
    relay: tuple[socket.socket, Left],
) -> None:
    _, left = relay
    memory = memoryview(bytearray(EACH * 8 * SLOTS))
    counted = PortCounts(memory, 7)

    def count(which: int, number: int) -> None:
        counted.add(which, number)
        os.pwrite(left[1], memory, 0)

    def total(ports: SessionPorts) -> list[int]:
        known = [ports.counts_of(port) for port in ports.open_ports]
        return [sum(column) for column in zip(totals.counts, *known, strict=True)]

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            ports = ports_of(store, nursery, totals)
            ports.take_up([earlier()], left)
            assert total(ports) == [0] * EACH
            count(SENT, 5)
            count(TOTAL, 1)
            assert (total(ports)[SENT], total(ports)[TOTAL]) == (5, 1)
            ports.close(ports.open_ports[0], "a test")
            assert ports.open_ports == []
            assert (total(ports)[SENT], total(ports)[TOTAL]) == (5, 1)
            nursery.cancel_scope.cancel()
        ports.end()

    count(SENT, 100)
    count(TOTAL, 3)
    count(OPEN, 0)
    store, totals = Held(), PortTotals()
    trio.run(use)
    store.close()
