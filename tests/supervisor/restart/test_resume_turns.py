"""Order in which the agents of an earlier supervisor are asked what they run."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from nsmd.restart.reattach import AT_ONCE, ResumeTurn, ResumeTurns


class Asked:
    """Sessions that got their turns, in that order, and answers that end turns."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = ResumeTurns()
        self.order: list[int] = []
        self._answers: dict[int, trio.Event] = {}
        self._nursery = nursery

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self._answers[number] = trio.Event()
            self._nursery.start_soon(self._turn, number)

    def answer(self, number: int) -> None:
        self._answers[number].set()

    async def _turn(self, number: int) -> None:
        async with ResumeTurn(self.turns, str(number)):
            self.order.append(number)
            await self._answers[number].wait()


async def test_few_are_asked_at_once_and_an_awaited_session_first() -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        asked.ask(*range(100))
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE
        waiting = [number for number in range(100) if number not in asked.order]
        asked.turns.advance(str(waiting[-1]))
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[AT_ONCE:] == [waiting[-1]]
        asked.answer(asked.order[0])
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE + 1  # the one that went first takes its place
        asked.answer(asked.order[1])
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE + 2
        asked.turns.advance_all()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(asked.order) == list(range(100))
        asked.ask(100)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[-1] == 100
        nursery.cancel_scope.cancel()
    assert repr(asked.turns) == "<ResumeTurns 0 under way, 0 waiting>"


async def test_a_session_that_was_advanced_before_it_waits_goes_first() -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        asked.turns.advance("77")
        asked.ask(*range(AT_ONCE))
        await trio.testing.wait_all_tasks_blocked()
        asked.ask(77)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[-1] == 77
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_session_that_ends_gives_its_turn_back(waiting: bool) -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as own:
                some = Asked(own)
                some.turns = asked.turns
                some.ask(*range(AT_ONCE + 1 if waiting else AT_ONCE))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        asked.ask(*range(200, 200 + AT_ONCE))
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE
        nursery.cancel_scope.cancel()
