"""Ports of a session: addresses, what store and relay learn, what the next supervisor takes up."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from fake_fdstore import Held
from nsm.http.listen_address import Port, UnixPath
from nsm.wire.errors import BadRequestError
from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore
from nsmd.host.listeners import identity_of, listen, parse_address, remove_socket, shown
from nsmd.model.events import Events
from nsmd.ports.port_manager import PortManager
from nsmd.ports.relayed import EACH, FILE_BYTES, OPEN, SENT, SLOTS, TOTAL, PortCounts
from nsmd.ports.session_ports import (
    PORT,
    RELAY,
    OpenPort,
    PortRecord,
    PortTotals,
    RelayProcess,
    RelayRecord,
    SessionPorts,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

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


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Port("127.0.0.1", 0)),
        ("localhost:80", Port("127.0.0.1", 80)),
        ("127.9.9.9:65535", Port("127.9.9.9", 65535)),
        ("[::1]:8000", Port("::1", 8000)),
        ("unix:/run/x", UnixPath("/run/x")),
    ],
)
def test_addresses_of_this_machine(text: str, address: Port | UnixPath) -> None:
    assert parse_address(text, public=False) == address
    assert parse_address(text, public=True) == address
    if text != "localhost:80":
        assert shown(address) == text


@pytest.mark.parametrize("text", ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[2001:db8::1]:0"])
def test_addresses_that_others_reach_have_to_be_permitted(text: str) -> None:
    with pytest.raises(BadRequestError, match="other machines could reach it") as refused:
        parse_address(text, public=False)
    assert "--public" in refused.value.hint
    assert shown(parse_address(text, public=True)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":80", "80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1"),
        *("127.0.0.1:٣", "example.org:80", "::1:80", "[127.0.0.1]:80", "0.0.0.0:99999"),
        *("[fe80::1%lo]:80", "unix:", "unix:relative", "unix:/a\0b", "unix:/", "tcp:1"),
    ],
)
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    for public in (False, True):
        with pytest.raises(BadRequestError):
            listen(parse_address(text, public=public)).close()


def test_a_unix_socket_is_for_its_user(tmp_path: Path) -> None:
    path = tmp_path / "s"
    before = os.umask(0)
    try:
        with listen(UnixPath(str(path))):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    with listen(UnixPath(str(path))):  # that of a dead one is replaced
        pass


def assert_fits(error: BadRequestError) -> None:
    """Check that an error is about a port's socket, and not about the supervisor's."""
    told = error.message + error.hint
    assert not any(word in told for word in ("NSM_SOCKET", "status", "supervisor", "Remove"))


def test_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(BadRequestError, match="not a socket") as refused:
        listen(UnixPath(str(path)))
    assert_fits(refused.value)
    assert path.read_text() == "mine"
    with pytest.raises(BadRequestError, match="No such file"):
        listen(UnixPath(str(tmp_path / "missing" / "s")))


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = UnixPath(str(tmp_path / "s"))
    with listen(path), pytest.raises(BadRequestError, match="listens on") as refused:
        listen(path)
    assert_fits(refused.value)


def test_a_directory_that_others_may_change(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "own").mkdir()
    for path in (shared / "own" / "s", shared / "s"):
        with pytest.raises(BadRequestError, match="everybody may write") as refused:
            listen(UnixPath(str(path)))
        assert_fits(refused.value)
    shared.chmod(0o1777)  # nobody else could replace the socket
    listen(UnixPath(str(shared / "s"))).close()


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen(UnixPath(str(path))):
        identity = identity_of(str(path))
    assert identity is not None
    path.rename(tmp_path / "t")
    path.write_text("another")
    remove_socket(str(path), identity)
    assert path.read_text() == "another"
    remove_socket(str(tmp_path / "t"), identity)
    assert not (tmp_path / "t").exists()
