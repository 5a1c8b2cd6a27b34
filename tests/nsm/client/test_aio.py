"""The async client: on trio against a scripted supervisor, and on asyncio."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor, answer
from nsm.client.retry import LostError
from nsm.wire.errors import DisconnectedError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import Cancel, Event, Hello, Request, Result, ServerConnection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from nsm.wire.messages import ServerMessage


LARGE = 4_000_000
"""Characters of code that no socket takes at once."""


class Server:
    """The supervisor's end of a connection, scripted message by message."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.protocol = ServerConnection()

    async def take(self) -> object:
        """The client's next message."""
        while (message := self.protocol.next_message()) is None:
            data = await self.stream.receive_some()
            assert data, "the client has closed"
            self.protocol.receive_data(bytes(data))
        return message

    async def give(self, *messages: ServerMessage) -> None:
        for message in messages:
            await self.stream.send_all(self.protocol.send(message))

    async def introduce(self) -> None:
        assert isinstance(await self.take(), Hello)
        await self.give(Hello("nsm-supervisor", "0.1.0", pid=7, rights=("read",)))


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[nsm.AsyncClient, Server, trio.Nursery]]:
    ours, theirs = socket.socketpair()
    server = Server(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
    async with server.stream, trio.open_nursery() as nursery:
        nursery.start_soon(server.introduce)
        async with nsm.AsyncClient(connection=ours) as client:
            yield client, server, nursery


async def test_when_the_reading_call_is_answered_another_reads_on() -> None:
    async with connected() as (client, server, nursery):
        done: list[str] = []

        async def ping(name: str) -> None:
            await client.ping()
            done.append(name)

        nursery.start_soon(ping, "first")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ping, "second")
        nursery.start_soon(ping, "third")
        for _ in range(3):
            await server.take()
        await server.give(Result(1, {}))
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["first"]
        await server.give(Result(2, {}), Result(3, {}))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(done[1:]) == ["second", "third"]


async def test_when_the_reading_call_is_cancelled_another_reads_on() -> None:
    async with connected() as (client, server, nursery):
        scope = trio.CancelScope()
        finished = trio.Event()

        async def cancelled() -> None:
            with scope:
                await client.run("x", env="python")

        async def ping() -> None:
            await client.ping()
            finished.set()

        nursery.start_soon(cancelled)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ping)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        assert [type(await server.take()) for _ in range(3)] == [Request, Request, Cancel]
        await server.give(Result(1, samples.run_result()))  # the cancelled call's: dropped
        await server.give(Result(2, {}))
        await finished.wait()


async def test_a_call_cancelled_while_it_writes_closes_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (client, server, nursery):
        with trio.CancelScope() as scope:

            async def read_a_little_then_cancel() -> None:
                await server.stream.receive_some(3)
                scope.cancel()

            nursery.start_soon(read_a_little_then_cancel)
            await client.run("x" * LARGE, env="python")
        assert scope.cancelled_caught
        with pytest.raises(LostError):
            await client.ping()


async def test_an_error_in_a_callback_cancels_the_run() -> None:
    async with connected() as (client, server, nursery):
        messages: list[object] = []

        async def serve() -> None:
            messages.append(await server.take())
            await server.give(Event(1, "output", {"stream": "stdout", "text": "x"}))
            messages.append(await server.take())

        async def answer() -> None:
            await server.give(Event(1, "output", {"stream": "stdout", "text": "y"}))
            await server.give(Result(1, samples.run_result()))
            ping = await server.take()
            assert isinstance(ping, Request)
            await server.give(Result(ping.id, {}))

        def on_output(_stream: str, _text: str) -> None:
            raise ZeroDivisionError

        nursery.start_soon(serve)
        with pytest.raises(ZeroDivisionError):
            await client.run("x", env="python", on_output=on_output)
        await trio.testing.wait_all_tasks_blocked()
        assert messages[1] == Cancel(1)
        nursery.start_soon(answer)
        await client.ping()  # the client is as before, whatever is still told of that run


@pytest.mark.parametrize("words", [b"", b"\xff" * 8])
async def test_every_call_hears_of_the_connection_s_end(words: bytes) -> None:
    kinds: list[type[BaseException]] = []
    async with connected() as (client, server, _):

        async def ping() -> None:
            try:
                await client.ping()
            except (DisconnectedError, RemoteProtocolError) as error:
                kinds.append(type(error))

        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(ping)
            for _ in range(5):
                await server.take()
            if words:
                await server.stream.send_all(words)
            else:
                await server.stream.aclose()
        await ping()
    assert kinds == [RemoteProtocolError if words else LostError] * 6
    assert issubclass(LostError, DisconnectedError)


