"""A session's life as text."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.cli.render.inspection import inspection
from nsm.wire.inspection import Inspection
from nsm.wire.messages import read


def shown(row: dict[str, Any] | None = None, **changes: Any) -> str:
    wire = samples.inspection() | changes
    return inspection(
        read(Inspection, wire | {"session": samples.session_row(**{"processes": 1} | (row or {}))}),
        "/home/me",
    )


def line(text: str, name: str) -> str:
    """Return the text beside a name, among the first lines."""
    (found,) = [
        each for each in text.partition("\n\n")[0].splitlines() if each.startswith(f"{name} ")
    ]
    return found.removeprefix(name).strip()


def run(**changes: Any) -> dict[str, Any]:
    sample: dict[str, Any] = samples.inspection()["executions"][0]
    return sample | changes


def test_how_it_began() -> None:
    assert line(shown(), "start") == "as a fork of a template in 6ms; was kept ready for 1m12s"
    cold = {"kind": "cold", "why_cold": "no memory", "start_s": 0.05, "spare_s": 0.0, "taken_up": 0}
    assert line(shown(start=cold), "start") == "in a jail of its own in 50ms; no fork: no memory"
    taken_up = cold | {"why_cold": None, "start_s": None, "spare_s": None, "taken_up": 2}
    text = shown({"taken_up": 2}, start=taken_up)
    assert line(text, "start") == "in a jail of its own"
    assert line(text, "taken up") == "by a new supervisor 2 times, as it was"
    assert "start " not in shown(start=None).split("\n\n")[0]
    assert "start " not in shown(start={"kind": 3, "start_s": True}).split("\n\n")[0]


def test_how_old_it_is_and_when_it_ends() -> None:
    text = shown()
    assert line(text, "age") == "3m12s of at most 8h00m; idle for 2s, ends after 30m00s"
    text = shown({"state": "running", "running_s": 65.0, "queued": 3})
    assert line(text, "age") == "3m12s of at most 8h00m; ends when it is idle for 30m00s"
    assert line(text, "running") == "for 1m05s"
    assert line(text, "waiting") == "3 executions"
    assert line(shown(lifetime=None), "age") == "3m12s; idle for 2s"


def test_of_one_that_has_ended_the_reason_and_what_it_ran() -> None:
    gone: dict[str, Any] = {
        "policy": None,
        "kernel": None,
        "network": None,
        "processes": [],
        "lifetime": None,
    }
    text = shown(
        {"state": "ended", "idle_s": 12.0, "age_s": 72.0, "memory_bytes": None},
        **gone,
        end_reason="idle timeout",
    )
    assert line(text, "ended") == "12s ago, after 1m00s: idle timeout"
    assert "1 / 0" in text
    assert "none yet" not in text
    text = shown({"state": "ending"}, end_reason="killed by nsm")
    assert line(text, "ending") == "killed by nsm"


def test_its_processes() -> None:
    text = shown({"processes": 5})
    rows = [each.split() for each in text.splitlines()]
    assert ["4242", "1", "python3", "sleeps", "8.0", "MiB", "0.25s", "1"] in [r[:8] for r in rows]
    assert "and 4 more" in text
    odd = samples.inspection()["processes"][0] | {"name": "\x1b[2J", "command": "", "state": "?"}
    text = shown(processes=[odd])
    assert "\\x1b[2J" in text
    assert "\x1b" not in text
    assert "more" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["0.25 s", "error 1", "1 / 0"]),
        ({"outcome": "ok", "exit_code": 0}, ["  ok  "]),
        ({"outcome": "running", "duration_s": None, "exit_code": None}, [" -  running"]),
        (
            {"outcome": "lost", "why": "Session 'a' ended: killed.\nmore", "exit_code": None},
            ["lost: Session 'a' ended: killed.  1"],
        ),
        ({"code": "a = 1\nb = 2"}, ["a = 1 ..."]),
        ({"code": "x" * 90}, ["x" * 44 + " ..."]),
        ({"code": "a\x1b[31m"}, ["a\\x1b[31m"]),
        ({"code": ""}, ["error 1"]),
        ({"started_at": 1e300}, ["2  -  "]),
    ],
)
def test_what_it_ran(changes: dict[str, Any], words: list[str]) -> None:
    text = shown(executions=[run(**changes)])
    assert all(word in text for word in words), text
    assert "and 1 earlier execution: see `nsm logs`" in text
    assert "earlier" not in shown(executions=[run(number=1)])


def test_what_its_network_was_asked_for() -> None:
    text = shown(decisions=samples.network()["decisions"])
    rows = [each.split() for each in text.splitlines()]
    assert ["2s", "other.example:443", "not-allowed"] in [row[:3] for row in rows]
    assert "VERDICT" not in shown()


def test_an_older_supervisor_tells_less() -> None:
    wire = samples.inspection()
    for key in ("start", "lifetime", "end_reason", "processes", "executions", "decisions"):
        del wire[key]
    text = inspection(read(Inspection, wire), "/home/me")
    assert "PROCESS" not in text
    assert line(text, "age").startswith("3m12s; idle")
