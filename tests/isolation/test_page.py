"""The pages on isolation name every probe and every group of them, and no other."""

from __future__ import annotations

import re

from isolation import page
from isolation.probes import ALL

MEASURES = page.PAGE.parent.with_name("explanation") / "security.md"


def test_the_page_lists_the_probes() -> None:
    assert page.PAGE.read_text() == page.page(), page.__doc__


def test_measures_are_attacked_by_probes_that_there_are() -> None:
    section = MEASURES.read_text().split("\n### Measures\n")[1].split("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows
    named = [re.findall(r"`([^`]+)`", row.split(" | ")[3]) for row in rows]
    assert all(named), "a measure without probes"
    known = {probe.name for probe in ALL}
    assert {name for names in named for name in names} <= known
