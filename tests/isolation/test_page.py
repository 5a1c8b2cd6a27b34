"""The page on isolation names every probe, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from isolation.probes import ALL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "isolation.md"


def test_the_page_lists_the_probes() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[3])}
    assert named == {probe.name for probe in ALL}
