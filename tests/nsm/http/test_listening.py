"""Choice of the connection that is closed to make room for another."""

from __future__ import annotations

import math

from nsm.http.listening import ConnectionLimit


class FakeConnection:
    """Connection with the parts that the connection limit looks at.

    Attributes:
        ended: it was told to go.
    """

    def __init__(self, *, admitted: bool = False, waiting_since_s: float = math.inf) -> None:
        self.admitted = admitted
        self.waiting_since_s = waiting_since_s
        self.ended = False

    def end(self) -> None:
        self.ended = True


def limit_of(*connections: FakeConnection) -> ConnectionLimit:
    limit = ConnectionLimit(len(connections))
    for connection in connections:
        assert limit.admit(connection)  # type: ignore[arg-type]
    return limit


def admit(limit: ConnectionLimit) -> bool:
    return limit.admit(FakeConnection())  # type: ignore[arg-type]


def test_strangers_go_first_and_the_oldest_of_them() -> None:
    idle = FakeConnection(admitted=True, waiting_since_s=1)
    newer, older = FakeConnection(waiting_since_s=3), FakeConnection(waiting_since_s=2)
    limit = limit_of(idle, newer, older)
    assert admit(limit)
    assert [each.ended for each in (idle, newer, older)] == [False, False, True]
    assert admit(limit)
    assert [each.ended for each in (idle, newer, older)] == [False, True, True]
    assert limit.displaced == 2


def test_idle_connections_go_after_strangers() -> None:
    busy = FakeConnection(admitted=True)
    newer = FakeConnection(admitted=True, waiting_since_s=3)
    older = FakeConnection(admitted=True, waiting_since_s=2)
    limit = limit_of(busy, newer, older)
    assert admit(limit)
    assert [each.ended for each in (busy, newer, older)] == [False, False, True]


def test_where_all_are_answered_the_newcomer_is_refused() -> None:
    busy = [FakeConnection(admitted=True) for _ in range(3)]
    limit = limit_of(*busy)
    assert not admit(limit)
    assert not any(each.ended for each in busy)
    assert len(limit) == 3
    limit.leave(busy[0])  # type: ignore[arg-type]
    assert admit(limit)


def test_a_stranger_whose_request_is_read_goes_all_the_same() -> None:
    stranger = FakeConnection()
    limit = limit_of(FakeConnection(admitted=True), stranger)
    assert admit(limit)
    assert stranger.ended


def test_another_token_ends_those_who_came_with_the_old_one() -> None:
    with_it, stranger = FakeConnection(admitted=True), FakeConnection()
    limit = limit_of(with_it, stranger)
    limit.end_admitted()
    assert (with_it.ended, stranger.ended) == (True, False)
