"""Every row of the specification in docs/how-to/claudebox.md has a test, and every probe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from box.probes import PROBES

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs/how-to/claudebox.md").read_text(encoding="utf-8")

ROWS = (
    *("args", "env", "root", "home", "secrets", "path", "nix", "git", "process", "claude"),
    *("`--dry-run`", "`--check`", "`--yes`", "network", "as root", "nsm inside"),
    *("programs of the host", "limits", "nsm's own places", "safe profile"),
)

NAMED = re.compile(r"`((?:tests/)?[\w/]+\.py)::(\w+)`")
"""A test: of a file beside this one, or of one by its path."""

STARTS_BOXES = re.compile(r"\b(host|shared_world|world|served|seen|attack|untouched)\b")
"""Fixtures of tests that have a world to start boxes in."""


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def source(file: str) -> str:
    """The text of a file that the page names."""
    place = HERE.parents[1] if "/" in file else HERE
    return (place / file).read_text(encoding="utf-8")


TESTED = table("What holds, row by row")


def test_there_is_each_row_of_the_specification() -> None:
    assert tuple(row[0] for row in TESTED) == ROWS


@pytest.mark.parametrize("row", TESTED, ids=[row[0].strip("`") for row in TESTED])
def test_a_row_has_tests_that_start_boxes(row: list[str]) -> None:
    named = NAMED.findall(row[2])
    assert named
    assert ", ".join(f"`{file}::{name}`" for file, name in named) == row[2]
    for file, name in named:
        found = re.search(rf"^def {name}\(([^)]*)\)", source(file), re.MULTILINE)
        assert found, f"no test {name} in {file}"
        assert STARTS_BOXES.search(found[1]), f"{name} has no world to start a box in"


def test_the_page_names_no_test_that_is_not_there() -> None:
    for file, name in NAMED.findall(PAGE):
        assert re.search(rf"^def {name}\(", source(file), re.MULTILINE), f"no test {name} in {file}"


def test_the_page_has_the_probes() -> None:
    rows = [[f"`{name}`", (probe.__doc__ or "").strip()] for name, probe in PROBES.items()]
    expected = "\n".join(f"| {name} | {what} |" for name, what in rows)
    assert table("Attacks") == rows, f"the table's rows are to be:\n{expected}"
