"""The tree of sessions and saves as text."""

from __future__ import annotations

from typing import Any

import samples
from nsm.cli.render.saves import ASCII_BRANCHES, forest, tree_text
from nsm.saves.reports import KeptSave
from nsm.wire.sessions import SessionRow


def row(name: str, age_s: float, source: str = "", **changes: Any) -> SessionRow:
    labels = {"restored-from": source} if source else {}
    facts = {"id": f"s-{name}", "name": name, "age_s": age_s, "labels": labels, "ports": ()}
    return SessionRow(**samples.session_row(**facts | changes))


def save(name: str, session: str) -> KeptSave:
    return KeptSave(name, f"/saves/{name}", 3_000_000, 0.0, "python", session, f"s-{session}")


def names(text: str) -> list[str]:
    return [line.split("  python,")[0].split("  19")[0] for line in text.splitlines()]


def test_each_thing_is_below_what_it_was_made_of() -> None:
    rows = [row("again", 5, "work"), row("work", 9), row("apart", 2), row("too", 4, "work")]
    rows.append(row("elsewhere", 3, "/home/me/a.nsmsave"))
    saves = [save("work", "work"), save("second", "again"), save("old", "gone")]
    assert names(tree_text(forest(rows, saves), branches=ASCII_BRANCHES)) == [
        "work (s-work)",
        "`- save work",
        "   |- again (s-again)",
        "   |  `- save second",
        "   `- too (s-too)",
        "apart (s-apart)",
        "save old",
        "save /home/me/a.nsmsave",
        "`- elsewhere (s-elsewhere)",
    ]


def test_a_fork_is_below_its_original() -> None:
    of_work = {"forked-from": "s-work", "restored-from": "old"}
    rows = [row("work", 9, "old"), row("try", 5, labels=of_work), row("apart", 2, checkpoints=2)]
    rows.append(row("lost", 1, labels={"forked-from": "s-gone"}))
    text = tree_text(forest(rows, [save("old", "gone")]), branches=ASCII_BRANCHES)
    assert text.count("checkpoint") == text.splitlines()[0].endswith(", 2 checkpoints") == 1
    assert names(text) == [
        "apart (s-apart)",
        "lost (s-lost)",
        "save old",
        "`- work (s-work)",
        "   `- try (s-try)",
    ]


def test_no_ring_is_made_of_a_save_that_was_replaced() -> None:
    """A restored session may save itself in place of the save that it was made of."""
    assert names(tree_text(forest([row("a", 1, "a")], [save("a", "a")]))) == [
        "a (s-a)",
        "└─ save a",
    ]
    rows = [row("a", 2, "b"), row("b", 1, "a")]
    text = tree_text(forest(rows, [save("a", "a"), save("b", "b")]))
    assert len(text.splitlines()) == 4


def test_lines_fit_the_terminal_and_drive_it_not() -> None:
    rows = [row("x" * 64, 1, env="e\x1b[31m" * 20)]
    [line] = tree_text(forest(rows, []), 80).splitlines()
    assert len(line) <= 80
    assert "\x1b" not in line
    assert tree_text((), 80) == "No sessions, and no saves."
