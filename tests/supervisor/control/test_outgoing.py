"""Messages to one client, however slowly it reads."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nsmd.control.outgoing import HIGH_WATER_BYTES, Outgoing


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


async def test_what_fits_is_there_at_once() -> None:
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


async def test_nothing_is_written_once_the_socket_is_not_ours() -> None:
    async with a_client() as (outgoing, client, _):
        outgoing.close()
        outgoing.put(b"somebody else's by now")
        with pytest.raises(BlockingIOError):
            client.recv(100)
