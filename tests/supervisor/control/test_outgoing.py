"""Messages to one client, however slowly it reads."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from nsmd.control.outgoing import (
    HIGH_WATER_BYTES,
    MAX_PENDING_CHARS,
    MAX_TOGETHER_CHARS,
    Outgoing,
    OutputStream,
    Room,
)
from nsmd.model.values import Output


@asynccontextmanager
async def a_client() -> AsyncGenerator[tuple[Outgoing, socket.socket, trio.Nursery]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        async with trio.open_nursery() as nursery:
            yield Outgoing(ours.fileno(), nursery), theirs, nursery


async def received(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        await trio.lowlevel.wait_readable(client)
        data += client.recv(1 << 20)
    return data


async def test_data_that_fits_is_written_at_once() -> None:
    async with a_client() as (outgoing, client, _):
        outgoing.put(b"one")
        outgoing.put(b"two")
        assert client.recv(100) == b"onetwo"
        assert not outgoing.waiting


async def test_the_rest_comes_in_order_as_the_client_reads() -> None:
    pieces = [bytes([number]) * 300_000 for number in range(10)]
    async with a_client() as (outgoing, client, _):
        for piece in pieces:
            outgoing.put(piece)
        assert outgoing.waiting
        assert await received(client, 3_000_000) == b"".join(pieces)
        await outgoing.flushed()
        assert not outgoing.waiting


async def test_room_is_waited_for_and_comes_back() -> None:
    async with a_client() as (outgoing, client, nursery):
        outgoing.put(bytes(HIGH_WATER_BYTES // 2))
        await outgoing.room()  # little enough waits
        outgoing.put(bytes(2 * HIGH_WATER_BYTES))
        room = trio.Event()

        async def wait() -> None:
            await outgoing.room()
            room.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not room.is_set()
        await received(client, 5 * HIGH_WATER_BYTES // 2)
        await room.wait()


async def test_descriptors_that_wait_go_with_their_own_bytes() -> None:
    full = bytes(HIGH_WATER_BYTES)
    async with a_client() as (outgoing, client, _):
        outgoing.put(full)
        for data, descriptor in zip((b"first", b"second"), os.pipe(), strict=True):
            outgoing.put(data, descriptor)
        got, descriptors = b"", list[tuple[int, int]]()
        while len(got) < len(full) + len(b"firstsecond"):
            await trio.lowlevel.wait_readable(client)
            data, fds, _, _ = socket.recv_fds(client, 1 << 20, 5)
            descriptors += [(len(got), fd) for fd in fds]
            got += data
        assert got == full + b"firstsecond"
        for _, fd in descriptors:
            os.close(fd)
        assert len(descriptors) == 2
        assert [place for place, _ in descriptors][1] == len(full) + len(b"first")


async def test_a_client_that_is_gone_ends_its_tasks() -> None:
    for size in (1, 10 * HIGH_WATER_BYTES):  # told at once, and told while the rest waits
        async with a_client() as (outgoing, client, nursery):
            if size > 1:
                outgoing.put(bytes(size))
            client.close()
            outgoing.put(b"x")
            await trio.sleep_forever()
        assert nursery.cancel_scope.cancelled_caught


async def test_a_closed_connection_is_not_written_to() -> None:
    async with a_client() as (outgoing, client, _):
        outgoing.close()
        outgoing.put(b"somebody else's by now")
        with pytest.raises(BlockingIOError):
            client.recv(100)


# Output that waits for a client: in order, bounded, with its gaps told.


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


async def test_output_that_waits_for_one_client_is_bounded_together() -> None:
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
