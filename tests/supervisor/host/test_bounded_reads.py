"""Reads whose disk may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from nsmd.host import event_loop
from nsmd.host.event_loop import BoundedReads


class Disk:
    """A disk that hangs until it is mended."""

    def __init__(self) -> None:
        self.mended, self.ended = threading.Event(), threading.Event()

    def read(self) -> str:
        self.mended.wait()
        self.ended.set()
        return "data"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(event_loop, "WAIT_S", 0.01)
    disk = Disk()
    yield disk
    disk.mended.set()
    disk.ended.wait()


def test_a_result_and_an_error_are_the_functions_own() -> None:
    reads = BoundedReads()
    assert reads.read("a", lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        reads.read("a", lambda: 1 // 0)
    assert reads.read("a", lambda: 43) == 43


def test_after_a_read_hangs_the_next_fails_at_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = BoundedReads()
    with pytest.raises(TimeoutError, match="its disk does not answer"):
        reads.read("a", disk.read)
    monkeypatch.setattr(event_loop, "WAIT_S", 60.0)
    with pytest.raises(TimeoutError):
        reads.read("a", lambda: pytest.fail("it would hang, too"))
    assert reads.read("b", lambda: 1) == 1, "another disk"


def test_a_disk_that_answers_again_is_read_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered, start = threading.Event(), trio.lowlevel.start_thread_soon

    def start_and_note(function: Callable[[], Any], deliver: Callable[[Any], object]) -> None:
        def note(result: Any) -> None:
            deliver(result)
            delivered.set()

        start(function, note)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start_and_note)
    reads = BoundedReads()
    with pytest.raises(TimeoutError):
        reads.read("a", disk.read)
    disk.mended.set()
    delivered.wait()
    monkeypatch.setattr(event_loop, "WAIT_S", 60.0)
    assert reads.read("a", disk.read) == "data"
