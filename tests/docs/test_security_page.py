"""Each promise of the page on security names tests and probes that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isolation.probes import ALL

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
PROBES = {probe.name for probe in ALL}


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


PROMISES = rows("Promises")
FINDINGS = rows("Findings that decided the design")


@pytest.mark.parametrize("row", PROMISES, ids=[row[0][:60] for row in PROMISES])
def test_each_promise_is_tested(row: list[str]) -> None:
    assert len(row) == 3
    named = re.findall(r"`([^`]+)`", row[2])
    assert named, "a promise without a test"
    for name in named:
        check(name)


@pytest.mark.parametrize("row", FINDINGS, ids=[row[0][:40] for row in FINDINGS])
def test_each_finding_is_dealt_with(row: list[str]) -> None:
    for name in re.findall(r"`([^`]+)`", row[1]):
        if name.startswith("tests/") or name in PROBES:
            check(name)


def test_no_finding_is_left_out() -> None:
    assert [int(row[0].split(".")[0]) for row in FINDINGS] == list(range(1, 17))


def check(name: str) -> None:
    """Check that there is such a probe, file, or test in a file."""
    if not name.startswith("tests/"):
        assert name in PROBES, f"no probe {name}"
        return
    path, _, test = name.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not test or re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), f"no test {name}"
