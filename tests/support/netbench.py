"""Sessions in real jails with a proxy, names that mean what the test says, and a small world."""

from __future__ import annotations

import dataclasses
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import h11
import trio

from nsmd.environments.catalog import Catalog
from nsmd.host.child_processes import START
from nsmd.jail.templates import open_templates
from nsmd.model.host_rules import Address
from nsmd.model.settings import PoolSettings, Settings
from nsmd.model.values import ClientIdentity, Environment, NetworkRule, RunOutcome, RunRequest
from nsmd.network.gateway import Gateway
from nsmd.network.network import SessionNetwork
from realjail import environments, new_launcher
from run_service_bench import open_run_service

if TYPE_CHECKING:
    import pytest

    from nsmd.jail import Launcher
    from nsmd.manager.run_service import RunService

CLIENT = ClientIdentity(name="test", scope="test")


class Names:
    """A resolver: names and what they mean. It notes what it is asked for."""

    def __init__(self, known: dict[str, Sequence[str]] | None = None) -> None:
        self.known = known or {}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        return [ip_address(text) for text in self.known.get(name, ())]


@dataclasses.dataclass
class World:
    """A web server on the host's loopback that says what it was asked for.

    Attributes:
        requests: first lines and headers of what came.
    """

    port: int
    requests: list[str]


async def _answer(stream: trio.SocketStream, world: World) -> None:
    connection = h11.Connection(h11.SERVER)
    async with stream:
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive_some())
                except trio.BrokenResourceError:
                    return
            elif isinstance(event, h11.Request):
                headers = "".join(
                    f"{name.decode().lower()}: {value.decode()}\n" for name, value in event.headers
                )
                target = f"{event.method.decode()} {event.target.decode()}"
                world.requests.append(f"{target}\n{headers}")
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        if isinstance(event, h11.EndOfMessage):
            said = f"world: {world.requests[-1].splitlines()[0]} {body.decode()}".encode()
            length = [("Content-Length", str(len(said)))]
            head = connection.send(h11.Response(status_code=200, headers=length))
            await stream.send_all((head or b"") + said)


@asynccontextmanager
async def open_world() -> AsyncGenerator[World]:
    """The server, for as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        world = World(listeners[0].socket.getsockname()[1], [])

        async def answer(stream: trio.SocketStream) -> None:
            await _answer(stream, world)

        nursery.start_soon(trio.serve_listeners, answer, listeners)
        yield world
        nursery.cancel_scope.cancel()


def change_brokers(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Have brokers of proxies begin with a statement, such as ``broker.KEEP_ALIVE_S = 1``."""
    path = START.partition("; from")[0]
    changed = f"{path}; from nsmd.network import broker, proxy_requests; {statement}"
    monkeypatch.setattr(
        "nsmd.host.child_processes.START", changed + "; from {} import main; main()"
    )


class NetBench:
    """A registry over real jails.

    Attributes:
        gateway: of all its sessions.
        client: who runs code.
    """

    def __init__(self, run_service: RunService, names: Names) -> None:
        self.run_service = run_service
        self.gateway = run_service.session_manager.gateway
        self.client = CLIENT
        self.names = names

    async def run(self, code: str, *, env: str = "python", session: str = "a") -> RunOutcome:
        """Run code to its end."""
        request = RunRequest(client=self.client, env=env, code=code, session=session, timeout_s=30)
        with trio.fail_after(60):
            return await self.run_service.submit(request).wait()

    async def text(self, code: str, *, env: str = "python", session: str = "a") -> str:
        """Run code that must not fail, and return its output."""
        outcome = (await self.run(code, env=env, session=session)).outcome
        assert outcome.exit_code == 0, outcome
        return outcome.stdout

    def network(self, session: str = "a") -> SessionNetwork:
        """Network of a live session."""
        return self.run_service.find(session).network


@asynccontextmanager
async def open_netbench(
    rules: dict[str, NetworkRule],
    *,
    names: Names | None = None,
    forked: bool = True,
    launcher: Launcher | None = None,
) -> AsyncGenerator[NetBench]:
    """A registry whose environments have these networks.

    Args:
        rules: by the name of an environment, which is a preset's with ``-`` and more.
    """
    presets = environments()
    wanted: list[Environment] = [
        dataclasses.replace(presets[name.partition("-")[0]], name=name, network=rule)
        for name, rule in rules.items()
    ]
    names = names or Names()
    settings = Settings(pool=PoolSettings(min_spares=0, max_spares=0))
    async with (
        open_templates(new_launcher(), enabled=forked) as made,
        open_run_service(
            settings, Catalog(wanted), launcher or made, gateway=Gateway(names)
        ) as run_service,
    ):
        yield NetBench(run_service, names)


@dataclasses.dataclass
class UpstreamProxy:
    """A proxy of a company: whatever host it is asked for, it leads to `target`, a port of the
    loopback, or gives an `answer`.

    Attributes:
        asked: targets and logins.
    """

    port: int
    target: int
    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    login: str = ""
    asked: list[str] = dataclasses.field(default_factory=list[str])

    async def serve(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := await client.receive_some()):
                return
            head += piece
        words = head.decode().split()
        login = words[words.index("Basic") + 1] if "Basic" in words else ""
        self.asked.append(f"{words[0]} {words[1]} {b64decode(login).decode()}".strip())
        if self.login and b64decode(login).decode() != self.login:
            scheme = b"\r\nProxy-Authenticate: Basic realm=x\r\n\r\n"
            await client.send_all(b"HTTP/1.1 407 " + login.encode() + scheme)
            return
        await client.send_all(self.answer)
        if not self.answer.startswith(b"HTTP/1.1 200"):
            return
        async with await trio.open_tcp_stream("127.0.0.1", self.target) as server:

            async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for piece in source:
                        await target.send_all(piece)
                    await target.send_eof()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(copy, client, server)
                nursery.start_soon(copy, server, client)


@asynccontextmanager
async def open_upstream(target: int, **options: Any) -> AsyncGenerator[UpstreamProxy]:
    """The proxy, for as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = UpstreamProxy(listeners[0].socket.getsockname()[1], target, **options)
        nursery.start_soon(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
