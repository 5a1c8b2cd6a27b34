"""Output that waits for a client: in order, bounded, with its gaps told."""

from __future__ import annotations

import trio
import trio.testing

from nsmd.control.outgoing import MAX_PENDING_CHARS, MAX_TOGETHER_CHARS, OutputStream, Room
from nsmd.model.values import Output


def piece(text: str) -> Output:
    return Output(stream="stdout", text=text)


async def test_a_gap_is_told_where_it_is_and_of_the_stream_that_has_it() -> None:
    stream = OutputStream(Room())
    large, error = "x" * (MAX_PENDING_CHARS - 1000), Output(stream="stderr", text="e" * 2000)
    stream.put(piece("a"))
    stream.put(piece(large))
    stream.put(error)
    stream.put(error)
    assert await stream.get() == (piece("a"), 0)
    assert await stream.get() == (piece(large), 0)
    stream.put(piece("b"))
    stream.put(error)
    stream.put(error)
    assert await stream.get() == (piece("b"), 0)
    assert await stream.get() == (error, 4000)
    assert await stream.get() == (error, 0)


async def test_room_comes_back_as_pieces_are_taken() -> None:
    stream = OutputStream(Room())
    for _ in range(10):
        stream.put(piece("x" * (MAX_PENDING_CHARS - 1000)))
        assert await stream.get() == (piece("x" * (MAX_PENDING_CHARS - 1000)), 0)


async def test_a_flood_of_tiny_pieces_is_bounded_too() -> None:
    stream = OutputStream(Room())
    for _ in range(100_000):
        stream.put(piece("x"))
        stream.put(piece(""))
    assert await stream.get() == (piece("x"), 0)
    stream.put(piece("last"))
    stream.close()
    found = [("x", 0)]
    while (taken := await stream.get()) is not None:
        found.append((taken[0].text, taken[1]))
    assert len(found) < 10_000
    assert sum(len(text) + skipped for text, skipped in found) == 100_000 + len("last")


async def test_a_reader_waits_for_the_first_piece(autojump_clock: trio.abc.Clock) -> None:
    stream = OutputStream(Room())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.get)
        await trio.testing.wait_all_tasks_blocked()
        stream.put(piece("x"))


async def test_what_waits_for_one_client_is_bounded_together() -> None:
    room = Room()
    streams = [OutputStream(room) for _ in range(100)]
    for stream in streams:
        stream.put(piece("x" * (MAX_PENDING_CHARS - 1000)))
    assert room.chars <= MAX_TOGETHER_CHARS
    assert await streams[0].get() is not None
    streams[99].put(piece("y"))
    taken = await streams[99].get()
    assert taken == (piece("y"), MAX_PENDING_CHARS - 1000)
    for stream in streams:
        stream.discard()
    assert room.chars == 0
