"""Room for sessions. How they wait for it is tested with those that do (`test_registry.py`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsm.wire.errors import SessionLimitError
from nsmd.limits import SessionRoom
from nsmd.places import Places


def session(name: str, scope: str) -> Any:
    return SimpleNamespace(name=name, tenancy=SimpleNamespace(scope=scope), active_s=0.0)


@pytest.mark.parametrize(("limit", "share"), [(40, 10), (3, 1), (1, 1)])
async def test_the_sessions_of_a_box_leave_room_for_others(limit: int, share: int) -> None:
    live: list[Any] = [session("mine", "me")] * 5
    room = SessionRoom(sessions=limit, remedy="raise it")
    places = Places(room, lambda: live, trio.CapacityLimiter(1))
    for number in range(share):
        places.check_share("box:/work#1")
        live.append(session(f"s{number}", "box:/work#1"))
    with pytest.raises(SessionLimitError) as refused:
        places.check_share("box:/work#1")
    assert f"The box has {share} sessions, which is its share of {limit}." in str(refused.value)
    assert "s0 (idle" in str(refused.value)
    places.check_share("box:/other#2")
