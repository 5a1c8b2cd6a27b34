"""An idle supervisor with a thousand sessions sleeps, and so do they."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import supervisor
from soak.household import Household

if TYPE_CHECKING:
    from collections.abc import Iterable

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow, pytest.mark.alone]

SESSIONS = 1000
IDLE_S = 45.0
"""Longer than the timeout of the executions before it, whose timers were set then."""

SETTLE_S = 5.0
"""Time for spares, threads, and whatever is looked at after an execution."""


def wakeups(pids: Iterable[int]) -> dict[str, int]:
    """How often each thread of these processes has stopped waiting, proc(5)."""
    counts: dict[str, int] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    status = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
                    after = status.partition("\nvoluntary_ctxt_switches:")[2]
                    counts[thread] = int(after.split()[0])
    return counts


def more(before: dict[str, int], after: dict[str, int]) -> int:
    """Wake-ups in between; a thread that has ended meanwhile had at least one."""
    ended = len(before.keys() - after.keys())
    return ended + sum(count - before.get(thread, 0) for thread, count in after.items())


async def open_all(it: Supervisor) -> None:
    async def open_one(number: int) -> None:
        await client.run(f"mine = {number}", env="python", session=f"s{number}")

    async with (
        nsm.AsyncClient(socket_path=it.socket, scope="test", autostart=False) as client,
        trio.open_nursery() as nursery,
    ):
        for number in range(SESSIONS):
            nursery.start_soon(open_one, number)


async def test_an_idle_supervisor_wakes_less_than_once_a_second() -> None:
    config = f"[session]\nmax_sessions = {SESSIONS}\n"
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        Household() as household,
        supervisor(Path(path), config=config) as it,
    ):
        await open_all(it)
        await trio.sleep(SETTLE_S)
        below = it.descendants()
        assert len(below) > SESSIONS
        (holder,) = household.members().holders
        ours = {it.pid, holder}
        before, before_below, began_s = wakeups(ours), wakeups(below), time.monotonic()
        await trio.sleep(IDLE_S)  # it is idleness that is measured
        lasted_s = time.monotonic() - began_s
        rate = more(before, wakeups(ours)) / lasted_s
        rate_below = more(before_below, wakeups(below)) / lasted_s
        print(f"wake-ups a second: {rate:.2f} of the supervisor, {rate_below:.2f} of all sessions")
        assert rate < 1
        assert rate_below < 1
        with it.client() as client:
            assert client.run("print(mine)", env="python", session="s7").stdout == "7\n"
