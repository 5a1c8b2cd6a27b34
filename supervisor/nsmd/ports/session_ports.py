"""The ports of one session, and the relay that serves them: a process, and a channel to it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

import trio

from nsm.dataclass import dataclass
from nsm.http.listen_address import Port, UnixPath
from nsm.wire.errors import InternalError, NsmError, OverloadedError, SessionEndedError
from nsm.wire.host import PortRow
from nsmd.agent_link.frames import PortsFrame
from nsmd.agent_link.requests import NoAnswerError
from nsmd.fdstore import records
from nsmd.fdstore.store import DescriptorStore
from nsmd.host import listeners
from nsmd.host.child_processes import ChannelProcess
from nsmd.host.listeners import identity_of
from nsmd.model import names
from nsmd.model.events import Events
from nsmd.ports import relayed
from nsmd.ports.relay import DRAIN_S
from nsmd.sessions.session import Session

MODULE = "nsmd.ports.relay"
MAX_MESSAGE = 256

RELAY = "relay-"
"""Beginning of the names in the descriptor store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRecord:
    """Facts about a relay of a session, for the next supervisor, with identities
    (`nsmd.fdstore.records.identity`) of its descriptors.
    """

    id: str
    session: str
    control: str
    counts: str


class RelayProcess(ChannelProcess):
    """A relay that runs, or has run."""

    def __init__(
        self, *, pidfd: int, control: socket.socket, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        super().__init__(pidfd=pidfd, control=control, child=child)
        self.id = names.fresh_id(())
        self._began_s = time.monotonic()

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return RELAY + self.id

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began_s

    def open(self, slot: int, number: int, listener: socket.socket) -> None:
        """Have it accept connections. Its end, if it has ended, is seen elsewhere."""
        with suppress(OSError):
            socket.send_fds(self.control, [b"open %d %d" % (slot, number)], [listener.fileno()])

    def close_port(self, slot: int) -> None:
        """Have it accept no more."""
        with suppress(OSError):
            self.control.send(b"close %d" % slot)

    async def wait(self) -> str:
        """Wait for its end, or until it found that the agent passed something wrong.

        Returns what the agent did; nothing if the relay has ended.
        """
        with suppress(trio.ClosedResourceError):  # it was found to have ended, and closed
            while message := await self.receive(MAX_MESSAGE):
                word, _, text = message.decode("ascii", "replace").partition(" ")
                if word == "wrong":
                    return text
            await trio.lowlevel.wait_readable(self.pidfd)
        return ""

    def part(self) -> None:
        """Leave it alone: it accepts no more, and ends with its last connection."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)


def start_relay(agent: int, counts: int) -> RelayProcess:
    """Start a relay with a channel to the session's agent and a memory file for the counts, which
    the caller closes. Raises `OSError` if there is no room for another process.
    """
    relay = RelayProcess.start(MODULE, options=("-S",), variables={})
    try:
        socket.send_fds(relay.control, [b"counts"], [counts])
        socket.send_fds(relay.control, [b"agent"], [agent])
    except BaseException:
        relay.end()
        raise
    return relay


log = logging.getLogger(__name__)

MAX_SESSION_PORTS = 32
"""Largest number of open ports of one session."""

ANSWER_TIMEOUT_S = 20.0
"""Time for an agent to make a channel, which takes microseconds once it has started."""

END_S = DRAIN_S + 2.0
"""Time for a relay to end after its session."""

SHORT_LIFE_S, MAX_PAUSE_S = 5.0, 30.0
"""A relay that dies within the first has no successor at once; the pause doubles up to the
second.
"""


PORT = "port-"
"""Beginning of the names in the descriptor store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """Facts about an open port, for the next supervisor: its session, its number there, its place
    among the counts of the relay, where people connect, as `nsmd.host.listeners.shown`, its Unix
    socket's file, if it has one, and the program that asked for it.
    """

    id: str
    session: str
    number: int
    slot: int
    address: str
    path: str = ""
    device: int = 0
    inode: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True)
