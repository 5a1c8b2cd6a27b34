"""Clients that wait: for their turn in a flood, and for an environment that is being made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from control_bench import bench
from nsm.wire.errors import NsmError
from nsm.wire.messages import Cancel, Request, Result
from nsmd.environments.on_demand import PATIENCE_S, EnvironmentPendingError
from nsmd.model.limits import BURST, MESSAGES_PER_S, TURN, ReadRate
from virtual_time import virtual_time

if TYPE_CHECKING:
    from nsmd.manager.run_service import RunService
    from nsmd.sessions.execution import Execution


pytestmark = virtual_time


async def test_a_burst_is_free_and_then_the_rate_holds() -> None:
    rate = ReadRate()
    began = trio.current_time()
    await rate.taken(BURST - 1)
    assert trio.current_time() == began
    await rate.taken(1 + 500)
    assert trio.current_time() - began == pytest.approx(500 / MESSAGES_PER_S)
    for _ in range(100):
        await rate.taken(TURN)
    assert trio.current_time() - began == pytest.approx((500 + 100 * TURN) / MESSAGES_PER_S)


async def test_a_client_that_pauses_gains_two_bursts_at_most() -> None:
    rate = ReadRate()
    await rate.taken(BURST)
    await trio.sleep(3600)
    began = trio.current_time()
    await rate.taken(BURST)
    await rate.taken(BURST)
    assert trio.current_time() == began
    await rate.taken(1000)
    assert trio.current_time() - began == pytest.approx(1000 / MESSAGES_PER_S, rel=0.01)


async def test_a_flood_is_slowed_and_loses_nothing() -> None:
    async with bench() as it:
        flood, other = await it.connect(), await it.connect()
        began = trio.current_time()
        count = BURST * 2
        requests = b"".join(
            flood.connection.send(Request(flood.connection.new_id(), "ping", {}))
            for _ in range(count)
        )
        answered = 0

        async def send() -> None:
            await flood.stream.send_all(requests)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await other.call("ping") == {}
            while answered < count:
                assert isinstance(await flood.next(), Result)
                answered += 1
            assert await flood.call("ping") == {}
        assert trio.current_time() - began >= (count - BURST - 1) / MESSAGES_PER_S


# Code for an environment that is being made, over the control socket.


class Making:
    """Steps until an environment exists."""

    def __init__(self, run_service: RunService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settled = trio.Event()
        self.asked = trio.Event()
        self._submit = run_service.submit
        monkeypatch.setattr(run_service, "submit", self._try)

    def _try(self, *arguments: Any) -> Execution:
        self.asked.set()
        if not self.settled.is_set():
            raise EnvironmentPendingError("python", "it is being built", self.settled)
        return self._submit(*arguments)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_environment_that_is_being_made_is_waited_for(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        making = Making(it.run_service, monkeypatch)
        peer = await it.connect()
        call = await peer.start("run", env="python", code="x", stream=stream)
        await making.asked.wait()
        assert await peer.call("ping") == {}
        making.settled.set()
        assert (await peer.answer(call))["stdout"] == "x"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_environment_is_not_waited_for_for_ever(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        Making(it.run_service, monkeypatch)
        peer = await it.connect()
        began = trio.current_time()
        with pytest.raises(NsmError, match=r"it is being built\. The code was not run") as error:
            await peer.call("run", env="python", code="x", stream=stream)
        assert error.value.code == "environment-unavailable"
        assert trio.current_time() - began == pytest.approx(PATIENCE_S)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_cancels_waits_no_more_for_an_environment(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        making = Making(it.run_service, monkeypatch)
        peer = await it.connect()
        began = trio.current_time()
        call = await peer.start("run", env="python", code="x", stream=stream)
        await making.asked.wait()
        await peer.send(Cancel(call))
        with pytest.raises(NsmError, match="it is being built"):
            await peer.answer(call)
        assert trio.current_time() - began < PATIENCE_S
