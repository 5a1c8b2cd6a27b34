"""Calls that are over are kept for who asks again, within bounds."""

from __future__ import annotations

import pytest
import trio

from bridge_bench import ANYONE
from nsm.wire.errors import BadRequestError
from nsmd.bridge import calls as module
from nsmd.bridge.calls import MAX_KEPT, FinishedCalls, ProgramCall
from nsmd.bridge.programs import ProgramEnd, RecordedCall

KEPT_OF_ONE = 100_000


def over(nursery: trio.Nursery, name: str, output: str | None) -> ProgramCall:
    """A call that is over; None: it was refused."""
    asked = RecordedCall(id=name, caller=ANYONE, program="deploy", arguments=("x" * 1000,))
    call = ProgramCall(asked, None, nursery)
    call.started = output is not None
    refused = BadRequestError("The call was refused.")
    call.settle(
        refused if output is None else ProgramEnd(exit_code=0, stdout=output, stderr=output)
    )
    return call


def key(name: object) -> tuple[str, str]:
    return "scope", str(name)


async def test_as_many_are_kept_and_the_oldest_go() -> None:
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        for number in range(MAX_KEPT + 2):
            kept.add(key(number), over(nursery, str(number), "done"))
    assert [number for number in range(MAX_KEPT + 2) if kept.get(key(number)) is None] == [0, 1]
    newest = kept.get(key(MAX_KEPT))
    assert newest is not None
    assert newest.asked.arguments == ()


async def test_so_many_bytes_are_kept_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has as much as that again of its other stream, and some bytes besides."""
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 5 * KEPT_OF_ONE)
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            kept.add(key(number), over(nursery, str(number), "x" * KEPT_OF_ONE))
        assert [kept.get(key(number)) is not None for number in range(4)] == [
            False,
            False,
            True,
            True,
        ]
        # By what they take in memory, and not by how many characters they are.
        kept.add(key("wide"), over(nursery, "wide", "\U0001f600" * (KEPT_OF_ONE // 4)))
        assert kept.get(key(3)) is not None
        kept.add(key("wide, too"), over(nursery, "wide", "\U0001f600" * (KEPT_OF_ONE // 4)))
        assert kept.get(key(3)) is None


async def test_the_last_one_is_kept_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", KEPT_OF_ONE)
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        for name in ("small", "large"):
            kept.add(key(name), over(nursery, name, "x" * (KEPT_OF_ONE if name == "large" else 1)))
        assert kept.get(key("small")) is None
        assert kept.get(key("large")) is not None
        # Room is made for as many as there were before: nothing of it counts any more.
        for name in ("a", "b"):
            kept.add(key(name), over(nursery, name, "x"))
        assert kept.get(key("large")) is None
        assert kept.get(key("a")) is not None


async def test_the_same_one_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 5 * KEPT_OF_ONE)
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        kept.add(key("other"), over(nursery, "other", "x"))
        for _ in range(3):
            kept.add(key("same"), over(nursery, "same", "x" * KEPT_OF_ONE))
    assert kept.get(key("other")) is not None


async def test_a_flood_of_refused_calls_pushes_no_answer_away() -> None:
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        kept.add(key("deployed"), over(nursery, "deployed", "done"))
        for number in range(3 * MAX_KEPT):
            kept.add(key(number), over(nursery, str(number), None))
        assert kept.get(key("deployed")) is not None
        assert kept.get(key(3 * MAX_KEPT - 1)) is not None
        # Where there are none but answers, the newest stays nevertheless.
        for number in range(MAX_KEPT):
            kept.add(key(f"answer {number}"), over(nursery, str(number), "done"))
        kept.add(key("refused"), over(nursery, "refused", None))
    assert kept.get(key("refused")) is not None
