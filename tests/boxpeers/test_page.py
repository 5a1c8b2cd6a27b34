"""The tables of the comparison, and whether the page has what is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxpeers import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/box-peers.md"


def columns() -> list[page.Column]:
    a = page.Column(name="A", what="`a`")
    a.attacks = {"x": ("held", ""), "y": ("open", "1 of 2"), "z": ("told", "")}
    a.tasks = {"build": True, "test": False}
    return [a, page.Column(name="B", what="`b`", missing="npm is missing; install npm")]


def test_tables() -> None:
    described = {"x": "reads", "y": "writes", "z": "leaves"}
    assert page.tables(columns(), described).splitlines() == [
        "- **A**: `a`.",
        "- **B**: not tried: npm is missing; install npm.",
        "",
        "| attack | what it does | A |",
        "| --- | --- | --- |",
        "| x | reads | held |",
        "| y | writes | **open, 1 of 2** |",
        "| z | leaves | told |",
        "| all | | **1** open, 1 told |",
        "",
        "| work | A |",
        "| --- | --- |",
        "| build | yes |",
        "| test | **no** |",
        "| all | 1 of 2 |",
    ]


def test_only_what_is_made_is_replaced() -> None:
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    assert page.replaced(text, "new") == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"


def rows() -> dict[str, list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("name", ["outliving", "commit", "all"])
def test_the_page_has_been_made(name: str) -> None:
    assert name in rows()


def test_the_page_says_of_the_box_what_its_documentation_promises() -> None:
    """Nothing is left that the host would run and that nobody is told of."""
    left = {name: row[1:3] for name, row in rows().items() if name.startswith("new ")}
    assert len(left) > 10
    assert not [name for name, boxes in left.items() if any("open" in each for each in boxes)]
