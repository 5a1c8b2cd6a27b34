"""The network of one session, as it is now: its list, its proxy, what was asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import trio

from nsm.proxyvariables import PROXY_PORT, variables_with_port
from nsm.wire.errors import BadRequestError, NsmError
from nsmd.agentframes import ListeningFrame
from nsmd.agentlink import AgentLink
from nsmd.hostrules import Address, AllowList, Host, HostRule
from nsmd.jail.hostnetwork import open_sockets
from nsmd.proxy.decisions import Counters, Decision, DecisionLog, Protocol, Verdict
from nsmd.proxy.gateway import MAX_SESSION_CONNECTIONS, Gateway
from nsmd.proxy.listener import Listener, ListenerError
from nsmd.proxy.reaching import FewAtOnce, Reach, Resolve, may_stay
from nsmd.proxy.serving import serve
from nsmd.requests import NoAnswerError, Question, Requests
from nsmd.values import NetworkMode, NetworkRule

log = logging.getLogger(__name__)

LISTEN_TIMEOUT_S = 20.0
"""For an agent to make a socket, which takes microseconds once it has started."""

MAX_LOGGED = 100
"""Decisions of one session in the supervisor's log. Code can make thousands a second."""


class SessionNetwork:
    """See the module.

    Args:
        session_id: for the log.
        rule: what the session begins with.
        requests: to its agent.
        nursery: owns the proxy's task, which ends with the session.
        listener: descriptor of the socket that an earlier supervisor had for it; owned from now on.
        changed: called when the list is another, or there is a listener.
    """

    __slots__ = (
        "_allowed",
        "_changed",
        "_connections",
        "_counters",
        "_earlier_listener",
        "_gateway",
        "_link",
        "_listening",
        "_log",
        "_logged",
        "_look_up",
        "_nursery",
        "_opening",
        "_port",
        "_problem",
        "_requests",
        "_scope",
        "_session_id",
        "_watched",
        "mode",
    )

    def __init__(
        self,
        session_id: str,
        rule: NetworkRule,
        *,
        gateway: Gateway,
        requests: Requests,
        nursery: trio.Nursery,
        listener: int | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._earlier_listener = listener
        self._changed = changed
        self._listening: Listener | None = None
        self.mode: NetworkMode = rule.mode
        self._allowed = AllowList.of(rule.allow) if rule.mode == "allow" else AllowList()
        self._session_id = session_id
        self._gateway = gateway
        self._requests = requests
        self._nursery = nursery
        self._link: AgentLink | None = None
        self._scope: trio.CancelScope | None = None
        self._opening: trio.Event | None = None
        self._port: int | None = None
        self._problem = ""
        self._look_up: Resolve | None = None
        self._log: DecisionLog | None = None  # most sessions never have one
        self._logged = 0
        self._counters: Counters | None = None
        self._connections: trio.Semaphore | None = None
        self._watched: dict[int, tuple[Host, int, Address, trio.CancelScope]] | None = None

    def __repr__(self) -> str:
        return f"<SessionNetwork of {self._session_id} {self.mode} port={self._port}>"

    # For the session.

    def opened(self, link: AgentLink) -> None:
        """Its agent can take work."""
        self._link = link
        if self._earlier_listener is not None:
            self._begin(self._take_up)
        elif self.mode == "allow":
            self._start()
        elif self.mode == "full":
            self._problem = open_sockets() or ""

    def closed(self) -> None:
        """Its agent is gone."""
        self._link = None
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._close_earlier()

    @property
    def listener_descriptor(self) -> int | None:
        """The socket on which its proxy waits, or is about to; None while there is none."""
        return self._earlier_listener if self._listening is None else self._listening.descriptor

    # For people and models.

    @property
    def rule(self) -> NetworkRule:
        """As it is now."""
        return NetworkRule(mode=self.mode, allow=self._allowed.texts)

    @property
    def made(self) -> int:
        """How many decisions there have been: for `decisions_since`."""
        return self._log.made if self._log is not None else 0

    def decisions_since(self, number: int = 0) -> Sequence[Decision]:
        """The decisions after the first so many, as far as they are kept (256); oldest first."""
        return self._log.since(number) if self._log is not None else ()

    def refused_since(self, number: int = 0) -> Sequence[Decision]:
        """Those among them that a rule has refused."""
        return [decision for decision in self.decisions_since(number) if decision.refused]

    def facts(self) -> dict[str, Any]:
        """What `nsm net` and `nsm inspect` show."""
        return {
            "mode": self.mode,
            "allow": list(self._allowed.texts),
            "port": self._port,
            "problem": self._problem or None,
            "connections": len(self._watched or ()),
            "counters": (self._counters or Counters()).as_dict(),
        }

    async def allow(self, rules: Iterable[HostRule]) -> None:
        """Allow more from now on.

        Raises:
            NsmError: this session cannot have a proxy, or the whole network is open to it.
            HostRuleError: too many patterns.
        """
        self._check_not_full()
        allowed = self._allowed.with_rules(rules)
        await self._ensure_open()
        self._set("allow", allowed)

    def deny(self, rules: Sequence[HostRule]) -> None:
        """Take patterns away; connections that are allowed no more end.

        Raises:
            BadRequestError: one is not in the list, or the whole network is open.
        """
        self._check_not_full()
        for rule in rules:
            if rule.text not in self._allowed.texts:
                raise BadRequestError(
                    f"{rule.text!r} is not in this session's list, which has "
                    f"{', '.join(self._allowed.texts) or 'nothing'}.",
                    hint="Take away the pattern that allows it.",
                )
        self._set(self.mode, self._allowed.without(rules))

    def turn_off(self) -> None:
        """Allow nothing; all connections end.

        Raises:
            BadRequestError: the whole network is open.
        """
        self._check_not_full()
        self._set("off", AllowList())

    def _check_not_full(self) -> None:
        if self.mode == "full":
            raise BadRequestError(
                "This session was started with the host's network, which holds until its end.",
                hint="End it, and start one with another network.",
            )

    def _set(self, mode: NetworkMode, allowed: AllowList) -> None:
        self.mode, self._allowed = mode, allowed
        self._changed()
        for host, port, address, scope in list((self._watched or {}).values()):
            if mode == "off" or not may_stay(allowed, host, port, address):
                scope.cancel()

    # The proxy.

    async def _ensure_open(self) -> None:
        if self._port is None:
            self._start()
            if self._opening is not None:
                await self._opening.wait()
        if self._port is None:
            raise BadRequestError(
                f"This session cannot have more: {self._problem or 'it has ended'}.",
                hint="Start another session.",
            )

    def _start(self) -> None:
        """Ask for a listener, at once: code that is sent after this finds it."""
        if self._opening is not None or self._link is None:
            return
        frame = {
            "type": "listen",
            "id": self._requests.new_id(),
            "port": PROXY_PORT,
            "variables": variables_with_port(),
        }
        try:
            question = self._requests.begin("listen", frame, (ListeningFrame,))
        except NsmError as error:
            self._note_problem(error.message)
            return
        self._begin(partial(self._listener, self._link, question))

    async def _take_up(self) -> Listener:
        """Go on with the listener that there is: its session's code knows it already."""
        descriptor, self._earlier_listener = self._earlier_listener, None
        assert descriptor is not None
        return Listener(descriptor)

    def _close_earlier(self) -> None:
        descriptor, self._earlier_listener = self._earlier_listener, None
        if descriptor is not None:
            os.close(descriptor)

    def _begin(self, find: Callable[[], Awaitable[Listener]]) -> None:
        self._problem = ""
        opening, scope = self._opening, self._scope = trio.Event(), trio.CancelScope()
        self._nursery.start_soon(self._run, find, opening, scope, name=repr(self))

    async def _run(
        self,
        find: Callable[[], Awaitable[Listener]],
        opening: trio.Event,
        scope: trio.CancelScope,
    ) -> None:
        """Own the listener from the request for it to the session's end."""
        listener: Listener | None = None
        try:
            with scope:
                listener = await find()
                self._port = listener.port
                self._listening = listener
                opening.set()
                self._changed()
                await self._accept(listener)
        except NsmError as error:
            if self._link is not None:
                self._note_problem(error.message)
        except ListenerError as error:
            self._note_problem(f"its socket {error}")
        finally:
            self._listening = None
            self._close_earlier()  # it ended before it began
            if listener is not None:
                listener.close()
            self._port = self._opening = None
            opening.set()

    def _note_problem(self, problem: str) -> None:
        self._problem = f"there is no proxy: {problem}"
        log.warning("session %s has no proxy: %s", self._session_id, problem)

    @staticmethod
    async def _listener(link: AgentLink, question: Question) -> Listener:
        try:
            await question.wait(LISTEN_TIMEOUT_S)
        except NoAnswerError:
            raise ListenerError("was not made in time") from None
        descriptor = link.claim_descriptor()
        if descriptor is None:
            raise ListenerError("did not come along")
        return Listener(descriptor)

    async def _accept(self, listener: Listener) -> None:
        """
        Raises:
            ListenerError: it does not do any more what it should.
        """
        async with trio.open_nursery() as nursery:
            failure = await self._accept_until_it_fails(listener, nursery)
            nursery.cancel_scope.cancel()
        raise failure

    async def _accept_until_it_fails(
        self, listener: Listener, nursery: trio.Nursery
    ) -> ListenerError:
        self._look_up = FewAtOnce(self._gateway.resolver)
        places = self._connections = trio.Semaphore(MAX_SESSION_CONNECTIONS)
        while True:
            await places.acquire()
            try:
                client = await listener.accept(self._gateway.accepting)
            except ListenerError as error:
                return error
            nursery.start_soon(self._serve, client)

    async def _serve(self, client: trio.SocketStream) -> None:
        assert self._connections is not None
        place = self._gateway.take_place()
        try:
            if place is None:
                await client.aclose()
            else:
                await serve(client, self, busy=place.busy)
        except Exception:  # a fault of ours costs this connection
            log.exception("session %s: a connection of its proxy failed", self._session_id)
        finally:
            if place is not None:
                place.leave()
            self._connections.release()

    # `Keeper`.

    def reach(self) -> Reach:
        """See `Keeper`."""
        allowed = self._allowed if self.mode == "allow" else None
        return Reach(allowed, self._look_up or self._gateway.resolver)

    def decided(
        self,
        protocol: Protocol,
        host: str,
        port: int,
        verdict: Verdict,
        detail: str = "",
        address: str = "",
    ) -> None:
        """See `Keeper`."""
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
                "session %s: network %s: %s %s port %d%s%s",
                self._session_id,
                verdict,
                protocol,
                host or "?",
                port,
                f" at {address}" if address else "",
                "; its further requests are not logged" if self._logged == MAX_LOGGED else "",
            )

    def sent(self, size: int) -> None:
        """See `Keeper`."""
        for counters in self._all_counters():
            counters.sent_bytes += size

    def received(self, size: int) -> None:
        """See `Keeper`."""
        for counters in self._all_counters():
            counters.received_bytes += size

    def watch(
        self, host: Host, port: int, address: Address, scope: trio.CancelScope
    ) -> Callable[[], None]:
        """See `Keeper`."""
        if self._watched is None:
            self._watched = {}
        watched, key = self._watched, id(scope)
        watched[key] = host, port, address, scope
        if self.mode != "allow" or not may_stay(self._allowed, host, port, address):
            scope.cancel()  # the list changed while the name was looked up

        def forget() -> None:
            del watched[key]

        return forget

    def _all_counters(self) -> tuple[Counters, Counters]:
        if self._counters is None:
            self._counters = Counters()
        return self._counters, self._gateway.counters
