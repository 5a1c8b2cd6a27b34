"""Comparison of a recorded execution with its repetition: its end, standard output and values."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING

from nsm.wire.code import split_place
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nsm.transcripts.document import RecordedExecution
    from nsm.wire.code import RunResult
    from nsm.wire.transcripts import ExecutionEnd

_OF_ONE_RUN = re.compile(r"\bat 0x[0-9a-fA-F]{4,16}\b|<exec[ -]\d{1,9}>")
"""Addresses, and the names that interpreters give to the code of an execution, by its number."""

_GAP = re.compile(r"\n\[\.\.\. \d{1,15} bytes left out \.\.\.\]\n")
"""The line that a result has where its middle is left out."""

MAX_DISPLAYS = 100
"""Displayed values of one execution that a transcript keeps."""

MAX_LINES = 20
MAX_COLUMNS = 200
"""Shown lines of one difference, and characters of each: the rest is in the texts."""

_MAX_MATCHED = 500
"""Lines of each text among which equal ones are looked for, which is quadratic in their number."""


class Difference(NamedTuple):
    """One thing in which an execution and its repetition differ.

    Attributes:
        what: ``ending``, ``stdout`` or ``values``.
        recorded, replayed: the two, as text.
        lines: the lines that differ, behind ``- `` those of the record and behind ``+ `` those of
            now, and one line before them; at most `MAX_LINES` and two.
    """

    what: str
    recorded: str
    replayed: str
    lines: tuple[str, ...] = ()


def compare(
    recorded: RecordedExecution, result: RunResult, *, output: bool = True
) -> tuple[Difference, ...]:
    """List in what a recorded execution and the result of its repetition differ; what was printed
    is compared, too, if asked."""
    end = recorded.end
    assert end is not None, "an execution that has not ended has nothing to compare"
    differences: list[Difference] = []
    then, now = ending_of(end), ending_of(result)
    if then != now:
        differences.append(Difference("ending", then, now, (f"- {then}", f"+ {now}")))
    for what, old, new in _outputs(recorded, end, result) if output else ():
        if not _agree(_comparable(old), _comparable(new)):
            first, second = _joined(old), _joined(new)
            differences.append(Difference(what, first, second, tuple(_diff(first, second))))
    return tuple(differences)


def _outputs(
    recorded: RecordedExecution, end: ExecutionEnd, result: RunResult
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what is compared: its name, and both texts in pieces between gaps."""
    old = recorded.printed("stdout")
    if "stdout" in end.truncated:
        old = [piece for text in old for piece in _GAP.split(text)]
    yield (
        "stdout",
        old,
        _GAP.split(result.stdout) if "stdout" in result.truncated else [result.stdout],
    )
    values = [_value(bundle) for bundle in result.displays[:MAX_DISPLAYS]]
    for place, shown in enumerate(end.displays[: len(values)]):
        if "text/plain" in shown.omitted:
            values[place] = ""
    then = [shown.data.get("text/plain", "") for shown in end.displays]
    yield "values", ["\n".join(then)], ["\n".join(values)]


def _value(bundle: Mapping[str, Any]) -> str:
    """A displayed value as text, as far as a transcript has it: that of a figure is in stdout."""
    data, place = split_place(bundle)
    return str(data.get("text/plain", "")) if place is None else ""


def _comparable(pieces: list[str]) -> list[str]:
    return [_OF_ONE_RUN.sub("", text) for text in pieces]


def ending_of(end: ExecutionEnd | RunResult) -> str:
    """Put into words how code ended."""
    text = "timed out" if end.timed_out else "interrupted" if end.interrupted else ""
    text = text or f"exit code {end.exit_code}"
    return f"{text}, interpreter restarted" if end.interpreter_restarted else text


def _agree(old: list[str], new: list[str]) -> bool:
    """Tell whether two texts in pieces agree; where one has gaps, only by what both have."""
    if len(old) == len(new) == 1:
        return old == new
    first, second = (old, new) if len(old) > 1 else (new, old)
    head, tail = _whole_lines(first[0], end=False), _whole_lines(first[-1], end=True)
    if len(second) == 1:
        (whole,) = second
        fits = len(whole) >= len(head) + len(tail)
        return fits and whole.startswith(head) and whole.endswith(tail)
    other_head = _whole_lines(second[0], end=False)
    other_tail = _whole_lines(second[-1], end=True)
    heads = min(len(head), len(other_head))
    tails = min(len(tail), len(other_tail))
    same_tail = not tails or tail[-tails:] == other_tail[-tails:]
    return head[:heads] == other_head[:heads] and same_tail


def _whole_lines(text: str, *, end: bool) -> str:
    """A piece at a gap without the line that the gap cuts, if it has others."""
    if "\n" not in text:
        return text
    return text.partition("\n")[2] if end else text.rpartition("\n")[0]


def _joined(pieces: list[str]) -> str:
    return "\n[...]\n".join(pieces)


def _diff(old: str, new: str) -> Iterator[str]:
    """Yield the lines that differ; of those that differ in what is of one run only, none."""
    lines, others = old.split("\n"), new.split("\n")
    compared, with_ = _comparable(lines), _comparable(others)
    begin = 0
    while begin < min(len(lines), len(others)) and compared[begin] == with_[begin]:
        begin += 1
    first, second = compared[begin:][:_MAX_MATCHED], with_[begin:][:_MAX_MATCHED]
    found = _changed(first, second, lines[begin:], others[begin:])
    shown = list(islice(found, MAX_LINES))
    if begin:
        yield f"  {lines[begin - 1][:MAX_COLUMNS]}"
    yield from (line[: MAX_COLUMNS + 2] for line in shown)
    if len(shown) == MAX_LINES:
        yield "  [...]"


def _changed(
    first: list[str], second: list[str], lines: list[str], others: list[str]
) -> Iterator[str]:
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if tag != "equal":
            yield from (f"- {line}" for line in lines[old_from:old_to])
            yield from (f"+ {line}" for line in others[new_from:new_to])
