"""Ports and relays that an earlier supervisor has left: what is taken up, and what is dropped."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore
from nsmd.model.events import Events
from nsmd.ports.port_manager import PortManager
from nsmd.ports.session_ports import PORT, RELAY, PortRecord, RelayRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

PORT_RECORD = PortRecord(id="p1", session="s1", number=8000, slot=3, address="127.0.0.1:4000")


class Kept:
    """Descriptors as a store gives them back: who takes them up owns them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def record(self, record: object) -> int:
        return memory_file(records.encode(record))

    def socket(self) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        return listener.detach()

    def relay(self, *, ended: bool = False) -> list[int]:
        """Descriptors of a relay: record, process, channel, counts."""
        process = self._stack.enter_context(
            subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        )
        self._stack.callback(process.kill)
        pidfd = os.pidfd_open(process.pid)
        if ended:
            process.kill()
            process.wait()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        its.close()
        control, counts = ours.detach(), os.memfd_create("counts")
        record = RelayRecord(
            id="r1",
            session="s1",
            control=records.identity(control),
            counts=records.identity(counts),
        )
        return [counts, self.record(record), control, pidfd]


@pytest.fixture
def kept() -> Generator[Kept]:
    before = set(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        yield Kept(stack)
    assert set(os.listdir("/proc/self/fd")) <= before, "descriptors are left open"


class Store(NoStore):
    """A store that notes what is dropped."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, name: str) -> None:
        self.dropped.append(name)


class Taken:
    """Things that a manager has taken over, to be closed."""

    def __init__(
        self, kept: Mapping[str, Sequence[int]], entries: KeptEntries | None = None
    ) -> None:
        self.store = Store()
        self.entries = entries or KeptEntries(self.store, kept)
        manager = PortManager(store=self.store, events=Events())
        manager.take_up(self.entries)
        self.ports = manager._left_ports  # pyright: ignore[reportPrivateUsage]
        self.relays = manager._left_relays  # pyright: ignore[reportPrivateUsage]

    def close(self) -> None:
        for port in self.ports:
            port.listener.close()
        for relay, counts in self.relays.values():
            relay.control.close()
            records.close_all((relay.pidfd, counts))


def test_a_port_and_its_relay(kept: Kept) -> None:
    listener = kept.socket()
    taken = Taken(
        {
            PORT + "p1": [listener, kept.record(PORT_RECORD)],
            RELAY + "r1": kept.relay(),
            "session-1.1": [],
        }
    )
    (port,) = taken.ports
    assert (port.record, port.listener.fileno()) == (PORT_RECORD, listener)
    assert {session: relay.id for session, (relay, _) in taken.relays.items()} == {"s1": "r1"}
    assert taken.store.dropped == []
    taken.close()


def test_an_incomplete_record_is_dropped(kept: Kept) -> None:
    relay = kept.relay()
    os.close(relay.pop())  # its process
    taken = Taken(
        {
            PORT + "alone": [kept.record(PORT_RECORD)],
            PORT + "none": [kept.socket()],
            PORT + "empty": [],
            RELAY + "r1": relay,
        }
    )
    assert (taken.ports, taken.relays) == ([], {})
    assert sorted(taken.store.dropped) == [
        *(PORT + name for name in ("alone", "empty", "none")),
        RELAY + "r1",
    ]


def test_records_of_another_version_stay(kept: Kept) -> None:
    newer = records.encode(PORT_RECORD).replace(b"nsm-record 1 ", b"nsm-record 9 ", 1)
    other = records.encode(RelayRecord(id="", session="", control="", counts=""))
    given = {
        PORT + "newer": [memory_file(newer), kept.socket()],
        PORT + "other": [memory_file(other), kept.socket()],
        PORT + "damaged": [memory_file(b"nsm-record 1 0\n{}"), kept.socket()],
    }
    taken = Taken(given)
    assert (taken.ports, taken.store.dropped) == ([], [])
    assert {name: list(fds) for name, fds in taken.entries.everything_kept()} == given
    assert "3 x open port" in taken.entries.problem
    for descriptors in given.values():
        records.close_all(descriptors)


def test_ports_of_an_unreadable_session_stay_until_it_ends(kept: Kept) -> None:
    given = {PORT + "p1": [kept.socket(), kept.record(PORT_RECORD)], RELAY + "r1": kept.relay()}
    entries = KeptEntries(Store(), given)
    entries.leave("session-s1.1", [kept.socket()], "why", owner="s1")
    taken = Taken(given, entries)
    assert (taken.ports, taken.relays, taken.store.dropped) == ([], {}, [])
    assert {name for name, _ in entries.everything_kept()} == {*given, "session-s1.1"}
    entries.drop("s1")
    assert list(entries.everything_kept()) == []
