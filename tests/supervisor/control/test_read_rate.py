"""Floods: of one client, beside another that wants to be served."""

from __future__ import annotations

import pytest
import trio

from control_bench import bench
from nsm.wire.messages import Request, Result
from nsmd.model.limits import BURST, MESSAGES_PER_S, TURN, ReadRate
from virtual_time import virtual_time

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


async def test_who_pauses_gains_two_bursts_at_most() -> None:
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
