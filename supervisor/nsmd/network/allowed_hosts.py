"""Proxy of one session or box: allowed hosts, requests, and connections."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from nsmd.model.host_rules import Address, AllowList, Host
from nsmd.model.values import NO_NETWORK, NetworkMode, NetworkRule
from nsmd.network.broker_process import BrokerProcess
from nsmd.network.decisions import Counters, Decision, DecisionLog, Protocol, Verdict
from nsmd.network.gateway import MAX_SESSION_CONNECTIONS, ConnectionSlot, Gateway
from nsmd.network.interception import Interceptor
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.resolver import FewAtOnce, ReachableHosts, Resolve, may_stay
from nsmd.network.serving import serve

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


class AllowedHosts:
    """Hosts that one session or box may reach through its proxy.

    Args:
        whose: owner for the log, e.g. ``session 3f2a``.
        rule: rule to begin with.
        owner: id of the session or box.
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
        "_watched",
        "_whose",
        "mode",
    )

    def __init__(self, whose: str, rule: NetworkRule, owner: str, *, gateway: Gateway) -> None:
        self._whose = whose
        self._owner = owner
        self.mode: NetworkMode = rule.mode
        self._allowed = AllowList.of(rule.allow) if rule.mode == "allow" else AllowList()
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
        self._watched: dict[int, tuple[Host, int, Address, trio.CancelScope]] | None = None

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
        if (interceptor := self.interceptor) is not None:
            interceptor.hosts_changed()

    async def accept(self, listener: NamespaceListener) -> None:
        """Serve requests on a socket until cancelled.

        Raises:
            ListenerError: the socket no longer works as it should.
        """
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
            free = _take(slots)
            if not free:
                with trio.move_on_at(self._moved_s + STUCK_S):
                    await slots.acquire()
                    free = True
            try:
                client = await listener.accept(self._gateway.accepting)
            except ListenerError as error:
                return error
            if free or _take(slots):
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
                await serve(client, self, broker, busy=reason if place.busy else "")
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
        """Return the broker, started if there is none.

        Raises:
            OSError: it cannot be started.
        """
        assert self._starting is not None, "connections are accepted"
        assert self._brokers is not None, "connections are accepted"
        async with self._starting:
            known = self._broker
            if known is None or known.ended:
                if known is not None:  # whoever ends it on purpose costs others little
                    await trio.sleep_until(known.began_s + RESTART_INTERVAL_S)
                interceptor = self.interceptor
                stand_ins = None if interceptor is None else interceptor.stand_ins
                known = self._broker = BrokerProcess.start(stand_ins or {}, self.count_bytes)
                self._brokers.start_soon(known.listen, self._whose)
            return known

    # For `ProxyPolicy`.

    @property
    def interceptor(self) -> Interceptor | None:
        secrets = self._gateway.secrets
        return None if secrets is None else secrets.held_by(self._owner)

    def reach(self) -> ReachableHosts:
        allowed = self._allowed if self.mode == "allow" else None
        return ReachableHosts(
            allowed, self._look_up or self._gateway.resolver, reads_requests=self._reads_requests
        )

    def decided(
        self,
        protocol: Protocol,
        host: str,
        port: int,
        verdict: Verdict,
        detail: str = "",
        address: str = "",
    ) -> None:
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
        for counters in self._all_counters():
            counters.sent_bytes += sent
            counters.received_bytes += received

    def watch(
        self, host: Host, port: int, address: Address, scope: trio.CancelScope
    ) -> Callable[[], None]:
        if self._watched is None:
            self._watched = {}
        watched, key = self._watched, id(scope)
        watched[key] = host, port, address, scope
        if not self._may_stay(host, port, address):
            scope.cancel()  # the list changed while the name was looked up, or its helper went

        def forget() -> None:
            del watched[key]

        return forget

    def _may_stay(self, host: Host, port: int, address: Address) -> bool:
        return (
            self.mode == "allow"
            and may_stay(self._allowed, host, port, address)
            and (not self._allowed.requests_to(host, port) or self._reads_requests(host, port))
        )

    def _reads_requests(self, host: Host, port: int) -> bool:
        interceptor = self.interceptor
        return interceptor is not None and interceptor.takes(host, port)

    def _all_counters(self) -> tuple[Counters, Counters]:
        if self._counters is None:
            self._counters = Counters()
        return self._counters, self._gateway.counters


def _take(slots: trio.Semaphore) -> bool:
    """Take a slot if there is one at once."""
    try:
        slots.acquire_nowait()
    except trio.WouldBlock:
        return False
    return True
