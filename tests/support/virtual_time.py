"""Virtual time for all tests of a file: `pytestmark = virtual_time`.

A sleep that all tasks are in takes no time. Files in which single tests want it take the fixture
`autojump_clock`. `tests/supervisor/conftest.py` gives marked tests their clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

virtual_time = pytest.mark.virtual_time


def run_in_virtual_time(
    function: Callable[[], Awaitable[Any]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Any:
    """`trio.run` with a clock that jumps."""
    clock = clock or trio.testing.MockClock(autojump_threshold=0)
    return trio.run(function, clock=clock, instruments=instruments)
