"""One connection of a client in a session: its request, the decision, the bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol as Interface

import trio

from nsmd.model.host_rules import Address, Host, show_host
from nsmd.network.decisions import Protocol, Verdict
from nsmd.network.interception import Interceptor
from nsmd.network.refusal import RefusedError, http_response
from nsmd.network.resolver import ReachableHosts, connect
from nsmd.network.socks import VERSION as SOCKS_5
from nsmd.network.socks import SocksProxy

REQUEST_TIMEOUT_S = 30.0
"""Time for a client to send its request."""

IDLE_S = 900.0
"""A connection without a byte in either direction is closed after that time: its slot may be
needed.
"""

CLIENT_ENDED_S = 60.0
"""The same after the client has closed its end: mostly it has given up, and nobody reads what a
server that hangs may still say.
"""

LINGER_S = 2.0
"""Time for a client to read a refusal: if its own bytes were unread at the close, it would see a
reset.
"""

PIECE_BYTES = 64 * 1024

MAX_WAITING = 16
"""Pieces of further requests that are read while one is answered."""


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

    def sent(self, size: int) -> None:
        """Count bytes that were sent."""

    def received(self, size: int) -> None:
        """Count bytes that were received."""

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


async def serve(client: trio.SocketStream, policy: ProxyPolicy, *, busy: str = "") -> None:
    """Serve one connection, and close it.

    Args:
        busy: why there is no room for it: it only gets that error.
    """
    async with client:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await _serve(client, policy, busy)


async def _serve(client: trio.SocketStream, policy: ProxyPolicy, busy: str) -> None:
    with trio.move_on_after(REQUEST_TIMEOUT_S) as patience:
        first = await client.receive_some(PIECE_BYTES)
        if not first:
            return
        kind = _Socks if first[0] == SOCKS_5 else _Web
        proxy = kind(client, policy)
        await proxy.run(first, busy, patience)


class _ProxyConnection(ABC):
    """Shared parts of both kinds of proxy."""

    protocol: Protocol

    def __init__(self, client: trio.SocketStream, policy: ProxyPolicy) -> None:
        self._client = client
        self._policy = policy
        self._open = trio.CancelScope()
        self._idle_s = IDLE_S

    async def run(self, first: bytes, busy: str, patience: trio.CancelScope) -> None:
        """Serve the connection.

        Args:
            first: bytes that the client has already sent.
            busy: as for `serve`.
            patience: ends with the request.
        """
        await self._serve_request(first, busy, patience)
        while wait_s := self._begin_next():
            self._open = trio.CancelScope()
            with trio.move_on_after(wait_s) as patience:
                await self._serve_request(b"", busy, patience)

    def _begin_next(self) -> float:
        """Get ready for another request, for so many seconds; 0 if there can be none."""
        return 0.0

    async def _serve_request(self, first: bytes, busy: str, patience: trio.CancelScope) -> None:
        host: Host = ""
        port = 0
        try:
            asked = await self._request(first)
            if asked is None:
                return
            host, port = asked
            patience.deadline = float("inf")
            if busy:
                raise RefusedError("busy", busy)  # noqa: TRY301
            self._check_head(host, port)
            server, address = await self._reach(host, port)
        except RefusedError as refused:
            shown = show_host(host) if host else ""
            self._policy.decided(self.protocol, shown, port, refused.verdict, refused.detail)
            await self._refuse(refused)
            return
        self._policy.decided(self.protocol, show_host(host), port, "allowed", address=str(address))
        async with server:
            with self._open:
                self._note_life()
                forget = self._policy.watch(host, port, address, self._open)
                try:
                    interceptor = self._policy.interceptor
                    if interceptor is None or not interceptor.takes(host, port):
                        await self._pass_on(server)
                    else:
                        await self._intercept(interceptor, server, str(host), port)
                finally:
                    forget()

    async def _reach(self, host: Host, port: int) -> tuple[trio.SocketStream, Address]:
        addresses = await self._policy.reach().addresses(host, port)
        try:
            return await connect(addresses, port)
        except OSError as error:
            why = error.strerror or str(error)
            raise RefusedError(
                "unreachable", f"{show_host(host, port)} is allowed, but: {why}."
            ) from None

    def _note_life(self) -> None:
        self._open.deadline = trio.current_time() + self._idle_s

    def _client_ended(self) -> None:
        self._idle_s = CLIENT_ENDED_S
        self._note_life()

    def _sent(self, size: int) -> None:
        self._note_life()
        self._policy.sent(size)

    def _received(self, size: int) -> None:
        self._note_life()
        self._policy.received(size)

    async def _refuse(self, refused: RefusedError) -> None:
        with trio.move_on_after(LINGER_S):
            await self._client.send_all(self._refusal(refused))
        await self._linger()

    async def _linger(self) -> None:
        with trio.move_on_after(LINGER_S):
            await self._client.send_eof()
            while await self._client.receive_some(PIECE_BYTES):
                pass

    async def _read(self, more: Callable[[bytes], None]) -> bool:
        data = await self._client.receive_some(PIECE_BYTES)
        more(data)
        return bool(data)

    @abstractmethod
    async def _request(self, first: bytes) -> tuple[Host, int] | None:
        """Read the client's request; None if it ended before it was complete."""

    @abstractmethod
    def _check_head(self, host: Host, port: int) -> None:
        """Check what is seen of the request itself.

        Raises:
            RefusedError: it is refused.
        """

    async def _intercept(
        self, interceptor: Interceptor, server: trio.SocketStream, host: str, port: int
    ) -> None:
        """Have the connection carried elsewhere."""
        answer, early = self._begin_tunnel()
        await self._client.send_all(answer)
        self._open.deadline = float("inf")  # who carries it knows when nothing moves

        def moved(sent: int, received: int) -> None:
            self._policy.sent(sent)
            self._policy.received(received)

        await interceptor.carry(self._client, server, host, port, early, moved)

    @abstractmethod
    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer for a client that may send any bytes, and those it has sent already."""

    @abstractmethod
    async def _pass_on(self, server: trio.SocketStream) -> None:
        """Carry out the request with a connected server."""

    @abstractmethod
    def _refusal(self, refused: RefusedError) -> bytes:
        """Make the answer for a refused request."""

    async def _tunnel(self, server: trio.SocketStream, begin: tuple[bytes, bytes]) -> None:
        answer, early = begin
        await self._client.send_all(answer)
        if early:
            await server.send_all(early)
            self._sent(len(early))
        await relay(self._client, server, self._sent, self._received, self._client_ended)


class _Socks(_ProxyConnection):
    protocol: Protocol = "socks5"

    def __init__(self, client: trio.SocketStream, policy: ProxyPolicy) -> None:
        super().__init__(client, policy)
        self._proxy = SocksProxy()

    async def _request(self, first: bytes) -> tuple[Host, int] | None:
        self._proxy.receive_data(first)
        while (request := self._proxy.next_request()) is None:
            if answers := self._proxy.answers():
                await self._client.send_all(answers)
            if not await self._read(self._proxy.receive_data):
                return None
        if answers := self._proxy.answers():
            await self._client.send_all(answers)
        return request.host, request.port

    def _check_head(self, host: Host, port: int) -> None:
        """Check nothing: SOCKS has no more than the host."""

    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        return self._proxy.begin_tunnel()

    async def _pass_on(self, server: trio.SocketStream) -> None:
        await self._tunnel(server, self._begin_tunnel())

    def _refusal(self, refused: RefusedError) -> bytes:
        return self._proxy.answers() + self._proxy.refusal(refused)


class _Web(_ProxyConnection):
    protocol: Protocol = "http"

    def __init__(self, client: trio.SocketStream, policy: ProxyPolicy) -> None:
        super().__init__(client, policy)
        # Saves 10 ms at the start of every supervisor; most never need it.
        from nsmd.network.web_proxy import KEEP_ALIVE_S, WebProxy  # noqa: PLC0415

        self._proxy, self._keep_s = WebProxy(), KEEP_ALIVE_S

    async def _request(self, first: bytes) -> tuple[Host, int] | None:
        if first:
            self._proxy.receive_data(first)
        self.protocol = "http"
        while (request := self._proxy.next_request()) is None:
            if self._proxy.ended:
                return None
            await self._read(self._proxy.receive_data)  # `next_request` reports its end
        if request.tunnel:
            self.protocol = "connect"
        return request.host, request.port

    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        return self._proxy.begin_tunnel()

    def _check_head(self, host: Host, port: int) -> None:
        interceptor = self._policy.interceptor
        if interceptor is None or self.protocol == "connect":
            return
        request = self._proxy.outgoing()
        name = interceptor.found_in(request.target, request.headers)
        if name is not None or interceptor.takes(host, port):
            raise RefusedError(
                "secret",
                f"This request was not sent: it has the stand-in of secret {name}, and nsm puts "
                "the value in its place with https:// only. Send it with https:// to a host of "
                "the secret."
                if name
                else f"This request was not sent: {show_host(host)} has a secret or rules for "
                "requests, and nsm reads requests with https:// only. Use the https:// URL.",
            )

    async def _pass_on(self, server: trio.SocketStream) -> None:
        if self.protocol == "connect":
            await self._tunnel(server, self._begin_tunnel())
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_request, server, nursery.cancel_scope)
            await self._return_answer(server)
            nursery.cancel_scope.cancel()
        if not self._proxy.done:
            await self._linger()

    async def _send_request(self, server: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            await self._send(server, self._proxy.head())
            while not self._proxy.done:
                body = self._proxy.next_body()
                if body is None:
                    await self._read(self._proxy.receive_data)
                else:
                    await self._send(server, body)
        except RefusedError:
            scope.cancel()  # the server has half a request, and must not take it for a whole one
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it may still have answered
        else:
            await self._await_end_of_client(scope)

    async def _await_end_of_client(self, scope: trio.CancelScope) -> None:
        try:
            for _ in range(MAX_WAITING):  # of its next requests, which wait for this answer
                if not await self._read(self._proxy.receive_data):
                    self._client_ended()
                    return
        except trio.BrokenResourceError:
            scope.cancel()  # nobody reads the answer

    async def _send(self, server: trio.SocketStream, data: bytes) -> None:
        if data:
            await server.send_all(data)
            self._sent(len(data))

    async def _return_answer(self, server: trio.SocketStream) -> None:
        """Return the answer up to its end."""
        with suppress(trio.BrokenResourceError):
            while not self._proxy.answered:
                data = await server.receive_some(PIECE_BYTES)
                self._received(len(data))
                await self._client.send_all(self._proxy.receive_answer(data))

    def _begin_next(self) -> float:
        return self._keep_s if self._proxy.begin_next() else 0.0

    def _refusal(self, refused: RefusedError) -> bytes:
        return http_response(refused)


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
