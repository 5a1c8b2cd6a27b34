"""Room for sessions. How they wait for it is tested with those that do (`test_registry.py`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsm.wire.errors import SessionLimitError
from nsmd.manager.session_slots import SessionSlots
from nsmd.model.limits import SessionRoom


def session(name: str, scope: str) -> Any:
    return SimpleNamespace(name=name, tenancy=SimpleNamespace(scope=scope), active_s=0.0)


@pytest.mark.parametrize(("limit", "share"), [(40, 10), (3, 1), (1, 1)])
async def test_the_sessions_of_a_box_leave_room_for_others(limit: int, share: int) -> None:
    live: list[Any] = [session("mine", "me")] * 5
    room = SessionRoom(sessions=limit, remedy="raise it")
    places = SessionSlots(room, lambda: live, trio.CapacityLimiter(1))
    for number in range(share):
        places.check_share("box:/work#1")
        live.append(session(f"s{number}", "box:/work#1"))
    with pytest.raises(SessionLimitError) as refused:
        places.check_share("box:/work#1")
    said = f"You have your share of sessions, {share} of {limit}: s0 (idle "
    assert refused.value.message.startswith(said)
    assert refused.value.message.endswith(").")
    assert refused.value.data == {"limit": share}
    assert refused.value.hint.startswith("Reuse a session")
    places.check_share("box:/other#2")


@pytest.mark.parametrize("confined", [False, True])
async def test_who_may_end_sessions_is_told_to_and_a_box_is_not(confined: bool) -> None:
    live = [session("mine", "me")]
    places = SessionSlots(
        SessionRoom(sessions=1, remedy="raise it"), lambda: live, trio.CapacityLimiter(1)
    )
    with pytest.raises(SessionLimitError) as refused:
        places.turn("me", confined=confined)
    assert refused.value.hint.startswith("End one with `nsm kill") != confined
    assert ("whoever runs nsm can end" in refused.value.hint) == confined
    assert ("Yours that could be ended: mine" in refused.value.message) != confined
