"""Functions that are called when descriptors can be read."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nsmd.host.event_loop import poller


@pytest.fixture
def events() -> Generator[tuple[int, int]]:
    """Two descriptors that can be read once something was written to them."""
    made = os.eventfd(0), os.eventfd(0)
    yield made
    for fd in made:
        os.close(fd)


async def test_all_that_can_be_read_is_told_in_one_turn(events: tuple[int, int]) -> None:
    told: list[int] = []

    def read(fd: int) -> None:
        os.eventfd_read(fd)
        told.append(fd)

    for fd in events:
        poller().watch(fd, partial(read, fd))
    for fd in events:
        os.eventfd_write(fd, 1)
    await wait_all_tasks_blocked()
    assert sorted(told) == sorted(events)
    for fd in events:
        poller().forget(fd)


async def test_a_descriptor_that_was_forgotten_is_told_no_more(events: tuple[int, int]) -> None:
    """Not even in the turn in which it could be read, by what another one has led to."""
    told: list[int] = []

    def forget_all(fd: int) -> None:
        told.append(fd)
        for each in events:
            poller().forget(each)

    for fd in events:
        poller().watch(fd, partial(forget_all, fd))
        os.eventfd_write(fd, 1)
    await wait_all_tasks_blocked()
    assert len(told) == 1
    poller().forget(told[0])  # it may be repeated


async def test_the_last_function_counts(events: tuple[int, int]) -> None:
    told: list[str] = []
    first, _ = events

    def tell(word: str) -> None:
        told.append(word)
        os.eventfd_read(first)

    poller().watch(first, lambda: tell("one"))
    poller().watch(first, lambda: tell("two"))
    os.eventfd_write(first, 1)
    await wait_all_tasks_blocked()
    poller().forget(first)
    assert told == ["two"]


async def test_a_function_that_fails_harms_no_other(
    events: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    bad, good = events

    def fail() -> None:
        raise ValueError("a bug")

    poller().watch(bad, fail)
    poller().watch(good, lambda: told.append(os.eventfd_read(good)))
    os.eventfd_write(bad, 1)
    await wait_all_tasks_blocked()
    os.eventfd_write(good, 1)
    await wait_all_tasks_blocked()
    poller().forget(good)
    assert told == [1]
    assert "a bug" in caplog.text


async def test_each_event_loop_has_its_own() -> None:
    ours = poller()
    assert poller() is ours

    async def other() -> bool:
        return poller() is ours

    assert not await trio.to_thread.run_sync(trio.run, other)
