"""The page on security names probes that exist."""

from __future__ import annotations

import re
from pathlib import Path

from isolation.probes import ALL

MEASURES = Path(__file__).resolve().parents[2] / "docs/explanation/security.md"


def test_measures_are_attacked_by_probes_that_there_are() -> None:
    section = MEASURES.read_text().split("\n### Measures\n")[1].split("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows
    named = [re.findall(r"`([^`]+)`", row.split(" | ")[3]) for row in rows]
    assert all(named), "a measure without probes"
    known = {probe.name for probe in ALL}
    assert {name for names in named for name in names} <= known