async def test_shutdown_of_one_that_stays(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as (client, server, nursery):

        async def serve() -> None:
            await server.take()
            await server.give(Result(1, {}))

        nursery.start_soon(serve)
        with pytest.raises(DisconnectedError, match="not ended within 30 s"):
            await client.shutdown()


# A supervisor that goes away.


async def test_calls_under_way_are_asked_of_the_next_supervisor(tmp_path: Path) -> None:
    """All of them over one connection, and code under its id."""
    first = FakeSupervisor(str(tmp_path / "s"))
    second = FakeSupervisor(first.path, run=echo, ping=answer())
    asked = 0

    def wait(exchange: Exchange) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 5:
            first.stop_listening()
            stack.enter_context(second)
            first.close()
        exchange.cancelled.wait(20)
        return {}

    first.handlers.update(run=wait, ping=wait)
    told: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(first)
        async with (
            nsm.AsyncClient(socket_path=first.path, autostart=False) as client,
            trio.open_nursery() as nursery,
        ):

            async def run(code: str) -> None:
                told.append((await client.run(code, env="python")).stdout)

            for number in range(4):
                nursery.start_soon(run, str(number))
            nursery.start_soon(client.ping)
    assert sorted(told) == ["0", "1", "2", "3"]
    assert len(second.hellos) == 1
    ids = [
        {r.args["execution_id"] for r in each.requests if r.op == "run"} for each in (first, second)
    ]
    assert ids[0] == ids[1]
    assert all(r.args["again"] for r in second.requests if r.op == "run")


def echo(exchange: Exchange) -> dict[str, Any]:
    return samples.run_result(stdout=exchange.args["code"])


# On asyncio.


def test_many_calls_at_once_on_asyncio(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def run(exchange: Exchange) -> dict[str, Any]:
        together.wait(20)
        exchange.output("stdout", exchange.args["code"])
        return samples.run_result(stdout=exchange.args["code"])

    async def main() -> None:
        outputs: list[str] = []
        async with nsm.AsyncClient(socket_path=path) as client:
            results = await asyncio.gather(
                *(
                    client.run(
                        str(number),
                        env="python",
                        on_output=lambda _stream, text: outputs.append(text),
                    )
                    for number in range(3)
                )
            )
        assert [result.stdout for result in results] == ["0", "1", "2"]
        assert sorted(outputs) == ["0", "1", "2"]

    path = str(tmp_path / "control.sock")
    with FakeSupervisor(path, run=run):
        asyncio.run(main())


def test_cancelling_a_task_of_asyncio_cancels_its_call(tmp_path: Path) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        begun.set()
        assert exchange.cancelled.wait(20)
        cancelled.set()
        return samples.run_result()

    async def main() -> None:
        async with nsm.AsyncClient(socket_path=path) as client:
            task = asyncio.create_task(client.run("x", env="python"))
            await asyncio.to_thread(begun.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(cancelled.wait)
            await client.ping()

    path = str(tmp_path / "control.sock")
    with FakeSupervisor(path, run=run, ping=answer()) as supervisor:
        asyncio.run(main())
    assert len(supervisor.hellos) == 1


def test_a_write_that_asyncio_cuts_short_costs_no_other_call(tmp_path: Path) -> None:
    begun = threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            exchange.cancelled.wait(20)
        return samples.run_result(stdout=exchange.args["code"])

    async def main() -> None:
        async with nsm.AsyncClient(socket_path=path) as client:
            other = asyncio.create_task(client.run("x", env="python"))
            await asyncio.to_thread(begun.wait)
            supervisor.may_read.clear()
            cut = asyncio.create_task(client.run("x" * LARGE, env="python"))
            await asyncio.to_thread(supervisor.stalled.wait)
            cut.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cut
            supervisor.may_read.set()
            assert (await other).stdout == "x"

    path = str(tmp_path / "control.sock")
    with FakeSupervisor(path, run=run) as supervisor:
        asyncio.run(main())
    assert len(supervisor.hellos) == 2
