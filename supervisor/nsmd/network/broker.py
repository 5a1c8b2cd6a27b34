"""A program that reads what code sends to the proxy of one session or box, and passes it on.

There is one for each session or box whose code has used its proxy, so that none is in the way of
another. It decides nothing: for each request it asks the supervisor, which connects to the server,
or refuses. It ends with the supervisor, and its connections end with it.

Descriptor 0 is connected to the supervisor. Messages are packets (unix(7), SOCK_SEQPACKET) of
words, some with a descriptor:

``stand-ins JSON``        stand-ins of secrets, by name
``serve NUMBER``          a connection of a client
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
from contextlib import suppress

from nsmd.fdstore.holder import receive_one
from nsmd.host.rights import give_up_rights
from nsmd.model.host_rules import Host, show_host
from nsmd.network.broker_messages import MAX_BYTES, MAX_DETAIL, Kind
from nsmd.network.decisions import VERDICTS, Protocol
from nsmd.network.proxy_client import ProxyStream, serve_client
from nsmd.network.refusal import RefusedError

COUNT_S = 1.0
"""Time after which moved bytes are reported at the latest."""

MAX_DESCRIPTORS = 256
"""Each connection has two, and the supervisor lets a session have 64."""


class Broker:
    """All connections of one session or box.

    Args:
        control: connection to the supervisor. Messages wait while nobody reads them.
    """

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
        if word == "serve" and passed is not None:
            self._clients[int(number)] = BrokeredClient(self, int(number), ProxyStream(passed))
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


class BrokeredClient:
    """One connection of a client, and what is said about it to the supervisor.

    Attributes:
        answer: gets the answer of the supervisor.
        count_bytes, report_moved: the broker's.
    """

    def __init__(self, broker: Broker, number: int, stream: ProxyStream) -> None:
        self.count_bytes = broker.count_bytes
        self.report_moved = broker.report_moved
        self._broker = broker
        self._number = number
        self._stream = stream
        self._given: bytes | None = None
        self.answer: asyncio.Future[ProxyStream | None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            await serve_client(self._stream, self)
        finally:
            self._stream.close()
            self._broker.forget(self._number)
            self.report_moved()
            if self._given is None:
                self._broker.send("over", self._number)
            else:
                self._broker.send("given", self._number, self._given)

    @property
    def stand_ins(self) -> dict[str, str]:
        return self._broker.stand_ins

    async def ask(self, protocol: Protocol, host: Host, port: int) -> ProxyStream | None:
        """Ask for a connection to a server; None if somebody else carries that.

        Raises:
            RefusedError: the request is refused.
        """
        return await self._ask("ask", f"{protocol} {show_host(host, port)}")

    async def report_refused(
        self, protocol: Protocol, host: Host, port: int, refused: RefusedError
    ) -> None:
        """Report a request that was refused here; returns once that is recorded."""
        shown = show_host(host, port) if host else "-"
        detail = refused.detail.encode("ascii", "backslashreplace").decode()
        detail = "".join(each if each.isprintable() else "?" for each in detail)
        words = f"{protocol} {shown} {refused.verdict} {detail:.{MAX_DETAIL}}"
        with suppress(RefusedError):
            await self._ask("refused", words)

    async def _ask(self, kind: Kind, words: str) -> ProxyStream | None:
        self.answer = asyncio.get_running_loop().create_future()
        self._broker.send(kind, self._number, words.encode())
        return await self.answer

    def done(self) -> None:
        """Report that nothing more moves between the client and the server."""
        self.report_moved()
        self._broker.send("done", self._number)

    def give_away(self, early: bytes) -> None:
        """Give the connection away, with the bytes that the client has sent after its request."""
        self._given = early


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
