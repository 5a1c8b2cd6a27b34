"""Proxy of one session or box: its allowed hosts, and decisions on what its broker asks; and what
all proxies share: look-ups of names, room for connections, counters.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from nsmd.host.descriptors import MAX_PROXIED
from nsmd.model.host_rules import Address, AllowList, Host, show_host
from nsmd.model.values import NO_NETWORK, NetworkMode, NetworkRule
from nsmd.network.broker_messages import BrokerMessage, BrokerProtocolError, Kind
from nsmd.network.broker_process import BrokeredConnection, BrokerProcess
from nsmd.network.connections import (
    NOBODY,
    FewAtOnce,
    Resolve,
    SystemResolver,
    UserHosts,
    connect,
)
from nsmd.network.decisions import (
    Counters,
    Decision,
    DecisionLog,
    Protocol,
    RefusedError,
    Verdict,
)
from nsmd.network.host_check import may_stay, usable_addresses
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.secrets.grant import Grant
from nsmd.network.secrets.service import SecretService
from nsmd.network.upstream import NO_UPSTREAM, Upstream

MAX_SESSION_CONNECTIONS = 64
"""Largest number of connections of one session; further ones wait until one ends."""

MAX_BUSY = 16
"""Largest number of connections without room. Each gets an error when it has sent its request. They
use descriptors that are reserved (`nsmd.host.descriptors`); further connections are closed.
"""

MAX_ACCEPTING = 64
"""Threads in accept(2) at once, each for microseconds unless a socket was made to block."""


class ConnectionSlot:
    """Slot of one connection, held until it is over; if `busy`, there is only room for an error."""

    __slots__ = ("_limiter", "busy")

    def __init__(self, limiter: trio.CapacityLimiter, *, busy: bool) -> None:
        limiter.acquire_on_behalf_of_nowait(self)
        self._limiter = limiter
        self.busy = busy

    def leave(self) -> None:
        """Free the slot; call once."""
        self._limiter.release_on_behalf_of(self)


class Gateway:
    """Shared parts of all proxies; the supervisor has one: counts of all sessions since its start,
    a token for each connection (without one, it is refused) and for each that is being refused, for
    its descriptor, and a limit of threads that accept connections. `upstream` is the user's own
    proxy, `certificates` are those that code trusts besides the system's, as PEM.
    """

    def __init__(
        self,
        resolver: Resolve | None = None,
        *,
        max_connections: int = MAX_PROXIED,
        upstream: Upstream = NO_UPSTREAM,
    ) -> None:
        self.resolver: Resolve = resolver or SystemResolver()
        self.counters = Counters()
        self.room = trio.CapacityLimiter(max_connections)
        self.refusing = trio.CapacityLimiter(MAX_BUSY)
        self.accepting = trio.CapacityLimiter(MAX_ACCEPTING)
        self.secrets: SecretService | None = None
        self.upstream = upstream
        self.certificates = ""

    def __repr__(self) -> str:
        return f"<Gateway {self.room.borrowed_tokens} connections>"

    def take_place(self, held: int) -> ConnectionSlot | None:
        """Take a slot for a connection; None if there is not even room for an error.

        A session gets one more only while it has fewer (not counting those for errors) than are
        free. So however many sessions take all that they can get, the next one finds as much room
        as each of them has.
        """
        if held < self.room.available_tokens:
            return ConnectionSlot(self.room, busy=False)
        return self.take_place_for_error()

    def take_place_for_error(self) -> ConnectionSlot | None:
        """Take a slot for a connection that only gets an error; None if there is none."""
        try:
            return ConnectionSlot(self.refusing, busy=True)
        except trio.WouldBlock:
            return None


log = logging.getLogger(__name__)

STUCK_S = 20.0
"""Patience of connections for which a session has no slot left: if none becomes free in that time,
they get an error. Clients take silence for a server that does not answer.
"""

_ALL_SHARES = (
    "All sessions together have too many connections open, and this one has its share; "
    "close some, or try again."
)
_ALL_STUCK = (
    f"{MAX_SESSION_CONNECTIONS} connections are open, which is all that may be at once, and none "
    f"has ended for {STUCK_S:g} s; close some, or try again."
)

RESTART_INTERVAL_S = 1.0
"""Least time between the starts of two brokers of one session."""

MAX_LOGGED = 100
"""Largest number of decisions of one of them in the supervisor's log. Code can make thousands a
second.
"""


class SessionProxy:
    """Hosts that one session or box may reach through its proxy. `whose` is for the log, e.g.
    ``session 3f2a``, `owner` its id, and `user` has hosts that the user has named for it one by
    one.
    """

    __slots__ = (
        "_allowed",
        "_broker",
        "_brokers",
        "_counters",
        "_gateway",
        "_held",
        "_log",
        "_logged",
        "_look_up",
        "_moved_s",
        "_owner",
        "_port",
        "_problem",
        "_starting",
        "_user",
        "_watched",
        "_whose",
        "mode",
    )

    def __init__(
        self,
        whose: str,
        rule: NetworkRule,
        owner: str,
        *,
        gateway: Gateway,
        user: UserHosts = NOBODY,
    ) -> None:
        self._whose = whose
        self._owner = owner
        self.mode: NetworkMode = rule.mode
        self._allowed = AllowList.of(rule.allow) if rule.mode == "allow" else AllowList()
        self._user = user
        self._gateway = gateway
        self._held = 0  # of the gateway's room
        self._broker: BrokerProcess | None = None
        self._starting: trio.Lock | None = None
        self._brokers: trio.Nursery | None = None
        self._port: int | None = None
        self._problem = ""
        self._look_up: Resolve | None = None
        self._log: DecisionLog | None = None  # most sessions never have one
        self._logged = 0
        self._counters: Counters | None = None
        self._moved_s = 0.0  # when a slot of its own was taken or freed
        self._watched: dict[int, tuple[Host, int, Address | None, trio.CancelScope]] | None = None

    # For people and models.

    @property
    def rule(self) -> NetworkRule:
        """Present rule."""
        if self.mode == "off":
            return NO_NETWORK
        return NetworkRule(mode=self.mode, allow=self._allowed.texts)

    @property
    def made(self) -> int:
        """Number of decisions so far, for `decisions_since`."""
        return self._log.made if self._log is not None else 0

    def decisions_since(self, number: int = 0) -> Sequence[Decision]:
        """Decisions after the first so many, as far as they are kept (256); oldest first."""
        return self._log.since(number) if self._log is not None else ()

    def refused_since(self, number: int = 0) -> Sequence[Decision]:
        """Decisions among them in which a rule refused."""
        return [decision for decision in self.decisions_since(number) if decision.refused]

    def facts(self) -> dict[str, Any]:
        """Return the facts for `nsm net` and `nsm inspect`."""
        return {
            "mode": self.mode,
            "allow": list(self._allowed.texts),
            "port": self._port,
            "problem": self._problem or None,
            "broker_pid": self._broker.pid if self._broker is not None else 0,
            "connections": len(self._watched or ()),
            "counters": (self._counters or Counters()).as_dict(),
        }

    def set(self, mode: NetworkMode, allowed: AllowList) -> None:
        """Change the rule. Connections that are no longer allowed end."""
        self.mode, self._allowed = mode, allowed
        for host, port, address, scope in list((self._watched or {}).values()):
            if not self._may_stay(host, port, address):
                scope.cancel()
        if (grant := self.grant) is not None:
            grant.hosts_changed()

    async def accept(self, listener: NamespaceListener) -> None:
        """Serve requests on a socket until cancelled."""
        async with trio.open_nursery() as nursery:
            self._starting, self._brokers = trio.Lock(), nursery
            failure = await self._accept_until_it_fails(listener, nursery)
            nursery.cancel_scope.cancel()
        raise failure

    async def _accept_until_it_fails(
        self, listener: NamespaceListener, nursery: trio.Nursery
    ) -> ListenerError:
        self._look_up = FewAtOnce(self._gateway.resolver)
        slots = trio.Semaphore(MAX_SESSION_CONNECTIONS)
        while True:
            free = _acquired(slots)
            if not free:
                with trio.move_on_at(self._moved_s + STUCK_S):
                    await slots.acquire()
                    free = True
            try:
                client = await listener.accept(self._gateway.accepting)
            except ListenerError as error:
                return error
            if free or _acquired(slots):
                self._moved_s = trio.current_time()
                nursery.start_soon(self._serve_with_slot, client, slots)
            else:  # one after the other, since errors have few places
                await self._serve(client, self._gateway.take_place_for_error(), _ALL_STUCK)

    async def _serve_with_slot(self, client: trio.SocketStream, slots: trio.Semaphore) -> None:
        place = self._gateway.take_place(self._held)
        counts = place is not None and not place.busy
        self._held += counts
        try:
            await self._serve(client, place, _ALL_SHARES)
        finally:
            self._held -= counts
            self._moved_s = trio.current_time()
            slots.release()

    async def _serve(
        self, client: trio.SocketStream, place: ConnectionSlot | None, reason: str
    ) -> None:
        try:
            if place is None:
                await client.aclose()
            else:
                broker = await self._running_broker()
                await self._serve_client(client, broker, reason if place.busy else "")
        except OSError as error:  # there is no room for another process
            if self._logged < MAX_LOGGED:
                self._logged += 1
                log.warning("%s: its proxy has no broker: %s", self._whose, error)
            await trio.aclose_forcefully(client)
        except Exception:  # a bug of ours costs this connection
            log.exception("%s: a connection of its proxy failed", self._whose)
        finally:
            if place is not None:
                place.leave()

    async def _running_broker(self) -> BrokerProcess:
        """Return the broker, started if there is none."""
        assert self._starting is not None, "connections are accepted"
        assert self._brokers is not None, "connections are accepted"
        async with self._starting:
            known = self._broker
            if known is None or known.ended:
                if known is not None:  # whoever ends it on purpose costs others little
                    await trio.sleep_until(known.began_s + RESTART_INTERVAL_S)
                grant = self.grant
                stand_ins: Mapping[str, str] = {} if grant is None else grant.stand_ins
                known = self._broker = BrokerProcess.start(stand_ins, self.count_bytes)
                self._brokers.start_soon(known.listen, self._whose)
            return known

    async def _serve_client(
        self, client: trio.SocketStream, broker: BrokerProcess, busy: str
    ) -> None:
        """Have a broker serve one connection, and close it. `busy` says that there is no room for
        it: it only gets that error.
        """
        async with client:
            try:
                with suppress(trio.EndOfChannel):  # the client has ended, or the broker
                    async with broker.serving(client) as connection:
                        while await self._serve_request(client, connection, busy):
                            pass
            except BrokerProtocolError as error:
                log.warning("a broker of a proxy was ended: %s", error)
                broker.end()
            finally:
                _shut(client)

    async def _serve_request(
        self, client: trio.SocketStream, connection: BrokeredConnection, busy: str
    ) -> bool:
        """Serve one request; False if none may follow. Raises `BrokerProtocolError` if the broker
        sends what ours does not, `trio.EndOfChannel` if the connection is over.
        """
        asked = await _next_message(connection, "ask", "refused")
        host, port = asked.host, asked.port
        shown = show_host(host) if host else ""
        try:
            if asked.kind == "refused":
                raise RefusedError(asked.verdict, asked.detail)  # noqa: TRY301
            if busy:
                raise RefusedError("busy", busy)  # noqa: TRY301
            self._check_plain(asked)
            plain = asked.protocol == "http"
            server, address = await self._connect(host, port, plain=plain)
        except RefusedError as refused:
            self.decided(asked.protocol, shown, port, refused.verdict, refused.detail)
            await connection.send("refuse", f"{refused.verdict} {refused.detail}")
            return True
        self.decided(asked.protocol, shown, port, "allowed", address=str(address or "its proxy"))
        async with server:
            with trio.CancelScope() as scope:
                forget = self._watch(host, port, address, scope)
                try:
                    return await self._carry_out(client, connection, asked, server)
                finally:
                    forget()
                    _shut(server)  # the broker may have kept its copy
        return False

    async def _carry_out(
        self,
        client: trio.SocketStream,
        connection: BrokeredConnection,
        asked: BrokerMessage,
        server: trio.SocketStream,
    ) -> bool:
        """Carry out a request with a connected server."""
        grant = self.grant
        if grant is None or not grant.takes(asked.host, asked.port):
            await connection.send("connected", "", server)
            await _next_message(connection, "done")
            return True
        await connection.send("tunnel")
        early = (await _next_message(connection, "given")).early
        await grant.intercept(client, server, str(asked.host), asked.port, early, self.count_bytes)
        return False

    def _check_plain(self, asked: BrokerMessage) -> None:
        if asked.protocol == "http" and self._reads_requests(asked.host, asked.port):
            raise RefusedError(
                "secret",
                f"This request was not sent: {show_host(asked.host)} has a secret or rules for "
                "requests, and nsm reads requests with https:// only. Use the https:// URL.",
            )

    async def _connect(
        self, host: Host, port: int, *, plain: bool
    ) -> tuple[trio.SocketStream, Address | None]:
        """Connect to a host; returns the address of the connection, too, unless the upstream proxy
        knows it. For a `plain` request, without TLS, there may be another such proxy.
        """
        allowed = self._allowed if self.mode == "allow" else None
        resolve = self._look_up or self._gateway.resolver
        reads_requests = self._reads_requests(host, port)
        if plain and self._user.needs_tls(host, port):
            raise RefusedError(
                "secret",
                f"{show_host(host)} is not asked with http://, since others could read the user's "
                "login for it on the way.",
            )
        upstream = self._gateway.upstream
        proxy = upstream.proxy_for(host, port, plain=plain)
        addresses = await usable_addresses(
            allowed,
            host,
            port,
            resolve,
            reads_requests=reads_requests,
            user=self._user,
            upstream=bool(proxy),
        )
        if proxy:
            return await upstream.connect(proxy, host, port, resolve), None
        try:
            return await connect(addresses, port)
        except OSError as error:
            why = error.strerror or str(error)
            raise RefusedError(
                "unreachable", f"{show_host(host, port)} is allowed, but: {why}."
            ) from None

    @property
    def grant(self) -> Grant | None:
        """Secrets and rules for requests, and who reads these; None without any."""
        secrets = self._gateway.secrets
        return None if secrets is None else secrets.held_by(self._owner)

    def decided(
        self,
        protocol: Protocol,
        host: str,
        port: int,
        verdict: Verdict,
        detail: str = "",
        address: str = "",
    ) -> None:
        """Record the decision on a request."""
        if self._log is None:
            self._log = DecisionLog()
        decision = Decision(
            number=self._log.made + 1,
            at_s=trio.current_time(),
            protocol=protocol,
            host=host,
            port=port,
            verdict=verdict,
            detail=detail,
            address=address,
        )
        self._log.add(decision)
        for counters in self._all_counters():
            counters.verdicts[verdict] += 1
        if self._logged < MAX_LOGGED:
            self._logged += 1
            log.info(
                "%s: network %s: %s %s port %d%s%s",
                self._whose,
                verdict,
                protocol,
                host or "?",
                port,
                f" at {address}" if address else "",
                "; its further requests are not logged" if self._logged == MAX_LOGGED else "",
            )

    def count_bytes(self, sent: int, received: int) -> None:
        """Count bytes to servers, and from them."""
        for counters in self._all_counters():
            counters.sent_bytes += sent
            counters.received_bytes += received

    def _watch(
        self, host: Host, port: int, address: Address | None, scope: trio.CancelScope
    ) -> Callable[[], None]:
        """Have a connection cancelled once it is no longer allowed; call the result at its end."""
        if self._watched is None:
            self._watched = {}
        watched, key = self._watched, id(scope)
        watched[key] = host, port, address, scope
        if not self._may_stay(host, port, address):
            scope.cancel()  # the list changed while the name was looked up, or its helper went

        def forget() -> None:
            del watched[key]

        return forget

    def _may_stay(self, host: Host, port: int, address: Address | None) -> bool:
        return (
            self.mode == "allow"
            and may_stay(self._allowed, host, port, address, self._user)
            and (not self._allowed.requests_to(host, port) or self._reads_requests(host, port))
        )

    def _reads_requests(self, host: Host, port: int) -> bool:
        """Return whether a helper reads the requests to a host."""
        grant = self.grant
        return grant is not None and grant.takes(host, port)

    def _all_counters(self) -> tuple[Counters, Counters]:
        if self._counters is None:
            self._counters = Counters()
        return self._counters, self._gateway.counters


def _acquired(slots: trio.Semaphore) -> bool:
    """Take a slot if there is one at once."""
    try:
        slots.acquire_nowait()
    except trio.WouldBlock:
        return False
    return True


async def _next_message(connection: BrokeredConnection, *kinds: Kind) -> BrokerMessage:
    message = await connection.next()
    if message.kind not in kinds:
        raise BrokerProtocolError(f"{message.kind} where {' or '.join(kinds)} was expected")
    return message


def _shut(stream: trio.SocketStream) -> None:
    """End a connection for all who have a copy of its socket, unless it was given away."""
    if stream.socket.fileno() != -1:
        with suppress(OSError):
            stream.socket.shutdown(socket.SHUT_RDWR)
