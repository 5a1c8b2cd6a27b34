"""A program that reads what code sends to the proxy of one session or box, and passes it on.

There is one for each session or box whose code has used its proxy, so that none is in the way of
another. It decides nothing: for each request it asks the supervisor, which connects to the server,
or refuses. It ends with the supervisor, and its connections end with it.

Descriptor 0 is connected to the supervisor. Messages are packets (unix(7), SOCK_SEQPACKET) of
words, some with a descriptor:

``stand-ins JSON``        stand-ins of secrets, by name
``serve NUMBER``          a connection of a client
``direct NUMBER HOST:PORT``  a connection of a program that meant this host, and asks for nothing
``connected NUMBER``      a connection to the server that it asked for
``tunnel NUMBER``         somebody else carries the connection: answer the client, and give it away
``refuse NUMBER VERDICT DETAIL``  refuse what it asked for, or was about to refuse itself

It sends the messages of `nsmd.network.broker_messages`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

from nsmd.fdstore.holder import receive_one
from nsmd.host.rights import give_up_rights
from nsmd.model.host_rules import show_host
from nsmd.network.broker_messages import MAX_BYTES, MAX_DETAIL, Kind
from nsmd.network.decisions import VERDICTS, RefusedError
from nsmd.network.proxy_requests import (
    KEEP_ALIVE_S,
    SOCKS_VERSION,
    DirectProxy,
    ProxyRequest,
    SocksProxy,
    WebProxy,
)
from nsmd.network.secrets.stand_ins import find_in_head

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

COUNT_S = 1.0
"""Time after which moved bytes are reported at the latest."""

MAX_DESCRIPTORS = 256
"""Each connection has two, and the supervisor lets a session have 64."""


class Broker:
    """All connections of one session or box. Messages to the supervisor wait while it is busy."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._clients: dict[int, BrokeredClient] = {}
        self._moved = [0, 0]
        self._reporting: asyncio.TimerHandle | None = None
        self.stand_ins: dict[str, str] = {}

    async def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        self._loop.add_reader(self._control, self._on_message)
        await self._over

    def _on_message(self) -> None:
        try:
            message, descriptor = receive_one(self._control, MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message, descriptor = b"", None
        if not message:
            self._loop.remove_reader(self._control)
            self._over.set_result(None)
            return
        self._carry_out(message, None if descriptor is None else socket.socket(fileno=descriptor))

    def _carry_out(self, message: bytes, passed: socket.socket | None) -> None:
        word, rest = message.decode().split(" ", 1)
        if word == "stand-ins":
            self.stand_ins = json.loads(rest)
            return
        number, _, rest = rest.partition(" ")
        if word in ("serve", "direct") and passed is not None:
            target = DirectProxy(rest) if word == "direct" else None
            stream = ProxyStream(passed)
            self._clients[int(number)] = BrokeredClient(self, int(number), stream, target)
            return
        client = self._clients.get(int(number))
        if client is not None and client.answer is not None and not client.answer.done():
            if word == "refuse":
                verdict, _, detail = rest.partition(" ")
                known = VERDICTS[[str(each) for each in VERDICTS].index(verdict)]
                client.answer.set_exception(RefusedError(known, detail))
                return
            if word == "tunnel" or passed is not None:
                client.answer.set_result(None if passed is None else ProxyStream(passed))
                return
        if passed is not None:  # the client has gone meanwhile
            passed.close()

    def send(self, kind: Kind, number: int, rest: bytes = b"") -> None:
        """Send a message."""
        try:
            self._control.send(b"%s %d %s" % (kind.encode(), number, rest))
        except OSError:
            return  # the supervisor is gone

    def count_bytes(self, sent: int, received: int) -> None:
        """Count bytes, and report them soon."""
        self._moved[0] += sent
        self._moved[1] += received
        if self._reporting is None:
            self._reporting = self._loop.call_later(COUNT_S, self.report_moved)

    def report_moved(self) -> None:
        """Report counts that were not reported yet."""
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
            self.send("moved", 0, b"%d %d" % tuple(self._moved))
            self._moved = [0, 0]

    def forget(self, number: int) -> None:
        """Forget a connection that is over, or was given away."""
        self._clients.pop(number, None)


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


class BrokeredClient:
    """One connection of a client: its requests, one after the other, and what is said about them to
    the supervisor. `answer` gets the supervisor's answer to what was asked last.
    """

    def __init__(
        self, broker: Broker, number: int, stream: ProxyStream, direct: DirectProxy | None
    ) -> None:
        self._broker = broker
        self._number = number
        self._client = stream
        self._proxy: SocksProxy | WebProxy | DirectProxy = direct or WebProxy()
        self._ended = False  # the client sends nothing more
        self._open: asyncio.Timeout | None = None
        self._idle_s = IDLE_S
        self._given: bytes | None = None
        self.answer: asyncio.Future[ProxyStream | None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._serve()
        except* OSError:  # one side is gone, or it was silent for too long
            pass
        finally:
            self._client.close()
            self._broker.forget(self._number)
            self._broker.report_moved()
            if self._given is None:
                self._broker.send("over", self._number)
            else:
                self._broker.send("given", self._number, self._given)

    async def _serve(self) -> None:
        """Serve it until it is over, or given away."""
        async with asyncio.timeout(REQUEST_TIMEOUT_S) as deadline:
            if isinstance(self._proxy, DirectProxy):
                await self._serve_request(b"", deadline)
                return
            first = await self._client.receive()
            if not first:
                return
            if first[0] == SOCKS_VERSION:
                self._proxy = SocksProxy()
            await self._serve_request(first, deadline)
            while self._proxy.begin_next():
                async with asyncio.timeout(KEEP_ALIVE_S) as next_deadline:
                    await self._serve_request(b"", next_deadline)

    async def _serve_request(self, first: bytes, deadline: asyncio.Timeout) -> None:
        asked = ProxyRequest("", 0, self._proxy.protocol)
        try:
            request = await self._request(first)
            if request is None:
                return
            asked = request
            deadline.reschedule(None)
            self._check_head(asked)
        except RefusedError as refused:
            await self._report_refused(asked, refused)
            await self._refuse(refused)
            return
        try:
            words = f"{asked.protocol} {show_host(asked.host, asked.port)}"
            server = await self._ask("ask", words)
        except RefusedError as refused:
            await self._refuse(refused)
            return
        if server is None:  # somebody else carries the connection
            answer, early = self._proxy.begin_tunnel()
            await self._client.send(answer)
            self._given = early
            return
        try:
            async with asyncio.timeout(self._idle_s) as self._open:
                if asked.protocol == "http" and isinstance(self._proxy, WebProxy):
                    await self._pass_on(self._proxy, server)
                else:
                    await self._tunnel(server)
        finally:
            server.close()
        self._broker.report_moved()
        self._broker.send("done", self._number)

    async def _report_refused(self, asked: ProxyRequest, refused: RefusedError) -> None:
        """Report a request that was refused here; returns once that is recorded."""
        shown = show_host(asked.host, asked.port) if asked.host else "-"
        detail = refused.detail.encode("ascii", "backslashreplace").decode()
        detail = "".join(each if each.isprintable() else "?" for each in detail)
        words = f"{asked.protocol} {shown} {refused.verdict} {detail:.{MAX_DETAIL}}"
        with suppress(RefusedError):
            await self._ask("refused", words)

    async def _ask(self, kind: Kind, words: str) -> ProxyStream | None:
        self.answer = asyncio.get_running_loop().create_future()
        self._broker.send(kind, self._number, words.encode())
        return await self.answer

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
        self._broker.count_bytes(size, 0)

    def _received(self, size: int) -> None:
        self._restart_idle_timeout()
        self._broker.count_bytes(0, size)

    async def _refuse(self, refused: RefusedError) -> None:
        if isinstance(self._proxy, DirectProxy):
            return  # the supervisor resets it
        await self._client.send(self._proxy.answers() + self._proxy.refusal(refused))
        await self._linger()

    async def _linger(self) -> None:
        async with asyncio.timeout(LINGER_S):
            self._client.end()
            while await self._client.receive():
                pass

    async def _read(self) -> None:
        data = await self._client.receive()
        self._ended = not data
        self._proxy.receive_data(data)

    async def _request(self, first: bytes) -> ProxyRequest | None:
        """Read the client's request; None if it ended before it was complete."""
        if first:
            self._proxy.receive_data(first)
        while True:
            request = self._proxy.next_request()
            if answers := self._proxy.answers():
                await self._client.send(answers)
            if request is not None or self._ended:
                return request
            await self._read()  # `next_request` reports its end

    def _check_head(self, asked: ProxyRequest) -> None:
        """Refuse the request for what is seen of it besides its host."""
        known = self._broker.stand_ins
        if asked.protocol != "http" or not known or not isinstance(self._proxy, WebProxy):
            return
        request = self._proxy.outgoing()
        name = find_in_head(request.target, request.headers, known)
        if name is not None:
            raise RefusedError(
                "secret",
                f"This request was not sent: it has the placeholder of secret {name}, and nsm puts "
                "the value in its place with https:// only. Send it with https:// to a host of "
                "the secret.",
            )

    async def _tunnel(self, server: ProxyStream) -> None:
        answer, early = self._proxy.begin_tunnel()
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
        self._broker.report_moved()  # before anybody sees the end
        target.end()

    async def _pass_on(self, proxy: WebProxy, server: ProxyStream) -> None:
        """Pass on a request for a URL, and its answer."""
        async with asyncio.TaskGroup() as both:
            sending = both.create_task(self._send_request(proxy, server))
            await self._return_answer(proxy, server)
            sending.cancel()
        if not proxy.done:
            await self._linger()

    async def _send_request(self, proxy: WebProxy, server: ProxyStream) -> None:
        try:
            await self._send(server, proxy.head())
            while not proxy.done:
                body = proxy.next_body()
                if body is None:
                    await self._read()
                else:
                    await self._send(server, body)
        except RefusedError:
            # The server has half a request, and must not take it for a whole one.
            server.end(socket.SHUT_RDWR)
            return
        except OSError:
            return  # it may still have answered
        for _ in range(MAX_WAITING):  # of its next requests, which wait for this answer
            await self._read()
            if self._ended:
                self._client_ended()
                return

    async def _send(self, server: ProxyStream, data: bytes) -> None:
        if data:
            await server.send(data)
            self._sent(len(data))

    async def _return_answer(self, proxy: WebProxy, server: ProxyStream) -> None:
        """Return the answer up to its end."""
        while not proxy.answered:
            try:
                data = await server.receive()
            except OSError:
                return
            self._received(len(data))
            await self._client.send(proxy.receive_answer(data))


async def _run() -> None:
    control = socket.socket(fileno=os.dup(0))
    broker = Broker(control)
    give_up_rights()
    await broker.run()


def main() -> None:
    """Run as a program."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard < 0 else min(MAX_DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    asyncio.run(_run())
