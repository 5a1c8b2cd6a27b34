"""The tables of the comparison, and the results that are kept."""

from __future__ import annotations

from boxpeers import page


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


def test_no_attack_on_the_box_leaves_a_file_that_runs_later_untold() -> None:
    kept, _ = page.read()
    boxes = [column for column in kept if column.name.startswith("nsm box")]
    outcomes = [
        outcome
        for box in boxes
        for attack, (outcome, _) in box.attacks.items()
        if attack.startswith("new ")
    ]
    assert len(outcomes) > 20
    assert "open" not in outcomes
