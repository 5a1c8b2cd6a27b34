"""The ports of all sessions."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import trio

from nsm.dataclass import dataclass
from nsm.http.listen_address import ConfiguredPort, parse_port
from nsm.wire.errors import BadRequestError, NsmError, OverloadedError
from nsm.wire.host import PortRow
from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries, RecordError
from nsmd.fdstore.store import DescriptorStore
from nsmd.host import listeners
from nsmd.host.descriptors import MAX_OPEN_PORTS
from nsmd.host.processes import has_ended
from nsmd.model import names
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.settings import PortSettings
from nsmd.ports import relayed
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
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

CONFIGURATION = "configuration"
"""Client of the ports that the configuration opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTraffic:
    """Traffic of all ports since this supervisor started: numbers of open ports, of ports of the
    configuration that could not be opened, of open connections, of those that were accepted and
    that were reset, and of bytes into sessions and out of them.
    """

    ports: int = 0
    unopened: int = 0
    connections: int = 0
    accepted: int = 0
    failed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class PortManager:
    """The ports of all sessions, of which at most so many are open at once."""

    def __init__(
        self, *, store: DescriptorStore, events: Events, most: int = MAX_OPEN_PORTS
    ) -> None:
        self._store = store
        self._events = events
        self._most = most
        self._left_ports: list[OpenPort] = []
        self._left_relays: dict[str, tuple[RelayProcess, int]] = {}  # with counts, by session
        self._of: dict[str, SessionPorts] = {}
        self._unopened: dict[str, list[PortRow]] = {}  # by session
        self._totals = PortTotals()
        self._nursery: trio.Nursery | None = None
        self._opening = 0
        self._leaving = False
        self._configured: Sequence[ConfiguredPort] = ()

    def __repr__(self) -> str:
        return f"<PortManager of {len(self._of)} sessions>"

    def configure(self, settings: PortSettings) -> None:
        """Open the configured ports of sessions that begin from now on."""
        self._configured = [parse_port(text) for text in settings.open]

    def take_up(self, entries: KeptEntries) -> None:
        """Take over what an earlier supervisor has left; call before `serve`."""
        entries.take_over(PORT, PortRecord, self._take_port, owner=lambda each: each.session)
        entries.take_over(RELAY, RelayRecord, self._take_relay, owner=lambda each: each.session)

    def _take_port(self, record: PortRecord, descriptors: list[int]) -> list[int]:
        others = [each for each in descriptors if records.read_file(each) is None]
        if len(others) != 1:
            raise RecordError("its socket is not there")
        listener = socket.socket(fileno=others[0])
        listener.setblocking(False)
        self._left_ports.append(OpenPort(record, listener))
        return others

    def _take_relay(self, record: RelayRecord, descriptors: list[int]) -> list[int]:
        found = records.matched(descriptors, record.control, record.counts)
        pidfd, control, counts_file = found
        if has_ended(pidfd):
            return []
        relay = RelayProcess.taken_up(pidfd, control)
        relay.id = record.id
        self._left_relays[record.session] = relay, counts_file
        return found

    async def serve(
        self,
        sessions: Callable[[], Sequence[Session]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the ports of live sessions until cancelled.

        Then they end, unless `leave` was called.
        """
        unsubscribe = self._events.subscribe(self._on_event, {"session_claimed", "session_ended"})
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._take_up({session.id: session for session in sessions()})
                task_status.started()
                await trio.sleep_forever()
        finally:
            unsubscribe()
            self._nursery = None
            if not self._leaving:
                for ports in list(self._of.values()):
                    ports.end()

    def leave(self) -> None:
        """Leave all ports to the next supervisor."""
        self._leaving = True

    async def open(
        self, session: Session, number: int, text: str, *, public: bool, client: str
    ) -> PortRow:
        """Open a port of a session. `text` is where people connect: HOST:PORT, or unix:PATH. Other
        machines may reach a `public` port. `client` is the program that asks, for people.
        """
        if self._nursery is None:
            raise OverloadedError("The supervisor is ending.", hint="Try again in a moment.")
        if session.name is None:
            raise BadRequestError(
                "Ports of one-shots cannot be opened.", hint="Give the session a name."
            )
        if not 0 < number < 65536:
            raise BadRequestError(f"{number} is not a port.", hint="Ports are 1 to 65535.")
        address = listeners.parse_address(text or listeners.ANY_PORT, public=public)
        open_now = sum(len(ports.open_ports) for ports in self._of.values())
        if open_now + self._opening >= self._most:
            raise OverloadedError(
                f"{self._most} ports are open already.", hint="`nsm port` lists them."
            )
        ports = self._of.get(session.id)
        if ports is None:
            ports = self._of[session.id] = self._ports_of(session, self._nursery)
        self._opening += 1
        try:
            opened = await ports.open(number, address, client)
        finally:
            self._opening -= 1
            if not ports.in_use:
                self._forget(ports)
        self._forget_unopened(session.id, number)
        return ports.row(opened)

    def close(self, session: Session, number: int, client: str) -> list[PortRow]:
        """Close a port of a session; returns its rows as they were."""
        ports = self._of.get(session.id)
        found = [] if ports is None else [p for p in ports.open_ports if p.record.number == number]
        if ports is None or not found:
            raise BadRequestError(
                f"Port {number} of the session is not open.", hint="`nsm port` lists what is."
            )
        rows = [ports.row(port) for port in found]
        for port in found:
            ports.close(port, "a client asked for it", client=client)
        return rows

    def rows(self, session_id: str | None = None) -> list[PortRow]:
        """Describe the open ports, of all sessions or of one."""
        chosen = self._of.values() if session_id is None else [self._of.get(session_id)]
        return [row for ports in chosen if ports is not None for row in ports.rows()]

    def unopened(self, session_id: str | None = None) -> list[PortRow]:
        """Describe the ports of the configuration that could not be opened; as `rows`."""
        chosen = [session_id] if session_id is not None else list(self._unopened)
        return [row for each in chosen for row in self._unopened.get(each, ())]

    def traffic(self) -> PortTraffic:
        """Count what all ports have passed on."""
        known = [ports.counts_of(port) for ports in self._of.values() for port in ports.open_ports]
        total = [sum(column) for column in zip(self._totals.counts, *known, strict=True)]
        return PortTraffic(
            ports=len(known),
            unopened=len(self.unopened()),
            connections=sum(each[relayed.OPEN] for each in known),
            accepted=total[relayed.TOTAL],
            failed=total[relayed.REFUSED] + total[relayed.FAILED],
            sent_bytes=total[relayed.SENT],
            received_bytes=total[relayed.RECEIVED],
        )

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        for ports in list(self._of.values()):
            yield from ports.everything_kept()

    def _ports_of(self, session: Session, nursery: trio.Nursery) -> SessionPorts:
        return SessionPorts(
            session,
            store=self._store,
            totals=self._totals,
            events=self._events,
            nursery=nursery,
            unused=self._forget,
        )

    def _forget(self, ports: SessionPorts) -> None:
        if self._of.get(ports.session.id) is ports:
            del self._of[ports.session.id]

    def _on_event(self, event: SupervisorEvent) -> None:
        """Listen to events."""
        if event.kind == "session_claimed":
            self._open_configured(cast("Session", event.subject))
            return
        self._unopened.pop(event.session, None)
        ports = self._of.get(event.session)
        if ports is not None:
            ports.session_ended()

    def _open_configured(self, session: Session) -> None:
        """Open the ports that the configuration has for a session that begins.

        Models, boxes and clients over HTTP choose names, too; their sessions are not meant.
        """
        tenancy = session.tenancy
        if session.taken_up or tenancy is None or self._nursery is None:
            return
        if names.owner_of(tenancy.scope) == names.COMMAND_LINE:
            for port in self._configured:
                if port.session == tenancy.name:
                    self._nursery.start_soon(self._open_one, session, port)

    async def _open_one(self, session: Session, port: ConfiguredPort) -> None:
        try:
            await self.open(session, port.number, port.address, public=False, client=CONFIGURATION)
        except NsmError as error:
            log.warning("port %d of session %s: %s", port.number, port.session, error.message)
            if session.live:
                self._forget_unopened(session.id, port.number)
                self._unopened.setdefault(session.id, []).append(_unopened(session, port, error))

    def _forget_unopened(self, session_id: str, number: int) -> None:
        kept = [row for row in self._unopened.pop(session_id, ()) if row.port != number]
        if kept:
            self._unopened[session_id] = kept

    def _take_up(self, sessions: Mapping[str, Session]) -> None:
        assert self._nursery is not None, "it is served"
        ports_of: dict[str, list[OpenPort]] = {}
        for port in self._left_ports:
            if port.record.session in sessions:
                ports_of.setdefault(port.record.session, []).append(port)
            else:
                self._close_left(port)
        relays, self._left_relays, self._left_ports = self._left_relays, {}, []
        for session_id in ports_of.keys() | (relays.keys() & sessions.keys()):
            ports = self._of[session_id] = self._ports_of(sessions[session_id], self._nursery)
            ports.take_up(ports_of.get(session_id, []), relays.get(session_id))
        for session_id in relays.keys() - sessions.keys():
            relay, counts_file = relays[session_id]  # it ends by itself, as its session has
            self._store.drop(relay.name)
            relay.close()
            os.close(counts_file)

    def _close_left(self, port: OpenPort) -> None:
        """Close a port whose session has ended while no supervisor ran."""
        record = port.record
        self._store.drop(port.name)
        port.close()
        self._events.publish(
            "port_closed",
            session=record.session,
            port=record.number,
            address=record.address,
            why="its session ended",
        )


def _unopened(session: Session, port: ConfiguredPort, error: NsmError) -> PortRow:
    """Describe a port of the configuration that could not be opened."""
    return PortRow(
        session=session.id,
        name=session.name,
        scope=session.tenancy.scope if session.tenancy is not None else "",
        port=port.number,
        address=port.address or listeners.ANY_PORT,
        client=CONFIGURATION,
        problem=error.message,
        is_open=False,
    )
