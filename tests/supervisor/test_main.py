"""The supervisor's program, where it reports and does not serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from nsmd import doctor, main

if TYPE_CHECKING:
    from collections.abc import Callable


def interrupted_alone() -> None:
    raise KeyboardInterrupt


def interrupted_in_a_nursery() -> None:
    async def start_jails() -> None:
        async with trio.open_nursery():
            raise KeyboardInterrupt

    trio.run(start_jails)


@pytest.mark.parametrize("look", [interrupted_alone, interrupted_in_a_nursery])
def test_a_report_that_is_interrupted_ends_as_shells_expect(
    look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(*_: object, **__: object) -> int:
        look()
        return 0

    monkeypatch.setattr(doctor, "report", report)
    assert main.main(["--doctor"]) == 130


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*_: object, **__: object) -> int:
        raise ValueError("one")

    monkeypatch.setattr(doctor, "report", report)
    with pytest.raises(ValueError, match="one"):
        main.main(["--doctor"])
