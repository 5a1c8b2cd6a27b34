"""Screens of `nsm top` and its keys, without a terminal."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.cli.render import formats
from nsm.cli.top.board import COLUMNS, KEYS, ORDERS, Action, Board, Line, Rates, ordered, table
from nsm.wire.messages import read
from nsm.wire.sessions import SessionRow


def row(id_: str, **changes: Any) -> SessionRow:
    return read(SessionRow, samples.session_row(id=id_, **{"name": f"name-{id_}"} | changes))


def lines(*rows: SessionRow) -> list[Line]:
    return [Line(each, None, None) for each in rows]


def shown(board: Board, columns: int = 120, rows: int = 12) -> list[str]:
    return [line.text for line in board.frame(columns, rows)]


def board_of(*rows: SessionRow, **options: Any) -> Board:
    board = Board(**options)
    board.take(rows, 0.0)
    return board


# Figures.


def test_shares_and_rates_are_of_the_time_between() -> None:
    rates = Rates()
    assert rates.take([row("a", cpu_s=1.0, executions=5)], 10.0) == lines(
        row("a", cpu_s=1.0, executions=5)
    )
    (line,) = rates.take([row("a", cpu_s=2.0, executions=8)], 12.0)
    assert (line.cpu_percent, line.runs_per_s) == (50.0, 1.5)
    (line,) = rates.take([row("a", cpu_s=2.0, executions=8)], 13.0)
    assert (line.cpu_percent, line.runs_per_s) == (0.0, 0.0)


def test_a_look_too_soon_is_compared_with_the_one_before() -> None:
    rates = Rates()
    rates.take([row("a", cpu_s=0.0)], 0.0)
    (line,) = rates.take([row("a", cpu_s=0.2)], 0.25)
    assert line.cpu_percent == pytest.approx(80)
    (line,) = rates.take([row("a", cpu_s=0.5)], 1.0)
    assert line.cpu_percent == pytest.approx(50)
    (line,) = rates.take([row("a", cpu_s=0.5)], 1.0)
    assert line.cpu_percent is None


@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_order_keeps_all_and_puts_the_unknown_last(by: str, reverse: bool) -> None:
    some = [
        Line(row("b", memory_bytes=2, processes=1, cpu_s=0.5, executions=1, age_s=5), 1.0, 0.1),
        Line(row("a", memory_bytes=2, processes=1, cpu_s=0.5, executions=1, age_s=5), 1.0, 0.1),
        Line(row("c", memory_bytes=9, processes=4, cpu_s=9.0, executions=7, age_s=9), 9.0, 0.9),
        Line(row("d", memory_bytes=None, processes=None, cpu_s=None), None, None),
    ]
    result = ordered(some, by, reverse=reverse)
    assert sorted(line.row.id for line in result) == ["a", "b", "c", "d"]
    if by in ("cpu", "memory", "processes", "rate", "time"):
        expected = ["a", "b", "c", "d"] if reverse else ["c", "a", "b", "d"]
        assert [line.row.id for line in result] == expected
    if by == "name":
        assert [line.row.id for line in result] == list("dcba" if reverse else "abcd")


# The table.


@pytest.mark.parametrize("width", [50, 79, 80, 120, 300])
def test_the_table_fits_and_loses_what_says_least(width: int) -> None:
    some = lines(
        row("a", name="x" * 60, client="漢字" * 20, env="e" * 30),
        row("b", name=None, memory_bytes=None, cpu_s=None, processes=None),
    )
    header, texts = table(some, width)
    assert len(texts) == 2
    assert all(formats.columns(text) <= width for text in (header, *texts))
    titles = header.split()
    assert {"NAME", "STATE", "CPU%"} <= set(titles)
    # Without a GPU among the sessions, nothing is said of GPUs.
    all_titles = [c.title for c in COLUMNS if not c.title.startswith("GPU")]
    assert titles == [title for title in all_titles if title in titles]
    assert (titles == all_titles) == (width >= 120)


# The board.


def test_the_board_fills_the_screen_and_no_more() -> None:
    board = board_of(*(row(f"{n:02}") for n in range(40)))
    for columns, rows in ((80, 24), (30, 9), (20, 3), (10, 1), (200, 60)):
        frame = board.frame(columns, rows)
        assert len(frame) == rows
        assert all(formats.columns(line.text) <= columns for line in frame)
    assert shown(board)[-1] == KEYS


def test_the_choice_follows_its_session_and_the_screen_the_choice() -> None:
    board = board_of(*(row(f"{n:02}", memory_bytes=n) for n in range(40)), order="name")
    for _ in range(15):
        board.press("down")
    assert board.selected == "15"
    assert any(line.style == "selected" and "name-15" in line.text for line in board.frame(80, 12))
    board.press("M")
    assert board.selected == "15"
    board.press("end")
    assert board.selected == "00"
    assert any(line.style == "selected" and "name-00" in line.text for line in board.frame(80, 12))
    board.press("home")
    assert board.selected == "39"
    board.press("pagedown")
    assert int(board.selected) == 39 - 6
    board.press("up")
    assert int(board.selected) == 39 - 5


def test_when_it_ends_the_next_one_is_chosen() -> None:
    board = board_of(row("a"), row("b"), row("c"), order="name")
    board.press("down")
    board.take([row("a"), row("c")], 1.0)
    assert board.selected == "c"
    board.take([row("a")], 2.0)
    assert board.selected == "a"
    board.take([], 3.0)
    assert board.selected == ""


def test_sorting_goes_round_and_back() -> None:
    board = board_of(row("a"))
    seen = [board.order]
    for _ in ORDERS:
        board.press(">")
        seen.append(board.order)
    assert set(seen) == set(ORDERS)
    assert seen[0] == seen[-1]
    board.press("<")
    assert board.order == seen[-2]
    board.press("r")
    assert f"sorted by {board.order}, reversed" in shown(board)


def test_a_filter_is_typed_and_cleared() -> None:
    board = board_of(row("a", env="bash"), row("b", env="node"), order="name")
    for key in ("/", "n", "o", "x", "backspace"):
        assert board.press(key) is None
    assert shown(board)[-1] == "having: no_"
    board.paste("de\n\x1b")
    board.press("enter")
    assert board.wanted == "node"
    assert "sorted by name; 1 of 2 having 'node'" in shown(board)
    assert board.press("q") == Action("leave")
    board.press("/")
    assert board.press("q") is None  # a letter like any other here
    board.press("escape")
    assert board.wanted == ""
    assert len(board.frame(80, 12)) == 12


@pytest.mark.parametrize(("answer", "ends"), [("y", True), ("n", False), ("enter", False)])
def test_ending_a_session_is_asked_about_first(answer: str, ends: bool) -> None:
    board = board_of(row("a"), row("b"), order="name")
    board.press("down")
    assert board.press("k") is None
    assert shown(board)[-1] == "End session name-b with all that runs in it? y/N"
    assert board.press(answer) == (Action("kill", "b") if ends else None)
    assert shown(board)[-1] == KEYS


def test_the_answer_is_never_for_another_session() -> None:
    board = board_of(row("a"), row("b"), order="name")
    board.press("k")
    board.take([row("b")], 1.0)
    assert shown(board)[-1] == "That session has ended meanwhile."
    assert board.press("y") is None
