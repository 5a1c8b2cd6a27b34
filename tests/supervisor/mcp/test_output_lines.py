"""Lines of a program on their way to a client, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nsmd.mcp.clients import BURST, MAX_SILENCE_S, MAX_WAITING, MIN_INTERVAL_S, LineFeed

Told = list[tuple[float, str]]


@asynccontextmanager
async def running(feed: LineFeed) -> AsyncGenerator[Told, None]:
    """Collect what a feed tells; at the end of the block, all of it."""
    told: Told = []

    async def tell(seconds: float, text: str) -> None:
        told.append((seconds, text))
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, tell)
        await wait_all_tasks_blocked()
        yield told
        feed.end()


def texts(told: Told) -> list[str]:
    return [text for _, text in told]


async def test_each_line_is_one_and_streams_are_told_apart(autojump_clock: MockClock) -> None:
    feed = LineFeed()
    async with running(feed) as told:
        feed.add("stdout", "one")
        feed.add("stderr", "two")
        await wait_all_tasks_blocked()
        assert texts(told) == ["one", "[stderr] two"]
        feed.add("stdout", "\x1b[1m\x1b[0m")
    assert texts(told) == ["one", "[stderr] two", ""]


async def test_what_is_told_grows(autojump_clock: MockClock) -> None:
    feed = LineFeed(2.5)
    async with running(feed) as told:
        for number in range(5):
            feed.add("stdout", str(number))
        await trio.sleep(1)
        feed.add("stdout", "late")
    times = [seconds for seconds, _ in told]
    assert times == sorted(set(times))
    assert times[0] == 2.5
    assert times[-1] == 3.5


async def test_a_burst_is_told_at_a_bearable_speed(autojump_clock: MockClock) -> None:
    feed = LineFeed()
    async with running(feed) as told:
        for number in range(3 * BURST):
            feed.add("stdout", str(number))
        await wait_all_tasks_blocked()
        assert len(told) == BURST
        await trio.sleep(MIN_INTERVAL_S * 1.5)
        assert len(told) == 2 * BURST
        await trio.sleep(MIN_INTERVAL_S)
    assert texts(told) == [str(number) for number in range(3 * BURST)]


async def test_at_the_end_what_waits_is_told_without_a_wait(autojump_clock: MockClock) -> None:
    feed = LineFeed()
    began = trio.current_time()
    async with running(feed) as told:
        for number in range(MAX_WAITING):
            feed.add("stdout", str(number))
    assert texts(told) == [str(number) for number in range(MAX_WAITING)]
    assert trio.current_time() == began


async def test_of_a_flood_the_newest_lines_are_told_and_how_many_are_not(
    autojump_clock: MockClock,
) -> None:
    feed = LineFeed()
    async with running(feed) as told:
        for number in range(100_000):
            feed.add("stdout", str(number))
    said = texts(told)
    assert said[0] == f"[... {100_000 - MAX_WAITING:,} lines left out ...]"
    assert said[1:] == [str(number) for number in range(100_000 - MAX_WAITING, 100_000)]


async def test_a_client_that_does_not_read_holds_up_nobody(autojump_clock: MockClock) -> None:
    feed, read, told = LineFeed(), trio.Event(), list[str]()

    async def tell(seconds: float, text: str) -> None:
        del seconds
        await read.wait()
        told.append(text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, tell)
        for number in range(1000):
            feed.add("stdout", str(number))
            await wait_all_tasks_blocked()
        read.set()
        feed.end()
    assert told[0] == "0"
    assert told[1] == f"[... {999 - MAX_WAITING:,} lines left out ...]"
    assert told[-1] == "999"
    assert len(told) == MAX_WAITING + 2


async def test_silence_is_told_of(autojump_clock: MockClock) -> None:
    feed = LineFeed()
    async with running(feed) as told:
        await trio.sleep(2.5 * MAX_SILENCE_S)
        assert texts(told) == ["running for 15 s", "running for 30 s"]
        feed.add("stdout", "up")
        await wait_all_tasks_blocked()
        assert texts(told)[2:] == ["up"]


async def test_half_a_surrogate_is_no_text(autojump_clock: MockClock) -> None:
    feed = LineFeed()
    async with running(feed) as told:
        feed.add("stdout", "a\ud800b")
    assert texts(told) == ["a\ufffdb"]
