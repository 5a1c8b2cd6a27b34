"""The client on trio whose supervisor goes away: each of its calls is answered once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trio

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.wire.errors import DisconnectedError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "s")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def echo(exchange: Exchange) -> dict[str, Any]:
    return samples.run_result(stdout=exchange.args["code"])


def client(path: str, **options: Any) -> nsm.AsyncClient:
    return nsm.AsyncClient(socket_path=path, autostart=False, **options)


async def test_all_calls_under_way_are_asked_for_again(path: str, stack: ExitStack) -> None:
    first = stack.enter_context(FakeSupervisor(path))
    second = FakeSupervisor(path, run=echo, ping=lambda _exchange: {})
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
    async with client(path) as it, trio.open_nursery() as nursery:

        async def run(code: str) -> None:
            told.append((await it.run(code, env="python")).stdout)

        for number in range(4):
            nursery.start_soon(run, str(number))
        nursery.start_soon(it.ping)
    assert sorted(told) == ["0", "1", "2", "3"]
    assert len(second.hellos) == 1  # one connection for all of them
    ids = [
        {r.args["execution_id"] for r in each.requests if r.op == "run"} for each in (first, second)
    ]
    assert ids[0] == ids[1]
    assert all(r.args["again"] for r in second.requests if r.op == "run")


async def test_a_request_that_changes_something_is_not_sent_twice(
    path: str, stack: ExitStack
) -> None:
    first = stack.enter_context(FakeSupervisor(path))

    def lose(exchange: Exchange) -> dict[str, Any]:
        first.stop_listening()
        stack.enter_context(FakeSupervisor(path, ping=lambda _exchange: {}))
        exchange.hang_up()
        return {}

    first.handlers["kill"] = lose
    async with client(path) as it:
        with pytest.raises(DisconnectedError, match="'kill' was carried out is unknown"):
            await it.kill("a")
        await it.ping()


async def test_a_supervisor_that_was_shut_down_is_not_replaced(path: str, stack: ExitStack) -> None:
    def farewell(exchange: Exchange) -> dict[str, Any]:
        exchange.say_goodbye(ShuttingDownError("it was shut down"))
        exchange.cancelled.wait(20)
        return {}

    first = stack.enter_context(FakeSupervisor(path, run=farewell, ping=lambda _exchange: {}))
    async with client(path) as it:
        with pytest.raises(ShuttingDownError, match="it was shut down"):
            await it.run("x", env="python")
        await it.ping()
    assert len(first.hellos) == 2
