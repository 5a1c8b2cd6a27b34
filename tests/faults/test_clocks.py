"""The wall clock jumps by years, both ways: nobody waits by it, and what is shown stands it."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from control_bench import bench
from nsmd import daemon

if TYPE_CHECKING:
    from collections.abc import Iterator


YEAR_S = 366 * 86400.0

JUMPS = (0.0, 10 * YEAR_S, -40 * YEAR_S, 5000 * YEAR_S, -60 * YEAR_S, 1.0)
"""On top of the year 2026: the last but one is before 1970."""


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps: Iterator[float] = itertools.cycle(JUMPS)
    monkeypatch.setattr(time, "time", lambda: 1_780_000_000.0 + next(jumps))


async def test_sessions_live_by_the_monotonic_clock(
    jumping: None, autojump_clock: trio.abc.Clock
) -> None:
    async with bench(idle_timeout_s=100) as it:
        peer = await it.connect()
        begun_s = trio.current_time()
        for number in range(2 * len(JUMPS)):
            result = await peer.call("run", env="python", code=str(number), session="a")
            assert (result["stdout"], result["session"]["created"]) == (str(number), number == 0)
            (row,) = (await peer.call("sessions"))["sessions"]
            assert 0 <= row["age_s"] <= trio.current_time() - begun_s + 1
        end = await peer.call("logs", target="a")
        assert end["executions"] == 2 * len(JUMPS)
        times = [event.data["started_at"] for event in peer.events if "started_at" in event.data]
        assert min(times) < 0 < max(times), "the clock did jump"
        await trio.sleep(99)
        assert [session.name for session in it.registry.live_sessions()] == ["a"]
        await trio.sleep(2)
        assert it.registry.live_sessions() == []


def test_nothing_waits_by_the_wall_clock() -> None:
    """Only what shows a time, or compares one with a file's, asks for it."""
    asking: set[str] = set()
    base = Path(daemon.__file__).parent
    for path in base.rglob("*.py"):
        if re.search(r"\btime\.time(_ns)?\b", path.read_text()):
            asking.add(path.relative_to(base).as_posix())
    assert asking <= {
        "audit/journal.py",
        "audit/recorder.py",
        "bridge/ledger.py",
        "builds/builder.py",
        "builds/workshop.py",
        "changes/review.py",
        "control/observing.py",
        "hostchecks/room.py",
        "devshell/evaluation.py",
        "execution.py",
        "telemetry/process.py",
        "transcripts/record.py",
        "transcripts/transcript.py",
    }, asking
