"""A session's life as text."""

from __future__ import annotations

from typing import Any

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


def test_an_older_supervisor_tells_less() -> None:
    wire = samples.inspection()
    for key in ("start", "lifetime", "end_reason", "processes", "executions", "decisions"):
        del wire[key]
    text = inspection(read(Inspection, wire), "/home/me")
    assert "PROCESS" not in text
    assert line(text, "age").startswith("3m12s; idle")
