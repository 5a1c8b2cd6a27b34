"""Both clients on one session: transcripts, code in it, completion, files."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.wire.errors import FileError, FileTooLargeError
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fakesupervisor import Handler


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    with FakeSupervisor() as supervisor:
        yield supervisor


@pytest.fixture
def client(supervisor: FakeSupervisor) -> Iterator[nsm.Client]:
    with nsm.Client(connection=supervisor.connect()) as client:
        yield client


def answer(**result: Any) -> Handler:
    """A handler that always answers the same."""
    return lambda _exchange: result


def on_trio(
    supervisor: FakeSupervisor, work: Callable[[nsm.AsyncClient], Awaitable[object]]
) -> None:
    """Do something with the async client."""

    async def main() -> None:
        async with nsm.AsyncClient(connection=supervisor.connect()) as client:
            await work(client)

    trio.run(main)


# Transcripts


def test_ctrl_c_ends_following_and_brings_the_end(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    def follow(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("session", samples.session_start())
        os.kill(os.getpid(), signal.SIGINT)
        exchange.cancelled.wait()
        return samples.log_end(state="running")

    supervisor.handlers |= {"logs": follow, "ping": answer()}
    end = client.logs("a", follow=True, on_entry=lambda _: None)
    assert end.state == "running"
    client.ping()


# Code


# Files


class Files:
    """The supervisor's side of transfers of one file."""

    def __init__(self, supervisor: FakeSupervisor, content: bytes = b"") -> None:
        self.content = content
        self.written = bytearray()
        self.closed: list[bool] = []
        self.fail_after: int | None = None
        self._done = 0
        self._at = 0
        supervisor.handlers |= {
            "file_open": self.open,
            "file_read": self.read,
            "file_write": self.write,
            "file_close": self.close,
        }

    def open(self, exchange: Exchange) -> dict[str, Any]:
        if exchange.args["path"] == "missing":
            raise FileError("no file missing")
        size = len(self.content) if exchange.args["mode"] == "read" else 0
        return samples.open_file(file=5, size=size)

    def read(self, exchange: Exchange) -> dict[str, Any]:
        self._count(exchange)
        piece = self.content[self._at : self._at + exchange.args.get("bytes", PIECE_BYTES)]
        self._at += len(piece)
        return {"data": piece, "eof": self._at == len(self.content)}

    def write(self, exchange: Exchange) -> dict[str, Any]:
        self._count(exchange)
        self.written += exchange.args["data"]
        return {"size": len(self.written)}

    def close(self, exchange: Exchange) -> dict[str, Any]:
        assert exchange.args["file"] == 5
        self.closed.append(exchange.args.get("keep", False))
        return {"path": "/workspace/a", "size": len(self.written)}

    def _count(self, exchange: Exchange) -> None:
        assert exchange.args["file"] == 5
        if self._done == self.fail_after:
            raise FileError("the disk is full")
        self._done += 1


CONTENT = bytes(range(256)) * 2500  # three pieces


def test_a_transfer_that_fails_in_the_middle(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    files = Files(supervisor, CONTENT)
    files.fail_after = 1
    with pytest.raises(FileError, match="the disk is full"):
        client.files("a").read_to("x", lambda _: None)
    with pytest.raises(FileError, match="the disk is full"):
        client.files("a").write_from("x", io.BytesIO(CONTENT).read)
    assert files.closed == [False, False]


@pytest.mark.parametrize("announced", [True, False])
def test_more_than_is_wanted(
    announced: bool, supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    files = Files(supervisor, CONTENT)
    if not announced:  # it grows while it is read
        supervisor.handlers["file_open"] = answer(**samples.open_file(file=5, size=1))
    received = bytearray()
    with pytest.raises(FileTooLargeError, match="/workspace/a"):
        client.files("a").read_to("x", received.extend, max_bytes=PIECE_BYTES)
    assert len(received) <= PIECE_BYTES
    assert files.closed == [False]


def test_a_cancelled_transfer_closes_its_file(supervisor: FakeSupervisor) -> None:
    files = Files(supervisor, CONTENT)
    stuck = threading.Event()

    def read(exchange: Exchange) -> dict[str, Any]:
        stuck.set()
        exchange.cancelled.wait()
        return {"data": b"", "eof": False}

    supervisor.handlers["file_read"] = read

    async def work(client: nsm.AsyncClient) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.files("a").read_to, "x", bytearray().extend)
            await trio.to_thread.run_sync(stuck.wait)
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught

    on_trio(supervisor, work)
    assert files.closed == [False]
