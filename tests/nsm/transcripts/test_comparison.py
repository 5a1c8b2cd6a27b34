"""Recorded executions beside their repetition."""

from __future__ import annotations

from typing import Any

import samples
from nsm.transcripts.comparison import MAX_COLUMNS, MAX_LINES, compare
from nsm.transcripts.document import RecordedExecution
from nsm.wire.code import PLACE, RunResult, Truncation
from nsm.wire.messages import read
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


def test_differences_are_told_by_line() -> None:
    found = compare(recorded("a\nb\nc\n", exit_code=0), result("a\nB\nc\n", "no\n", exit_code=1))
    assert [(each.what, each.lines) for each in found] == [
        ("ending", ("- exit code 0", "+ exit code 1")),
        ("stdout", ("  a", "- b", "+ B")),
    ]


def test_addresses_and_numbers_of_executions_are_not_compared() -> None:
    old, new = recorded("<a at 0x7f01>\n<exec 3>"), result("<a at 0x7f02>\n<exec 2>")
    assert not compare(old, new)
    (found,) = compare(old, result("<a at 0x7f02>\n<exec 2>\nmore"))
    assert found.lines == ("  <exec 3>", "+ more")


def test_long_differences_are_cut() -> None:
    found = compare(recorded("x" * 1000), result("\n".join("y" * 300 for _ in range(1000))))
    lines = found[0].lines
    assert len(lines) == MAX_LINES + 1
    assert max(map(len, lines)) == MAX_COLUMNS + 2
    assert lines[-1] == "  [...]"


def test_output_with_gaps_is_compared_by_its_ends() -> None:
    gap = "\n[... 50 bytes left out ...]\n"
    cut = {"stdout": Truncation(50, None)}
    old = recorded(f"head\nx{gap}y\ntail\n", truncated={"stdout": {"omitted_bytes": 50}})
    whole = "head\n" + "more\n" * 20 + "tail\n"
    assert not compare(old, result(whole))
    assert not compare(old, result(f"head\nand{gap}tail\n", truncated=cut))
    assert compare(old, result(whole.replace("tail", "toil")))
    assert compare(old, result(f"heed\nand{gap}tail\n", truncated=cut))
    # Of nobody's truncation, the line is text.
    assert compare(recorded(f"head{gap}tail"), result("head and tail"))
    pieces = (OutputPiece("x-1", "stdout", "a\nb"), OutputPiece("x-1", "stdout", "c\nd\n", 5))
    kept = recorded()._replace(pieces=pieces)
    assert not compare(kept, result("a\nb12345c\nd\n"))
    assert compare(kept, result("a\nb12345c\ne\n"))


def test_displayed_values_are_compared_as_text() -> None:
    shown = [
        {"data": {"text/plain": "42"}, "omitted": {"application/json": 5}},
        {"data": {"image/png": "AAAA"}, "omitted": {}},
        {"data": {}, "omitted": {"text/plain": 100_000}},
    ]
    new = (
        {"text/plain": "42", "application/json": [1]},
        {"text/plain": "<Figure>", "image/png": "BBBB", PLACE: 1},
        {"text/plain": "x" * 100_000},
    )
    old = recorded(displays=shown)
    assert not compare(old, result(displays=new))
    (found,) = compare(old, result(displays=({"text/plain": "43"}, *new[1:])))
    assert (found.what, found.lines) == ("values", ("- 42", "+ 43"))
    (found,) = compare(old, result(displays=new[:1]))
    assert found.what == "values"
