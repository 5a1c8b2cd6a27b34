"""`nsm status times`, `nsm status metrics` and `nsm events`, against a fake supervisor."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import samples
from nsm.cli.render.formats import short_time

if TYPE_CHECKING:
    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor


@pytest.mark.parametrize("verb", ["status metrics", "events"])
def test_without_supervisor(nsm: Nsm, verb: str) -> None:
    assert nsm(*verb.split()) == (1, "", "nsm: no supervisor is running\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0us"),
        (0.00006, "60us"),
        (0.000994, "994us"),
        (0.000996, "1.0ms"),
        (0.0994, "99.4ms"),
        (0.0996, "100ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (59.9, "59.9s"),
        (61, "1m01s"),
    ],
)
def test_short_times(seconds: float | None, text: str) -> None:
    assert short_time(seconds) == text


def tell(exchange: Exchange) -> dict[str, Any]:
    exchange.emit("event", samples.occurrence())
    exchange.emit("missed", {"count": 12})
    facts = {"why": "it \x1b[2J ended", "took": None, "sessions": ["a", "b"]}
    exchange.emit("event", samples.occurrence(session=None, kind="draining", facts=facts))
    return {"number": 3}


def test_events(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    supervisor.handlers["events"] = tell
    said = nsm("events", "-f", "-n", "5", "--session", "work")
    assert said.code == 0
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_777_888_999.5))
    assert said.out.splitlines() == [
        f"{when}  27bcf03a  execution_finished     env=python outcome=ok duration_s=1.2ms",
        "(12 events were dropped meanwhile)",
        f"{when}  -         draining               why='it \\x1b[2J ended' took=- sessions=a,b",
    ]
    assert supervisor.requests[0].args == {"follow": True, "last": 5, "session": "work"}


def test_events_for_programs(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    supervisor.handlers["events"] = tell
    lines = [json.loads(line) for line in nsm("events", "--json").out.splitlines()]
    assert lines[0] == samples.occurrence()
    assert lines[1] == {"kind": "missed", "count": 12}
    assert len(lines) == 3
    assert supervisor.requests[0].args == {"follow": False}
