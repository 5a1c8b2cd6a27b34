"""One connection of a client in a session: its requests, their answers, the bytes; in a broker."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nsmd.model.host_rules import Host
from nsmd.network.decisions import Protocol
from nsmd.network.refusal import RefusedError, http_response
from nsmd.network.secrets.finding import find_in_head
from nsmd.network.socks import VERSION as SOCKS_5
from nsmd.network.socks import SocksProxy
from nsmd.network.web_proxy import KEEP_ALIVE_S, WebProxy

if TYPE_CHECKING:
    from nsmd.network.broker import BrokeredClient

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

TURN_PIECES = 16
"""Pieces that one direction moves before others have their turn."""

MAX_WAITING = 16
"""Pieces of further requests that are read while one is answered."""


class ProxyStream:
    """A connected socket, owned from now on. Its methods raise `OSError` if the peer is gone."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        """Receive bytes; none at the end.

        A cancelled call takes no bytes; `sock_recv` of asyncio may lose those that have just come.
        """
        while True:
            with suppress(BlockingIOError):
                return self._socket.recv(PIECE_BYTES)
            readable = asyncio.Event()
            self._loop.add_reader(self._socket, readable.set)
            try:
                await readable.wait()
            finally:
                self._loop.remove_reader(self._socket)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    def end(self, how: int = socket.SHUT_WR) -> None:
        """Tell the peer that nothing follows."""
        with suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close it for this process: the supervisor has a copy, and closes that."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()


async def serve_client(client: ProxyStream, supervisor: BrokeredClient) -> None:
    """Serve one connection until it is over, or given away."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S) as deadline:
            if first := await client.receive():
                kind = _Socks if first[0] == SOCKS_5 else _Web
                await kind(client, supervisor).run(first, deadline)
    except* OSError:  # one side is gone, or it was silent for too long
        pass


