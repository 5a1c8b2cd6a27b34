"""The supervisor's descriptors are shared out before they run out."""

from __future__ import annotations

import pytest

from nsmd.descriptors import LEAST, PER_SESSION, RESERVED, share_out


@pytest.mark.parametrize("limit", [1024, 4096, 65536, 524288, 2**30])
def test_all_shares_together_fit(limit: int) -> None:
    shares = share_out(limit)
    assert shares.sessions * PER_SESSION + shares.connections + RESERVED <= limit


@pytest.mark.parametrize(
    ("limit", "sessions", "connections"),
    [
        (1024, 242, 104),  # an old default for everything
        (4096, 1138, 488),  # hard limits of login sessions without systemd
        (524288, 174357, 1024),  # systemd's
    ],
)
def test_usual_limits(limit: int, sessions: int, connections: int) -> None:
    shares = share_out(limit)
    assert (shares.sessions, shares.connections) == (sessions, connections)


@pytest.mark.parametrize("limit", [0, 64, 200])
def test_a_tiny_limit_is_tried_all_the_same(limit: int) -> None:
    shares = share_out(limit)
    assert (shares.sessions, shares.connections) == (LEAST, LEAST)
