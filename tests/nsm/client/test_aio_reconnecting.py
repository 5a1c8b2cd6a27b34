"""The client on trio whose supervisor goes away: each of its calls is answered once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trio

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.client.retry import RECONNECTED
from nsm.startup import start
from nsm.wire.errors import DisconnectedError, NotRunningError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nsm.wire.messages import Event


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


async def test_events_say_that_output_may_be_missing(path: str, stack: ExitStack) -> None:
    first = stack.enter_context(FakeSupervisor(path))

    def lose(exchange: Exchange) -> dict[str, Any]:
        first.stop_listening()
        stack.enter_context(FakeSupervisor(path, run=echo))
        exchange.hang_up()
        return {}

    first.handlers["run"] = lose
    events: list[str] = []

    def note(event: Event) -> None:
        events.append(event.event)

    async with client(path) as it:
        await it.call("run", {"env": "python", "code": "x"}, on_event=note)
    assert events == [RECONNECTED]


async def test_one_that_ends_as_it_takes_the_connection_is_passed_over(
    path: str, stack: ExitStack
) -> None:
    first = stack.enter_context(FakeSupervisor(path))
    second = FakeSupervisor(path, run=echo)
    second.going = 2

    def lose(exchange: Exchange) -> dict[str, Any]:
        first.stop_listening()
        stack.enter_context(second)
        exchange.hang_up()
        return {}

    first.handlers["run"] = lose
    async with client(path) as it:
        assert (await it.run("x", env="python")).stdout == "x"
    assert second.going == 0


async def test_between_calls_nobody_notices(path: str, stack: ExitStack) -> None:
    first = stack.enter_context(FakeSupervisor(path, run=echo))
    async with client(path) as it:
        await it.run("x", env="python")
        first.close()
        await it.wait_lost()
        nothing: dict[str, Any] = {"killed": [], "errors": []}
        second = stack.enter_context(FakeSupervisor(path, kill=lambda _exchange: nothing))
        await it.kill("a")
    assert [request.op for request in second.requests] == ["kill"]


async def test_what_changes_something_is_not_sent_twice(path: str, stack: ExitStack) -> None:
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


async def test_without_another_supervisor_the_client_says_so(
    path: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "RECONNECT_S", 0.0)
    first = stack.enter_context(FakeSupervisor(path, ping=lambda _exchange: {}))
    async with client(path) as it:
        await it.ping()
        first.close()
        with pytest.raises(NotRunningError):
            await it.ping()
        stack.enter_context(FakeSupervisor(path, ping=lambda _exchange: {}))
        await it.ping()


async def test_a_closed_client_starts_nothing(path: str, stack: ExitStack) -> None:
    first = stack.enter_context(FakeSupervisor(path, ping=lambda _exchange: {}))
    async with client(path) as it:
        await it.ping()
        first.close()
        await it.aclose()
        second = stack.enter_context(FakeSupervisor(path, ping=lambda _exchange: {}))
        with pytest.raises(DisconnectedError, match="closed"):
            await it.ping()
    assert second.hellos == []


async def test_who_does_not_want_it_is_told_at_once(path: str, stack: ExitStack) -> None:
    def lose(exchange: Exchange) -> dict[str, Any]:
        exchange.hang_up()
        return {}

    first = stack.enter_context(FakeSupervisor(path, run=lose))
    async with client(path, reconnect=False) as it:
        with pytest.raises(DisconnectedError, match="before it answered"):
            await it.run("x", env="python")
    assert len(first.hellos) == 1
