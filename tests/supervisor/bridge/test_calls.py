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


async def test_a_number_of_answers_is_kept_and_the_oldest_go() -> None:
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        for number in range(MAX_KEPT + 2):
            kept.add(key(number), over(nursery, str(number), "done"))
    assert [number for number in range(MAX_KEPT + 2) if kept.get(key(number)) is None] == [0, 1]
    newest = kept.get(key(MAX_KEPT))
    assert newest is not None
    assert newest.asked.arguments == ()


async def test_bytes_of_answers_are_bounded_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
