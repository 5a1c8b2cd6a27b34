"""Recorded executions beside their repetition."""

from __future__ import annotations

from typing import Any

import samples
from nsm.transcripts.comparison import MAX_COLUMNS, MAX_LINES, Comparison, compare
from nsm.transcripts.document import RecordedExecution
from nsm.wire.answers import read
from nsm.wire.results import PLACE, RunResult, Truncation
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece


def recorded(stdout: str = "", stderr: str = "", **end: Any) -> RecordedExecution:
    pieces = (OutputPiece("x-1", "stdout", stdout), OutputPiece("x-1", "stderr", stderr))
    return RecordedExecution(
        read(ExecutionStart, samples.execution_start()),
        pieces,
        read(ExecutionEnd, samples.execution_end(**end)),
    )


def result(stdout: str = "", stderr: str = "", **changes: Any) -> RunResult:
    plain: dict[str, Any] = {"displays": [], "truncated": {}, "exit_code": 0}
    outcome = read(RunResult, samples.run_result(stdout=stdout, stderr=stderr, **plain))
    return outcome._replace(**changes)


def compared(old: RecordedExecution, new: RunResult, *, strict: bool = False) -> Comparison:
    return compare(old, new, at=1_800_000_000.0, strict=strict)


def test_the_same() -> None:
    assert compared(recorded("a\n", "b\n"), result("a\n", "b\n")) == Comparison(())


def test_what_differs_is_told_by_line() -> None:
    found = compared(recorded("a\nb\nc\n", exit_code=0), result("a\nB\nc\n", "no\n", exit_code=1))
    assert [(each.what, each.lines) for each in found.differences] == [
        ("ending", ("- exit code 0", "+ exit code 1")),
        ("stdout", ("  a", "- b", "+ B")),
        ("stderr", ("+ no",)),
    ]


def test_numbers_that_mean_nothing_do_not_differ() -> None:
    old, new = recorded("<a at 0x7f01>\n0.5 s\n"), result("<a at 0x7f02>\n0.7 s\n")
    assert compared(old, new) == Comparison((), ("address", "duration"))
    assert compared(old, new, strict=True).differences[0].what == "stdout"
    # Beside a real difference they are not shown.
    found = compared(old, result("<a at 0x7f02>\n0.7 s\nmore\n"))
    assert found.differences[0].lines == ("  0.5 s", "+ more")


def test_long_differences_are_cut() -> None:
    found = compared(recorded("x" * 1000), result("\n".join("y" * 300 for _ in range(1000))))
    lines = found.differences[0].lines
    assert len(lines) == MAX_LINES + 1
    assert max(map(len, lines)) == MAX_COLUMNS + 2
    assert lines[-1] == "  [...]"


def test_output_with_gaps_is_compared_by_its_ends() -> None:
    gap = "\n[... 50 bytes left out ...]\n"
    cut = {"stdout": Truncation(50, None)}
    old = recorded(f"head\nx{gap}y\ntail\n", truncated={"stdout": {"omitted_bytes": 50}})
    whole = "head\n" + "more\n" * 20 + "tail\n"
    assert not compared(old, result(whole)).differences
    assert not compared(old, result(f"head\nand{gap}tail\n", truncated=cut)).differences
    assert compared(old, result(whole.replace("tail", "toil"))).differences
    assert compared(old, result(f"heed\nand{gap}tail\n", truncated=cut)).differences
    # Of nobody's truncation, the line is text.
    assert compared(recorded(f"head{gap}tail"), result("head and tail")).differences
    pieces = (OutputPiece("x-1", "stdout", "a\nb"), OutputPiece("x-1", "stdout", "c\nd\n", 5))
    kept = recorded()._replace(pieces=pieces)
    assert not compared(kept, result("a\nb12345c\nd\n")).differences
    assert compared(kept, result("a\nb12345c\ne\n")).differences


def test_displayed_values() -> None:
    shown = [
        {"data": {"text/plain": "42"}, "omitted": {"application/json": 5}},
        {"data": {"image/png": "AAAA"}, "omitted": {}},
        {"data": {"text/plain": "big"}, "omitted": {"text/html": 100_000}},
    ]
    new = (
        {"text/plain": "42", "application/json": [1]},
        {"text/plain": "<Figure>", "image/png": "BBBB", PLACE: 1},
        {"text/plain": "big", "text/html": "x" * 100_000},
    )
    old = recorded(displays=shown)
    assert not compared(old, result(displays=new)).differences
    (found,) = compared(old, result(displays=new), strict=True).differences
    assert found.lines == ("  42", "- [image/png] AAAA", "+ [image/png] BBBB")
    (found,) = compared(old, result(displays=new[:1])).differences
    assert found.what == "displays"


def test_how_code_ended() -> None:
    old = recorded(exit_code=124, timed_out=True)
    found = compared(old, result(exit_code=0, interpreter_restarted=True))
    assert found.differences[0][:3] == (
        "ending",
        "timed out",
        "exit code 0, interpreter restarted",
    )
