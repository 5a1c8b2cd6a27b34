"""Several clients behind one endpoint: each learns that what it has listed is not true any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nsmd.mcp.clients import MAX_SESSIONS, TELLING_TIMEOUT_S, ListedTools
from nsmd.model.values import ClientIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsmd.mcp.clients import Context, View

NOTHING: View = ((), False)
PROGRAMS: View = ((), True)


class Session:
    """A client's, as the SDK has it; whoever does not read keeps who tells it waiting."""

    def __init__(self, name: str, *, reads: bool = True) -> None:
        self.name = name
        self.told = 0
        self._reads = reads

    async def send_tool_list_changed(self) -> None:
        if not self._reads:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.told += 1

    def context(self) -> Context:
        """Context of a request over HTTP."""
        request = SimpleNamespace(headers={"mcp-session-id": self.name})
        made = SimpleNamespace(request=request, session=self, protocol_version="2025-11-25")
        return cast("Context", cast("Any", made))


class Place:
    """Sessions that exist, and clients that want to know when they change."""

    def __init__(self) -> None:
        self.view = NOTHING
        self.changed: Callable[[], None] = lambda: None
        self.listed = ListedTools(lambda _: self.view)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed = changed
        return lambda: None

    def lists(self, session: Session) -> None:
        self.listed.remember(
            session.context(), ClientIdentity(name=session.name, scope="http"), self.view
        )

    def change(self, view: View) -> None:
        self.view = view
        self.changed()


async def announcing(nursery: trio.Nursery, place: Place) -> None:
    nursery.start_soon(place.listed.announce, (place.subscribe,), None)
    await wait_all_tasks_blocked()


async def test_all_that_have_listed_are_told(autojump_clock: MockClock) -> None:
    place, one, two, never = Place(), Session("one"), Session("two"), Session("never")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(one)
        place.lists(two)
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert (one.told, two.told, never.told) == (1, 1, 0)
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert (one.told, two.told) == (1, 1)
        place.change(NOTHING)
        await wait_all_tasks_blocked()
        assert (one.told, two.told) == (2, 2)
        nursery.cancel_scope.cancel()


async def test_one_that_lists_meanwhile_does_not_keep_the_news_from_others(
    autojump_clock: MockClock,
) -> None:
    place, before, after = Place(), Session("before"), Session("after")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(before)
        place.change(PROGRAMS)
        place.lists(after)  # sees what is new before anybody has been told
        await wait_all_tasks_blocked()
        assert before.told == 1
        nursery.cancel_scope.cancel()


async def test_one_that_does_not_read_holds_the_others_up_for_a_moment_and_once(
    autojump_clock: MockClock,
) -> None:
    place, deaf, other = Place(), Session("deaf", reads=False), Session("other")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(deaf)
        place.lists(other)
        began = trio.current_time()
        place.change(PROGRAMS)
        await trio.sleep(TELLING_TIMEOUT_S + 0.1)
        assert other.told == 1
        place.change(NOTHING)
        await wait_all_tasks_blocked()
        assert other.told == 2
        assert trio.current_time() - began < TELLING_TIMEOUT_S + 0.2
        nursery.cancel_scope.cancel()


async def test_of_very_many_those_that_listed_last_are_told(autojump_clock: MockClock) -> None:
    place = Place()
    sessions = [Session(str(number)) for number in range(MAX_SESSIONS + 2)]
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        for session in sessions:
            place.lists(session)
        place.lists(sessions[2])
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert [session.told for session in sessions] == [0, 0] + [1] * MAX_SESSIONS
        nursery.cancel_scope.cancel()
