"""Room for sessions; `test_session_manager.py` tests how they wait for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from nsm.wire.errors import SessionLimitError
from nsmd.manager.session_slots import SessionSlots, StartLimit
from nsmd.model.limits import SessionRoom


class FakeSession:
    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)


def session(name: str, scope: str) -> Any:
    tenancy, spec = SimpleNamespace(scope=scope), SimpleNamespace(descriptors=2)
    return FakeSession(name=name, tenancy=tenancy, spec=spec, active_s=0.0, live=True)


def spec(descriptors: int) -> Any:
    return SimpleNamespace(descriptors=descriptors)


@pytest.mark.parametrize(("limit", "share"), [(40, 10), (3, 1), (1, 1)])
async def test_the_sessions_of_a_box_leave_room_for_others(limit: int, share: int) -> None:
    live: list[Any] = [session("mine", "me")] * 5
    room = SessionRoom(configured=limit)
    slots = SessionSlots(room, lambda: live, StartLimit(1))
    for number in range(share):
        slots.check_share("box:/work#1")
        live.append(session(f"s{number}", "box:/work#1"))
    with pytest.raises(SessionLimitError) as refused:
        slots.check_share("box:/work#1")
    said = f"You have your share of sessions, {share} of {limit}: s0 (idle "
    assert refused.value.message.startswith(said)
    assert refused.value.message.endswith(").")
    assert refused.value.data == {"limit": share}
    assert refused.value.hint.startswith("Reuse a session")
    slots.check_share("box:/other#2")


@pytest.mark.parametrize("confined", [False, True])
async def test_only_clients_that_may_end_sessions_are_told_to(confined: bool) -> None:
    live = [session("mine", "me")]
    slots = SessionSlots(SessionRoom(configured=1), lambda: live, StartLimit(1))
    with pytest.raises(SessionLimitError) as refused:
        slots.turn("me", confined=confined)
    assert refused.value.hint.startswith("End one with `nsm kill") != confined
    assert ("whoever runs nsm can end" in refused.value.hint) == confined
    assert ("Yours that could be ended: mine" in refused.value.message) != confined


@pytest.mark.parametrize(
    ("room", "limit", "remedy"),
    [
        (SessionRoom(configured=3, descriptors=100, files=240), "max_sessions", "max_sessions"),
        (SessionRoom(configured=9, descriptors=6, files=240), "240 files", "`ulimit -Hn`"),
    ],
)
async def test_an_error_names_the_limit_and_how_to_raise_it(
    room: SessionRoom, limit: str, remedy: str
) -> None:
    live: list[Any] = [session(f"s{number}", "me") for number in range(3)]
    slots = SessionSlots(room, lambda: live, StartLimit(1))
    assert not slots.has_room(spec(2), len(live), 2 * len(live))
    with pytest.raises(SessionLimitError) as refused:
        slots.turn("me")
    assert refused.value.message.startswith("3 sessions are live, as many as ")
    assert limit in refused.value.message
    assert remedy in refused.value.hint
    assert refused.value.data == {"limit": 3}


async def test_sessions_that_hold_more_descriptors_take_more_room() -> None:
    live: list[Any] = [session("mine", "me")]
    room = SessionRoom(configured=100, descriptors=6, files=240)
    slots = SessionSlots(room, lambda: live, StartLimit(1))
    assert slots.has_room(spec(4), 1, 2)
    assert not slots.has_room(spec(5), 1, 2)
    # Spares and ending sessions are in the upper bounds, and do not count.
    assert slots.has_room(spec(4), 50, 200)


async def test_a_start_with_room_lets_nobody_else_go_first() -> None:
    """Only one that has to wait takes another pass of the event loop."""
    others = 0

    async def start() -> None:
        nonlocal others
        async with starts:
            others += 1

    starts = StartLimit(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        async with starts:
            async with starts:
                assert others == 0
                await trio.testing.wait_all_tasks_blocked()
                assert others == 0
            await trio.testing.wait_all_tasks_blocked()
            assert others == 1
