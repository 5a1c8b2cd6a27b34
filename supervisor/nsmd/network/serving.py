"""One connection of a client in a session: decisions on what its broker asks, and connections."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol as Interface

import trio

from nsmd.model.host_rules import Address, Host, show_host
from nsmd.network.broker_messages import BrokerMessage, BrokerProtocolError, Kind
from nsmd.network.broker_process import BrokeredConnection, BrokerProcess
from nsmd.network.decisions import Protocol, Verdict
from nsmd.network.interception import Interceptor
from nsmd.network.refusal import RefusedError
from nsmd.network.resolver import ReachableHosts, connect

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024


class ProxyPolicy(Interface):
    """Interface to the session's network, which decides and records."""

    def reach(self) -> ReachableHosts:
        """Return the hosts that code may reach now."""
        ...

    @property
    def interceptor(self) -> Interceptor | None:
        """Return what carries connections to some hosts; None for nothing."""
        ...

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

    def count_bytes(self, sent: int, received: int) -> None:
        """Count bytes."""

    def watch(
        self, host: Host, port: int, address: Address, scope: trio.CancelScope
    ) -> Callable[[], None]:
        """Register an open connection, to be cancelled once it is no longer allowed.

        Args:
            address: address that it goes to.

        Returns:
            A function to call at its end.
        """
        ...


async def serve(
    client: trio.SocketStream, policy: ProxyPolicy, broker: BrokerProcess, *, busy: str = ""
) -> None:
    """Have a broker serve one connection, and close it.

    Args:
        busy: why there is no room for it: it only gets that error.
    """
    async with client:
        try:
            with suppress(trio.EndOfChannel):  # the client has ended, or the broker
                async with broker.serving(client) as connection:
                    served = _ServedConnection(client, policy, connection, busy)
                    while await served.serve_request():
                        pass
        except BrokerProtocolError as error:
            log.warning("a broker of a proxy was ended: %s", error)
            broker.end()
        finally:
            _shut(client)


class _ServedConnection:
    def __init__(
        self,
        client: trio.SocketStream,
        policy: ProxyPolicy,
        connection: BrokeredConnection,
        busy: str,
    ) -> None:
        self._client = client
        self._policy = policy
        self._connection = connection
        self._busy = busy

    async def serve_request(self) -> bool:
        """Serve one request; False if none may follow.

        Raises:
            BrokerProtocolError: the broker sends what ours does not.
            trio.EndOfChannel: the connection is over.
        """
        asked = await self._next("ask", "refused")
        host, port = asked.host, asked.port
        shown = show_host(host) if host else ""
        try:
            if asked.kind == "refused":
                raise RefusedError(asked.verdict, asked.detail)  # noqa: TRY301
            if self._busy:
                raise RefusedError("busy", self._busy)  # noqa: TRY301
            self._check_plain(asked)
            server, address = await self._reach(host, port)
        except RefusedError as refused:
            self._policy.decided(asked.protocol, shown, port, refused.verdict, refused.detail)
            await self._connection.send("refuse", f"{refused.verdict} {refused.detail}")
            return True
        self._policy.decided(asked.protocol, shown, port, "allowed", address=str(address))
        async with server:
            with trio.CancelScope() as scope:
                forget = self._policy.watch(host, port, address, scope)
                try:
                    return await self._carry_out(asked, server)
                finally:
                    forget()
                    _shut(server)  # the broker may have kept its copy
        return False

    async def _carry_out(self, asked: BrokerMessage, server: trio.SocketStream) -> bool:
        """Carry out a request with a connected server."""
        interceptor = self._policy.interceptor
        if interceptor is None or not interceptor.takes(asked.host, asked.port):
            await self._connection.send("connected", "", server)
            await self._next("done")
            return True
        await self._connection.send("tunnel")
        early = (await self._next("given")).early
        await interceptor.carry(
            self._client, server, str(asked.host), asked.port, early, self._policy.count_bytes
        )
        return False

    async def _next(self, *kinds: Kind) -> BrokerMessage:
        message = await self._connection.next()
        if message.kind not in kinds:
            raise BrokerProtocolError(f"{message.kind} where {' or '.join(kinds)} was expected")
        return message

    def _check_plain(self, asked: BrokerMessage) -> None:
        interceptor = self._policy.interceptor
        if (
            asked.protocol == "http"
            and interceptor is not None
            and interceptor.takes(asked.host, asked.port)
        ):
            raise RefusedError(
                "secret",
                f"This request was not sent: {show_host(asked.host)} has a secret or rules for "
                "requests, and nsm reads requests with https:// only. Use the https:// URL.",
            )

    async def _reach(self, host: Host, port: int) -> tuple[trio.SocketStream, Address]:
        addresses = await self._policy.reach().addresses(host, port)
        try:
            return await connect(addresses, port)
        except OSError as error:
            why = error.strerror or str(error)
            raise RefusedError(
                "unreachable", f"{show_host(host, port)} is allowed, but: {why}."
            ) from None


def _shut(stream: trio.SocketStream) -> None:
    """End a connection for all who have a copy of its socket, unless it was given away."""
    if stream.socket.fileno() != -1:
        with suppress(OSError):
            stream.socket.shutdown(socket.SHUT_RDWR)


async def relay(
    client: trio.SocketStream,
    server: trio.SocketStream,
    sent: Callable[[int], None],
    received: Callable[[int], None],
    client_ended: Callable[[], None] = lambda: None,
) -> None:
    """Pass on bytes until both sides have ended, or one is gone.

    Args:
        sent: gets the number of bytes sent to the server.
        received: gets the number of bytes received from it.
        client_ended: called when the client has closed its end.
    """
    async with trio.open_nursery() as nursery:

        async def copy(
            source: trio.SocketStream, target: trio.SocketStream, count: Callable[[int], None]
        ) -> None:
            try:
                while data := await source.receive_some(PIECE_BYTES):
                    await target.send_all(data)
                    count(len(data))
                if source is client:
                    client_ended()
                await target.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, server, sent)
        nursery.start_soon(copy, server, client, received)
