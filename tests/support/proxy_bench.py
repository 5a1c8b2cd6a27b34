"""A session's network whose agent is the test, and clients of its proxy."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from netbench import Names
from nsmd.agent_link.frames import AgentProtocolError, ListeningFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.agent_link.requests import Requests
from nsmd.model.values import NetworkRule
from nsmd.network.gateway import Gateway
from nsmd.network.network import SessionNetwork
from realjail import environments
from sandbox.framing import MessageReader, encode_frame
from sandbox.linux import listen_on_loopback


class Bench:
    """A network whose agent is the test: its end of the channel, and no jail.

    Attributes:
        agent: the agent's end.
        failure: error that ended the exchange of frames.
    """

    def __init__(self, network: SessionNetwork, link: AgentLink, agent: socket.socket) -> None:
        self.network = network
        self.link = link
        self.agent = agent
        self.failure: Exception | None = None
        self._reader = MessageReader()

    async def asked(self) -> dict[str, Any]:
        """The next frame for the agent."""
        while (frame := self._reader.next_message()) is None:
            await trio.lowlevel.wait_readable(self.agent)
            self._reader.receive_data(self.agent.recv(65536))
        return dict(frame)

    def answer(self, frame: dict[str, Any], *descriptors: int) -> None:
        """Send a frame, with descriptors."""
        socket.send_fds(self.agent, [encode_frame(frame)], list(descriptors))

    async def listen(self) -> int:
        """Answer a `listen` as our agents do; returns the port."""
        request = await self.asked()
        assert request["type"] == "listen"
        made = listen_on_loopback(0)
        port = int(made.getsockname()[1])
        self.answer({"type": "listening", "id": request["id"], "port": port}, made.fileno())
        made.close()
        return port


@asynccontextmanager
async def open_bench(rule: NetworkRule, gateway: Gateway | None = None) -> AsyncGenerator[Bench]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            link = AgentLink(ours, nursery)
            requests = Requests(link.post)
            network = SessionNetwork(
                "s",
                rule,
                environments()["python"],
                gateway=gateway or Gateway(Names()),
                requests=requests,
                nursery=nursery,
            )
            bench = Bench(network, link, theirs)

            async def converse() -> None:
                try:
                    while True:
                        frame = await link.receive()
                        if isinstance(frame, ListeningFrame):
                            requests.receive_answer(frame)
                except (AgentProtocolError, AgentLinkError) as error:
                    bench.failure = error
                    network.closed()

            requests.open(frozenset({"listen"}))
            network.opened(link)
            nursery.start_soon(converse)
            yield bench
            network.closed()
            nursery.cancel_scope.cancel()
        link.close()


async def say(port: int, data: bytes) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(data)
    return stream


async def read_all(stream: trio.SocketStream) -> bytes:
    data = b""
    with suppress(trio.BrokenResourceError):
        while piece := await stream.receive_some(65536):
            data += piece
    await stream.aclose()
    return data


ALLOWED = NetworkRule(mode="allow", allow=("host.nsm.internal:*",))


def tunnel_to(server: socket.socket) -> bytes:
    port = server.getsockname()[1]
    return f"CONNECT host.nsm.internal:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
