"""How fast connections of anybody are taken."""

from __future__ import annotations

import trio
import trio.testing

from nsmd.http.listener import CONNECTIONS_BURST, CONNECTIONS_PER_S
from nsmd.model.limits import ReadRate


async def test_after_a_burst_there_are_so_many_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rate = ReadRate(CONNECTIONS_PER_S, CONNECTIONS_BURST)
    for _ in range(CONNECTIONS_BURST + round(10 * CONNECTIONS_PER_S)):
        await rate.taken(1)
    assert 9.9 < trio.current_time() <= 10
