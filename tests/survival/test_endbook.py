"""How sessions ended outlives the supervisor as well, until somebody was told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import trio

from heldstore import Held
from nsmd.endbook import MAX_KEPT, EndBook
from nsmd.history import EndedSessions
from nsmd.survival import records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsmd.survival.store import DescriptorStore


def book_with(store: Held) -> tuple[EndBook, EndedSessions]:
    book = EndBook(cast("DescriptorStore", store))
    return book, EndedSessions(book)


def given(store: Held) -> dict[str, Sequence[int]]:
    return {name: [os.dup(fd) for fd in fds] for name, fds in store.held.items()}


async def test_the_next_supervisor_tells_and_the_one_after_does_not() -> None:
    store = Held()
    _, ended = book_with(store)
    ended.add("s", "a", "idle timeout")
    ended.add("s", "b", "killed by nsm")
    ended.add("s", "a", "its jail died", lost=True)
    assert len(store.held) == 2
    book, unasked = book_with(store)
    book.take_up(given(store), unasked.restore)
    book, next_one = book_with(store)
    book.take_up(given(store), next_one.restore)
    assert str(next_one.take("s", "a")) == "was lost 0 s ago (its jail died)"
    assert next_one.take("s", "a") is None
    book, last = book_with(store)
    book.take_up(given(store), last.restore)
    assert last.take("s", "a") is None
    assert "killed by nsm" in str(last.take("s", "b"))
    assert store.held == {}


async def test_only_the_latest_are_kept() -> None:
    store = Held()
    _, ended = book_with(store)
    for number in range(MAX_KEPT + 10):
        ended.add("s", f"n{number}", "idle timeout")
    assert len(store.held) == MAX_KEPT
    book, next_one = book_with(store)
    book.take_up(given(store), next_one.restore)
    assert next_one.take("s", "n0") is None
    assert next_one.take("s", f"n{MAX_KEPT + 9}")
    store.close()


async def test_a_store_that_lost_all_is_told_all() -> None:
    store, other = Held(), Held()
    book, ended = book_with(store)
    ended.add("s", "a", "idle timeout")
    for name, descriptors in book.everything():
        other.keep(name, descriptors)
    again, next_one = book_with(other)
    again.take_up(given(other), next_one.restore)
    assert next_one.take("s", "a")
    store.close()
    other.close()


async def test_what_is_damaged_is_dropped_and_other_names_are_left_alone() -> None:
    store = Held()
    for name, data in (("state-end-x", b"nsm-record 1 00\n{}"), ("session-1", b"x")):
        descriptor = records.memory_file(data)
        store.keep(name, [descriptor])
        os.close(descriptor)
    book, ended = book_with(store)
    kept = given(store)
    book.take_up(kept, ended.restore)
    assert list(store.held) == ["session-1"]
    os.close(kept["session-1"][0])
    store.close()


async def test_ages_go_on(autojump_clock: trio.abc.Clock) -> None:
    store = Held()
    _, ended = book_with(store)
    ended.add("s", "a", "idle timeout")
    book, next_one = book_with(store)
    book.take_up(given(store), next_one.restore)
    await trio.sleep(600)
    assert "10 min ago" in str(next_one.take("s", "a"))