class _ProxyConnection(ABC):
    """Shared parts of both kinds of proxy."""

    protocol: Protocol

    def __init__(self, client: ProxyStream, supervisor: BrokeredClient) -> None:
        self._client = client
        self._supervisor = supervisor
        self._open: asyncio.Timeout | None = None
        self._idle_s = IDLE_S

    async def run(self, first: bytes, deadline: asyncio.Timeout) -> None:
        """Serve the connection.

        Args:
            first: bytes that the client has already sent.
            deadline: of the request.
        """
        await self._serve_request(first, deadline)
        while self._begin_next():
            async with asyncio.timeout(KEEP_ALIVE_S) as deadline:
                await self._serve_request(b"", deadline)

    async def _serve_request(self, first: bytes, deadline: asyncio.Timeout) -> None:
        host: Host = ""
        port = 0
        try:
            asked = await self._request(first)
            if asked is None:
                return
            host, port = asked
            deadline.reschedule(None)
            self._check_head()
        except RefusedError as refused:
            await self._supervisor.report_refused(self.protocol, host, port, refused)
            await self._refuse(refused)
            return
        try:
            server = await self._supervisor.ask(self.protocol, host, port)
        except RefusedError as refused:
            await self._refuse(refused)
            return
        if server is None:
            answer, early = self._begin_tunnel()
            await self._client.send(answer)
            self._supervisor.give_away(early)
            return
        try:
            async with asyncio.timeout(self._idle_s) as self._open:
                await self._pass_on(server)
        finally:
            server.close()
        self._supervisor.done()

    def _restart_idle_timeout(self) -> None:
        now = asyncio.get_running_loop().time()
        assert self._open is not None, "bytes move while it is open"
        due = self._open.when()
        if due is not None and abs(due - now - self._idle_s) > 1:
            self._open.reschedule(now + self._idle_s)

    def _client_ended(self) -> None:
        self._idle_s = CLIENT_ENDED_S
        self._restart_idle_timeout()

    def _sent(self, size: int) -> None:
        self._restart_idle_timeout()
        self._supervisor.count_bytes(size, 0)

    def _received(self, size: int) -> None:
        self._restart_idle_timeout()
        self._supervisor.count_bytes(0, size)

    async def _refuse(self, refused: RefusedError) -> None:
        await self._client.send(self._refusal(refused))
        await self._linger()

    async def _linger(self) -> None:
        async with asyncio.timeout(LINGER_S):
            self._client.end()
            while await self._client.receive():
                pass

    async def _read(self, more: Callable[[bytes], None]) -> bool:
        data = await self._client.receive()
        more(data)
        return bool(data)

    @abstractmethod
    async def _request(self, first: bytes) -> tuple[Host, int] | None:
        """Read the client's request; None if it ended before it was complete.

        Raises:
            RefusedError: this is no such request.
        """

    @abstractmethod
    def _check_head(self) -> None:
        """Check what is seen of the request itself.

        Raises:
            RefusedError: it is refused.
        """

    def _begin_next(self) -> bool:
        """Get ready for another request; False if there can be none."""
        return False

    @abstractmethod
    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer for a client that may send any bytes, and those it has sent already."""

    @abstractmethod
    async def _pass_on(self, server: ProxyStream) -> None:
        """Carry out the request with a connected server."""

    @abstractmethod
    def _refusal(self, refused: RefusedError) -> bytes:
        """Make the answer for a refused request."""

    async def _tunnel(self, server: ProxyStream) -> None:
        answer, early = self._begin_tunnel()
        await self._client.send(answer)
        if early:
            await server.send(early)
            self._sent(len(early))
        async with asyncio.TaskGroup() as both:
            both.create_task(self._copy(self._client, server, self._sent))
            both.create_task(self._copy(server, self._client, self._received))

    async def _copy(
        self, source: ProxyStream, target: ProxyStream, count: Callable[[int], None]
    ) -> None:
        pieces = 0
        while data := await source.receive():
            await target.send(data)
            count(len(data))
            pieces += 1
            if pieces % TURN_PIECES == 0:
                await asyncio.sleep(0)
        if source is self._client:
            self._client_ended()
        self._supervisor.report_moved()  # before anybody sees the end
        target.end()


class _Socks(_ProxyConnection):
    protocol: Protocol = "socks5"

    def __init__(self, client: ProxyStream, supervisor: BrokeredClient) -> None:
        super().__init__(client, supervisor)
        self._proxy = SocksProxy()

    async def _request(self, first: bytes) -> tuple[Host, int] | None:
        self._proxy.receive_data(first)
        while (request := self._proxy.next_request()) is None:
            if answers := self._proxy.answers():
                await self._client.send(answers)
            if not await self._read(self._proxy.receive_data):
                return None
        if answers := self._proxy.answers():
            await self._client.send(answers)
        return request.host, request.port

    def _check_head(self) -> None:
        """Check nothing: SOCKS has no more than the host."""

    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        return self._proxy.begin_tunnel()

    async def _pass_on(self, server: ProxyStream) -> None:
        await self._tunnel(server)

    def _refusal(self, refused: RefusedError) -> bytes:
        return self._proxy.answers() + self._proxy.refusal(refused)


class _Web(_ProxyConnection):
    protocol: Protocol = "http"

    def __init__(self, client: ProxyStream, supervisor: BrokeredClient) -> None:
        super().__init__(client, supervisor)
        self._proxy = WebProxy()

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

    def _check_head(self) -> None:
        if self.protocol == "connect" or not self._supervisor.stand_ins:
            return
        request = self._proxy.outgoing()
        name = find_in_head(request.target, request.headers, self._supervisor.stand_ins)
        if name is not None:
            raise RefusedError(
                "secret",
                f"This request was not sent: it has the stand-in of secret {name}, and nsm puts "
                "the value in its place with https:// only. Send it with https:// to a host of "
                "the secret.",
            )

    def _begin_next(self) -> bool:
        return self._proxy.begin_next()

    def _begin_tunnel(self) -> tuple[bytes, bytes]:
        return self._proxy.begin_tunnel()

    async def _pass_on(self, server: ProxyStream) -> None:
        if self.protocol == "connect":
            await self._tunnel(server)
            return
        async with asyncio.TaskGroup() as both:
            sending = both.create_task(self._send_request(server))
            await self._return_answer(server)
            sending.cancel()
        if not self._proxy.done:
            await self._linger()

    async def _send_request(self, server: ProxyStream) -> None:
        try:
            await self._send(server, self._proxy.head())
            while not self._proxy.done:
                body = self._proxy.next_body()
                if body is None:
                    await self._read(self._proxy.receive_data)
                else:
                    await self._send(server, body)
        except RefusedError:
            # The server has half a request, and must not take it for a whole one.
            server.end(socket.SHUT_RDWR)
            return
        except OSError:
            return  # it may still have answered
        for _ in range(MAX_WAITING):  # of its next requests, which wait for this answer
            if not await self._read(self._proxy.receive_data):
                self._client_ended()
                return

    async def _send(self, server: ProxyStream, data: bytes) -> None:
        if data:
            await server.send(data)
            self._sent(len(data))

    async def _return_answer(self, server: ProxyStream) -> None:
        """Return the answer up to its end."""
        while not self._proxy.answered:
            try:
                data = await server.receive()
            except OSError:
                return
            self._received(len(data))
            await self._client.send(self._proxy.receive_answer(data))

    def _refusal(self, refused: RefusedError) -> bytes:
        return http_response(refused)
