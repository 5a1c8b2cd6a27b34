"""The supervisor's descriptors are shared out before they run out."""

from __future__ import annotations

import pytest

from nsmd.descriptors import LEAST, PER_SESSION, RESERVED, share_out
from nsmd.limits import session_room
from nsmd.settings import PoolSettings, SessionSettings, Settings


@pytest.mark.parametrize("limit", [1024, 4096, 65536, 524288, 2**30])
def test_all_shares_together_fit(limit: int) -> None:
    shares = share_out(limit)
    ours = RESERVED + shares.connections + 2 * shares.proxied
    assert ours + shares.sessions * PER_SESSION <= limit


@pytest.mark.parametrize(
    ("limit", "sessions", "connections", "proxied"),
    [
        (1024, 135, 104, 26),  # an old default for everything
        (4096, 634, 488, 122),  # hard limits of login sessions without systemd
        (524288, 104409, 1024, 512),  # systemd's
    ],
)
def test_usual_limits(limit: int, sessions: int, connections: int, proxied: int) -> None:
    shares = share_out(limit)
    assert (shares.sessions, shares.connections, shares.proxied) == (sessions, connections, proxied)


@pytest.mark.parametrize("limit", [0, 64, 200])
def test_a_tiny_limit_is_tried_all_the_same(limit: int) -> None:
    shares = share_out(limit)
    assert (shares.sessions, shares.connections, shares.proxied) == (LEAST, LEAST, LEAST)


def test_fewer_descriptors_than_sessions_need_are_the_limit() -> None:
    settings = Settings(
        session=SessionSettings(max_sessions=1000), pool=PoolSettings(max_spares=16)
    )
    few = session_room(settings, share_out(1024))
    assert few.sessions == 135 - 16
    assert "ulimit -Hn" in few.remedy
    for shares in (share_out(8192), share_out(524288), None):
        room = session_room(settings, shares)
        assert room.sessions == 1000
        assert "max_sessions" in room.remedy