class OpenPort:
    """An open port and its listening socket."""

    record: PortRecord
    listener: socket.socket

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return PORT + self.record.id

    def close(self) -> None:
        """Close the socket for all who have it, the relay included, and remove its file."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        if self.record.path:
            identity = self.record.device, self.record.inode
            listeners.remove_socket(self.record.path, identity)


class PortTotals:
    """Counts of all ports since this supervisor started, but for those that are open."""

    def __init__(self) -> None:
        self.counts = [0] * relayed.EACH

    def closed(self, known: Sequence[int]) -> None:
        """Add the counts of a port that is closed."""
        self.counts = [total + number for total, number in zip(self.counts, known, strict=True)]

    def taken_up(self, known: Sequence[int]) -> None:
        """Subtract what was counted of an open port before this supervisor started."""
        self.closed([-number for number in known])


class SessionPorts:
    """The ports of one session. They end with it. The totals get the counts of ports that are
    closed; `unused` is called when there is neither a port nor a relay any more.
    """

    def __init__(
        self,
        session: Session,
        *,
        store: DescriptorStore,
        totals: PortTotals,
        events: Events,
        nursery: trio.Nursery,
        unused: Callable[[SessionPorts], None],
    ) -> None:
        self.session = session
        self.open_ports: list[OpenPort] = []
        self._store = store
        self._totals = totals
        self._events = events
        self._nursery = nursery
        self._unused = unused
        self._relays: set[RelayProcess] = set()
        self._relay: RelayProcess | None = None
        self._counts: int | None = None
        self._slot = -1
        self._lock = trio.Lock()
        self._problem = ""
        self._pause_s = 0.0
        self._over = False

    def __repr__(self) -> str:
        return f"<SessionPorts of {self.session.id} {len(self.open_ports)}>"

    @property
    def in_use(self) -> bool:
        """False if there is neither a port nor a relay."""
        return bool(self.open_ports or self._relays) or self._lock.locked()

    def take_up(self, ports: Sequence[OpenPort], left: tuple[RelayProcess, int] | None) -> None:
        """Take over ports, and a relay with its counts, of an earlier supervisor."""
        self.open_ports += ports
        if left is None:
            self._nursery.start_soon(self._start_again)
        else:
            relay, self._counts = left
            for port in self.open_ports:
                self._totals.taken_up(self.counts_of(port))
            self._begin_with(relay)
            for port in self.open_ports:  # the earlier supervisor may not have got to this
                relay.open(port.record.slot, port.record.number, port.listener)
            if not self.open_ports:
                self._part()

    async def open(self, number: int, address: Port | UnixPath, client: str) -> OpenPort:
        """Open a port of the session where people connect, for a program that asks.

        An `NsmError` says why it cannot be opened.
        """
        async with self._lock:  # nobody else takes the last room, or the same slot
            if len(self.open_ports) >= MAX_SESSION_PORTS:
                raise OverloadedError(
                    f"{MAX_SESSION_PORTS} ports of this session are open already.",
                    hint="`nsm port SESSION --close PORT` closes one.",
                )
            port = self._made(number, address, client, listeners.listen(address))
            try:
                await self._ensure_relay()
                self._check_live()
                self._begin(port)
            except BaseException as error:
                port.close()
                self._part()
                if isinstance(error, OSError):
                    raise OverloadedError(
                        f"There is no room for another port: {error.strerror}.",
                        hint="Close some ports or end some sessions.",
                    ) from error
                raise
        self._publish("port_opened", port, client=client)
        return port

    def close(self, port: OpenPort, why: str, **facts: str) -> None:
        """Close a port. Its open connections go on; the audit gets the reason and the facts."""
        if port not in self.open_ports:
            return
        self._totals.closed(self.counts_of(port))
        self.open_ports.remove(port)
        if self._relay is not None:
            self._relay.close_port(port.record.slot)
        self._store.drop(port.name)
        port.close()
        self._part()
        self._publish("port_closed", port, why=why, **facts)

    def session_ended(self) -> None:
        """Close everything: the session is over. The relay ends by itself, or is killed."""
        self._over = True
        for port in list(self.open_ports):
            self.close(port, "its session ended")
        for running in self._relays:
            self._nursery.start_soon(self._kill_late, running)

    def end(self) -> None:
        """End everything now: the supervisor ends with all sessions."""
        self._over = True
        for port in list(self.open_ports):
            self.close(port, "the supervisor was shut down")
        for running in self._relays:
            running.end()
        self._relays.clear()
        self._forget_counts()

    def rows(self) -> list[PortRow]:
        """Describe the open ports, the oldest first."""
        return [self.row(port) for port in self.open_ports]

    def counts_of(self, port: OpenPort) -> Sequence[int]:
        """Read the counts of an open port, as in `nsmd.ports.relayed`."""
        if self._counts is None:
            return (0,) * relayed.EACH
        known = list(relayed.read_counts(self._counts, port.record.slot))
        if self._relay is None:
            known[relayed.OPEN] = 0
        return known

    def row(self, port: OpenPort) -> PortRow:
        """Describe an open port."""
        record, tenancy = port.record, self.session.tenancy
        known = self.counts_of(port)
        return PortRow(
            session=self.session.id,
            name=self.session.name,
            scope=tenancy.scope if tenancy is not None else "",
            port=record.number,
            address=record.address,
            client=record.client,
            connections=known[relayed.OPEN],
            total=known[relayed.TOTAL],
            refused=known[relayed.REFUSED],
            failed=known[relayed.FAILED],
            sent_bytes=known[relayed.SENT],
            received_bytes=known[relayed.RECEIVED],
            full=bool(known[relayed.FULL]),
            relay_pid=self._relay.pid if self._relay is not None else None,
            problem=self._problem or None,
        )

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield names and descriptors to store, as `nsmd.fdstore.store.Refill`."""
        for port in list(self.open_ports):
            yield from records.kept_entry(port.name, port.record, port.listener.fileno())
        relay = self._relay
        if relay is not None and self._counts is not None:
            control = relay.control.fileno()
            record = RelayRecord(
                id=relay.id,
                session=self.session.id,
                control=records.identity(control),
                counts=records.identity(self._counts),
            )
            yield from records.kept_entry(relay.name, record, relay.pidfd, control, self._counts)

    # The relay.

    def _begin_with(self, running: RelayProcess) -> None:
        """Use a relay, and watch it to its end."""
        self._relay = running
        self._relays.add(running)
        self._nursery.start_soon(self._watch, running, name=repr(running))

    def _part(self) -> None:
        """Leave the relay alone if no port is open: it ends with its last connection."""
        parted = self._relay
        if parted is not None and not self.open_ports:
            self._relay = None
            self._store.drop(parted.name)
            parted.part()

    async def _watch(self, running: RelayProcess) -> None:
        """Wait for the end of a relay, and start another one if it is missed."""
        while wrong := await running.wait():
            log.warning("session %s: %s", self.session.id, wrong)
            self.session.distrust(wrong)
        self._relays.discard(running)
        running.close()
        if self._relay is running:
            self._relay = None
            self._store.drop(running.name)
            short = running.lived_s < SHORT_LIFE_S
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s or 0.1) if short else 0.0
            log.warning("session %s: the relay of its ports has died", self.session.id)
            await self._start_again()
        if not self.in_use:
            self._forget_counts()
            self._unused(self)

    async def _start_again(self) -> None:
        """Start a relay, as soon as that works, unless there is no port to open any more."""
        while self.open_ports and self._relay is None:
            await trio.sleep(self._pause_s)
            try:
                async with self._lock:
                    if self.open_ports:
                        await self._ensure_relay()
                self._problem = ""
            except NsmError as error:
                self._note_problem(error.message)
            except OSError as error:
                self._note_problem(error.strerror or str(error))
        self._part()

    async def _kill_late(self, running: RelayProcess) -> None:
        await trio.sleep(END_S)
        if running in self._relays:
            running.kill()

    def _note_problem(self, problem: str) -> None:
        self._problem = problem
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s or 0.1)
        log.warning("ports of session %s do not work: %s", self.session.id, problem)

    async def _ensure_relay(self) -> None:
        """Start a relay if none runs, with all open ports. An `NsmError` says that there can be
        none, an `OSError` that there is no room for it.
        """
        if self._relay is not None:
            return  # if it has ended, it is replaced as soon as that is noticed
        channel = await self._channel()
        try:
            self._check_live()
            if self._counts is None:
                self._counts = os.memfd_create("nsm-port-counts", os.MFD_CLOEXEC)
                os.truncate(self._counts, relayed.FILE_BYTES)
            started = start_relay(channel, self._counts)
        finally:
            os.close(channel)
        self._begin_with(started)
        for port in self.open_ports:
            started.open(port.record.slot, port.record.number, port.listener)
        self._keep(started.name)

    async def _channel(self) -> int:
        """Ask the agent for a channel on which a relay can ask it for connections."""
        requests = self.session.requests
        frame = {"type": "ports", "id": requests.new_id()}
        try:
            await requests.ask("ports", frame, (PortsFrame,), ANSWER_TIMEOUT_S)
        except NoAnswerError:
            if self.session.link is not None:
                self.session.link.forget_descriptor(frame["id"])
            raise InternalError(
                "The session's agent does not answer.",
                hint="Something may have stopped it: `nsm inspect` shows its processes.",
            ) from None
        link = self.session.link
        if link is None:
            raise self.session.ended_error()
        descriptor = link.claim_descriptor(frame["id"])
        if descriptor is None:
            raise self.session.distrust("no channel came for its ports")
        if not _is_channel(descriptor):
            os.close(descriptor)
            raise self.session.distrust("what came for its ports is not a channel")
        return descriptor

    def _check_live(self) -> None:
        """Raise `SessionEndedError` if the session is over."""
        if self._over or not self.session.live:
            ended: SessionEndedError = self.session.ended_error()
            raise ended

    def _begin(self, port: OpenPort) -> None:
        """Serve a port: the relay accepts from now on.

        It is kept first: a supervisor that is killed here leaves no port that the next one does
        not know.
        """
        assert self._relay is not None, "it was started before"
        assert self._counts is not None, "so were its counts"
        relayed.clear_counts(self._counts, port.record.slot)
        self.open_ports.append(port)
        self._keep(port.name)
        self._relay.open(port.record.slot, port.record.number, port.listener)

    def _made(
        self, number: int, address: Port | UnixPath, client: str, listener: socket.socket
    ) -> OpenPort:
        path = address.path if isinstance(address, UnixPath) else ""
        device, inode = (identity_of(path) or (0, 0)) if path else (0, 0)
        record = PortRecord(
            id=names.fresh_id(()),
            session=self.session.id,
            number=number,
            slot=self._free_slot(),
            address=listeners.shown(listeners.listens_at(address, listener)),
            path=path,
            device=device,
            inode=inode,
            client=client,
        )
        return OpenPort(record, listener)

    def _free_slot(self) -> int:
        """Find a place for counts, a different one each time: an earlier relay may still count."""
        taken = {port.record.slot for port in self.open_ports}
        while True:
            self._slot = (self._slot + 1) % relayed.SLOTS
            if self._slot not in taken:
                return self._slot

    def _keep(self, name: str) -> None:
        """Store what has that name."""
        records.keep(self._store, (each for each in self.everything_kept() if each[0] == name))

    def _forget_counts(self) -> None:
        file, self._counts = self._counts, None
        if file is not None:
            os.close(file)

    def _publish(
        self, kind: Literal["port_opened", "port_closed"], port: OpenPort, **facts: str
    ) -> None:
        record, tenancy = port.record, self.session.tenancy
        self._events.publish(
            kind,
            session=self.session.id,
            name=self.session.name,
            scope=tenancy.scope if tenancy is not None else "",
            port=record.number,
            address=record.address,
            **facts,
        )


def _is_channel(descriptor: int) -> bool:
    """Return whether a descriptor is what our agent passes: a Unix socket for packets."""
    try:
        passed = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return False
    with passed:
        return (passed.family, passed.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
