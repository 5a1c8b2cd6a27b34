"""The supervisor's descriptors are shared out before they run out."""

from __future__ import annotations

import pytest

from nsmd.host.descriptors import PER_BOX, PER_SESSION, RESERVED, Quota, draw, share_out
from nsmd.model.limits import session_room
from nsmd.model.settings import HttpSettings, PoolSettings, SessionSettings, Settings


@pytest.mark.parametrize("http", [HttpSettings(), HttpSettings(enabled=True, max_connections=200)])
@pytest.mark.parametrize("limit", [1024, 4096, 65536, 524288])
def test_all_shares_together_fit_beside_connections_over_http(
    limit: int, http: HttpSettings
) -> None:
    assert http.descriptors == (200 if http.enabled else 0)
    shares = share_out(limit, http.descriptors)
    ours = RESERVED + shares.connections + 2 * shares.proxied + shares.boxes * PER_BOX
    assert ours + shares.sessions * PER_SESSION + http.descriptors <= limit


def test_fewer_descriptors_than_sessions_need_are_the_limit() -> None:
    settings = Settings(
        session=SessionSettings(max_sessions=1000), pool=PoolSettings(max_spares=16)
    )
    few = session_room(settings, share_out(1024))
    assert few.sessions == 250  # as docs/explanation/compared.md says
    assert "1024 files" in few.why_full(250)
    assert "ulimit -Hn" in few.remedy(250)
    for shares in (share_out(8192), share_out(524288), None):
        room = session_room(settings, shares)
        assert room.sessions == 1000
        assert "max_sessions" in room.why_full(1000)
        assert "max_sessions" in room.remedy(1000)


def test_a_full_quota_takes_nothing_of_the_next() -> None:
    own, everyone = Quota(1, "The box has"), Quota(3, "The supervisor has")
    first, full = draw((own, everyone))
    assert (list(first), full) == ([own, everyone], None)
    again, full = draw((own, everyone))
    assert (list(again), full) == ([own], own)
    assert (own.taken, everyone.taken) == (2, 1)
    other = Quota(9, "Another box has")
    assert [draw((other, everyone))[1] for _ in range(3)] == [None, None, everyone]
