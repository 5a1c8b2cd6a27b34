"""Output as progress, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nsmd.mcp.clients import (
    BURST,
    MAX_MESSAGE_CHARS,
    MAX_SILENCE_S,
    MAX_WAITING,
    MIN_INTERVAL_S,
    LineFeed,
    ProgressFeed,
)
from nsmd.model.values import Output
from virtual_time import virtual_time

pytestmark = virtual_time

Report = tuple[float, str]


def printed(text: str) -> Output:
    return Output(stream="stdout", text=text)


@asynccontextmanager
async def feeding(
    before_s: float = 0.0,
) -> AsyncGenerator[tuple[Callable[[str], None], list[Report]], None]:
    """A running feed: a function that prints, and what was reported."""
    feed, reports = ProgressFeed(before_s), list[Report]()

    async def report(seconds: float, text: str) -> None:
        await trio.lowlevel.checkpoint()
        reports.append((seconds, text))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, report)
        await wait_all_tasks_blocked()
        yield lambda text: feed.add(printed(text)), reports
        nursery.cancel_scope.cancel()


async def test_output_is_reported_at_once_and_then_ten_times_a_second() -> None:
    async with feeding() as (say, reports):
        for number in range(100):  # one each 10 ms, from 0 to 990 ms
            say(f"{number} ")
            await trio.sleep(0.01)
        await trio.sleep(0.05)
    # At 0, 100, ..., 900 ms, then what came since at 1000 ms.
    assert [round(seconds, 2) for seconds, _ in reports] == [n / 10 for n in range(11)]
    assert "".join(text for _, text in reports) == "".join(f"{n} " for n in range(100))


async def test_progress_goes_on_where_an_earlier_supervisor_left_it() -> None:
    async with feeding(before_s=40.0) as (say, reports):
        say("on")
        await trio.sleep(16)
    assert reports == [(40.0, "on"), (55.0, "running for 55 s")]


async def test_silence_is_broken_every_fifteen_seconds() -> None:
    async with feeding() as (say, reports):
        await trio.sleep(20)
        say("at 20 s")
        await trio.sleep(31)
    assert reports == [
        (15.0, "running for 15 s"),
        (20.0, "at 20 s"),
        (35.0, "running for 35 s"),
        (50.0, "running for 50 s"),
    ]


async def test_a_flood_is_skipped_not_kept() -> None:
    async with feeding() as (say, reports):
        say("first")
        await wait_all_tasks_blocked()
        for _ in range(1000):
            say("y" * 1000)
        say("the end")
        await trio.sleep(0.15)
    assert reports[0] == (0.0, "first")
    skipped = 1_000_007 - MAX_MESSAGE_CHARS
    (seconds, text) = reports[1]
    assert seconds == pytest.approx(0.1)
    assert text.startswith(f"[... {skipped:,} characters skipped ...]\nyyy")
    assert text.endswith("the end")
    assert len(text) < MAX_MESSAGE_CHARS + 60


async def test_a_client_that_does_not_read_gets_less_often_what_is_newest() -> None:
    feed, reports = ProgressFeed(), list[Report]()

    async def slow_report(seconds: float, text: str) -> None:
        reports.append((seconds, text))
        await trio.sleep(10)

    with trio.move_on_after(25):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.run, slow_report)
            for second in range(25):
                feed.add(printed(f"{second},"))
                await trio.sleep(1)
    assert [seconds for seconds, _ in reports] == pytest.approx([0, 10.1 - 0.1, 20], abs=0.2)
    assert reports[1][1].startswith("1,2,")


async def test_split_surrogates_and_empty_pieces() -> None:
    async with feeding() as (say, reports):
        say("")
        await wait_all_tasks_blocked()
        assert not reports
        say("\ud83d")
        say("\ude00 \ud800")
        await wait_all_tasks_blocked()
    assert reports == [(0.0, "😀 \ufffd")]


# Lines of a program on their way to a client, on a clock that the test moves.


Told = list[tuple[float, str]]


@asynccontextmanager
async def running_lines(feed: LineFeed) -> AsyncGenerator[Told, None]:
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


async def test_each_line_of_a_program_is_told_with_its_stream() -> None:
    feed = LineFeed()
    async with running_lines(feed) as told:
        feed.add("stdout", "one")
        feed.add("stderr", "two")
        await wait_all_tasks_blocked()
        assert texts(told) == ["one", "[stderr] two"]
        feed.add("stdout", "\x1b[1m\x1b[0m")
    assert texts(told) == ["one", "[stderr] two", ""]


async def test_times_of_lines_grow() -> None:
    feed = LineFeed(2.5)
    async with running_lines(feed) as told:
        for number in range(5):
            feed.add("stdout", str(number))
        await trio.sleep(1)
        feed.add("stdout", "late")
    times = [seconds for seconds, _ in told]
    assert times == sorted(set(times))
    assert times[0] == 2.5
    assert times[-1] == 3.5


async def test_a_burst_is_told_at_a_bearable_speed() -> None:
    feed = LineFeed()
    async with running_lines(feed) as told:
        for number in range(3 * BURST):
            feed.add("stdout", str(number))
        await wait_all_tasks_blocked()
        assert len(told) == BURST
        await trio.sleep(MIN_INTERVAL_S * 1.5)
        assert len(told) == 2 * BURST
        await trio.sleep(MIN_INTERVAL_S)
    assert texts(told) == [str(number) for number in range(3 * BURST)]


async def test_waiting_lines_are_told_at_once_at_the_end() -> None:
    feed = LineFeed()
    began = trio.current_time()
    async with running_lines(feed) as told:
        for number in range(MAX_WAITING):
            feed.add("stdout", str(number))
    assert texts(told) == [str(number) for number in range(MAX_WAITING)]
    assert trio.current_time() == began


async def test_the_newest_lines_of_a_flood_are_told_and_the_rest_counted() -> None:
    feed = LineFeed()
    async with running_lines(feed) as told:
        for number in range(100_000):
            feed.add("stdout", str(number))
    said = texts(told)
    assert said[0] == f"[... {100_000 - MAX_WAITING:,} lines left out ...]"
    assert said[1:] == [str(number) for number in range(100_000 - MAX_WAITING, 100_000)]


async def test_a_client_that_does_not_read_does_not_delay_the_program() -> None:
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


async def test_silence_of_a_program_is_told() -> None:
    feed = LineFeed()
    async with running_lines(feed) as told:
        await trio.sleep(2.5 * MAX_SILENCE_S)
        assert texts(told) == ["running for 15 s", "running for 30 s"]
        feed.add("stdout", "up")
        await wait_all_tasks_blocked()
        assert texts(told)[2:] == ["up"]
