"""A map's steps without a supervisor."""

from __future__ import annotations

from typing import Any

import pytest

from nsm.client import fresh
from nsm.client.steps import carry_out
from nsm.wire.code import SessionRef
from nsm.wire.errors import FateUnknownError, ShuttingDownError
from nsm.wire.fresh import OpenedFresh

OPENED = OpenedFresh(1, SessionRef("id", "name", created=False, replaced=None), 1)


class Map(fresh.MapMethods):
    """A map whose supervisor a test plays."""

    def next_number(self, perform: Any) -> int:
        """Take the number of the next result."""
        result = carry_out(self._next(), perform)
        assert result is not None
        return result.number


def test_a_shutdown_tells_how_many_results_are_missing() -> None:
    def perform(_op: str, _args: dict[str, Any], *_: object) -> dict[str, Any]:
        raise ShuttingDownError("The supervisor was shut down.")

    programs = Map()
    programs.begin(OPENED, ["1"] * 3, None, in_order=False)
    with pytest.raises(FateUnknownError, match="Of the 3 that were sent, 0 had ended"):
        programs.next_number(perform)


def test_results_that_wait_for_an_earlier_one_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "MAX_EARLY_BYTES", 100)
    sent: list[int] = []

    def perform(_op: str, args: dict[str, Any], *_: object) -> dict[str, Any]:
        """End the second program first, which prints much."""
        number = len(sent) % 2
        sent.append(len(args.get("programs", ())))
        result = {"number": 1 - number, "stdout": "x" * 101, "stderr": "", "exit_code": 0}
        return {"results": [result], "pending": 1}

    programs = Map()
    programs.begin(OPENED, map(str, range(100)), None, in_order=True)
    assert [programs.next_number(perform) for _ in range(2)] == [0, 1]
    assert sent == [fresh.AHEAD, 0], "nothing more before the first one has ended"
