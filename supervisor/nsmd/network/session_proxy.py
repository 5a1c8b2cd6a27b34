"""Proxy of one session or box: its allowed hosts, and decisions on what its broker asks."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from nsm.wire.errors import NsmError
from nsmd.model.host_rules import Address, AllowList, Host, show_host
from nsmd.model.values import NO_NETWORK, NetworkMode, NetworkRule
from nsmd.network.broker_messages import BrokerMessage, BrokerProtocolError, Kind
from nsmd.network.broker_process import BrokeredConnection, BrokerProcess
from nsmd.network.connections import (
    NOBODY,
    FewAtOnce,
    Resolve,
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
from nsmd.network.gateway import ConnectionSlot, Gateway
from nsmd.network.host_check import check_name, may_stay, usable_addresses
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.named import MAX_KNOWN, NamedChannel, NamedError, NamedMessage
from nsmd.network.secrets.grant import Grant

MAX_SESSION_CONNECTIONS = 64
"""Largest number of connections of one session; further ones wait until one ends."""

_RESET = struct.pack("ii", 1, 0)
"""A `struct linger` (socket(7)) with which the close of a connection resets it."""


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
        "_channel",
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
        "_slots",
        "_starting",
        "_user",
        "_watched",
        "_whose",
        "known_names",
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
        self._slots: trio.Semaphore | None = None
        self._channel: NamedChannel | None = None
        self.known_names: dict[str, None] | None = None
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
        for said in () if self._channel is None else self._channel.told():
            self._note_name(said)
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

    async def accept(
        self,
        listener: NamespaceListener,
        find_named: Callable[[], Awaitable[NamedChannel]] | None = None,
    ) -> None:
        """Serve requests on a socket until cancelled, and connections to names."""
        async with trio.open_nursery() as nursery:
            self._starting, self._brokers = trio.Lock(), nursery
            self._slots = trio.Semaphore(MAX_SESSION_CONNECTIONS)
            self._look_up = FewAtOnce(self._gateway.resolver)
            if find_named is not None:
                nursery.start_soon(self._accept_named, find_named, nursery)
            failure = await self._accept_until_it_fails(listener, nursery)
            nursery.cancel_scope.cancel()
        raise failure

    async def _accept_until_it_fails(
        self, listener: NamespaceListener, nursery: trio.Nursery
    ) -> ListenerError:
        slots = self._slots
        assert slots is not None, "connections are accepted"
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
                nursery.start_soon(self._serve_with_slot, client)
            else:  # one after the other, since errors have few places
                await self._serve(client, self._gateway.take_place_for_error(), _ALL_STUCK)

    async def _accept_named(
        self, find: Callable[[], Awaitable[NamedChannel]], nursery: trio.Nursery
    ) -> None:
        """Serve connections of programs that know no proxy."""
        try:
            channel = self._channel = await find()
        except (NsmError, NamedError) as error:
            log.debug("%s: no program can look names up: %s", self._whose, error)
            return
        try:
            while True:
                said = await channel.receive()
                if said.connection is not None:
                    target = show_host(said.host, said.port)
                    await self._begin_named(said.connection, target, nursery)
                else:
                    self._note_name(said)
        except NamedError as error:
            if not channel.ended:
                log.warning("%s: its channel for names %s", self._whose, error)
        finally:
            self._channel = None
            channel.close()

    def _note_name(self, said: NamedMessage) -> None:
        """Remember a name that has an address, for forks, or record that it was not found, or has
        no listener at a port.
        """
        host, port = said.host, said.port
        if said.kind != "refused":
            known = self.known_names = self.known_names or {}
            known.pop(host, None)
            known[host] = None
            if len(known) > MAX_KNOWN:
                del known[next(iter(known))]
            return
        try:
            check_name(self._allowed if self.mode == "allow" else None, host, port)
        except RefusedError as refused:
            self.decided("tcp", host, port, refused.verdict, refused.detail)
            return
        detail = f"Only the proxy reaches {host}, until the user allows it with the port."
        if port:
            detail = f"A server of this session has port {port}: let it listen on 127.0.0.1 only."
        self.decided("tcp", host, port, "busy" if port else "unresolved", detail)

    async def _begin_named(
        self, client: trio.SocketStream, target: str, nursery: trio.Nursery
    ) -> None:
        assert self._slots is not None, "connections are accepted"
        free = _acquired(self._slots)
        try:
            if not free:
                with trio.move_on_at(self._moved_s + STUCK_S):
                    await self._slots.acquire()
                    free = True
        except BaseException:
            client.socket.close()
            raise
        if free:
            self._moved_s = trio.current_time()
            nursery.start_soon(self._serve_with_slot, client, target)
        else:
            await self._serve(client, self._gateway.take_place_for_error(), _ALL_STUCK, target)

    async def _serve_with_slot(self, client: trio.SocketStream, direct: str = "") -> None:
        place = self._gateway.take_place(self._held)
        counts = place is not None and not place.busy
        self._held += counts
        try:
            await self._serve(client, place, _ALL_SHARES, direct)
        finally:
            self._held -= counts
            self._moved_s = trio.current_time()
            assert self._slots is not None, "it was accepted"
            self._slots.release()

    async def _serve(
        self,
        client: trio.SocketStream,
        place: ConnectionSlot | None,
        reason: str,
        direct: str = "",
    ) -> None:
        try:
            if place is None:
                await client.aclose()
            else:
                broker = await self._running_broker()
                await self._serve_client(client, broker, reason if place.busy else "", direct)
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
        self, client: trio.SocketStream, broker: BrokerProcess, busy: str, direct: str
    ) -> None:
        """Have a broker serve one connection, and close it. `busy` says that there is no room for
        it: it only gets that error. `direct` is the HOST:PORT of one to a name.
        """
        async with client:
            try:
                with suppress(trio.EndOfChannel):  # the client has ended, or the broker
                    async with broker.serving(client, direct) as connection:
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
            if asked.protocol == "tcp":
                with suppress(trio.EndOfChannel):  # once the broker has closed its copy
                    await connection.next()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                await client.aclose()
                return False
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
            its_name = self._gateway.upstream_resolver
            return await upstream.connect(proxy, host, port, its_name), None
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
