"""Comparison of a recorded execution with its repetition."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from nsm.transcripts.ignored import kinds_of, masked, without_own_names
from nsm.wire.results import split_place
from nsm.wire.transcripts import DisplayedValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nsm.transcripts.document import RecordedExecution
    from nsm.wire.results import RunResult
    from nsm.wire.transcripts import ExecutionEnd, StreamName

_GAP = re.compile(r"\n\[\.\.\. \d{1,15} bytes left out \.\.\.\]\n")
"""The line that a result has where its middle is left out."""

MAX_DISPLAYS = 100
"""Displayed values of one execution that a transcript keeps."""

MAX_LINES = 20
MAX_COLUMNS = 200
"""Shown lines of one difference, and characters of each: the rest is in the texts."""

_MAX_MATCHED = 500
"""Lines of each text among which equal ones are looked for, which is quadratic in their number."""

_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class Difference(NamedTuple):
    """One thing in which an execution and its repetition differ.

    Attributes:
        what: ``ending``, ``stdout``, ``stderr`` or ``displays``.
        recorded, replayed: the two, as text.
        lines: the lines that differ, behind ``- `` those of the record and behind ``+ `` those of
            now, and one line before them; at most `MAX_LINES` and two.
    """

    what: str
    recorded: str
    replayed: str
    lines: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """Result of a comparison of two runs of the same code.

    Attributes:
        ignored: kinds of numbers that were left out and do differ (`nsm.transcripts.ignored`).
    """

    differences: tuple[Difference, ...]
    ignored: tuple[str, ...] = ()


def compare(
    recorded: RecordedExecution, result: RunResult, *, at: float, strict: bool, output: bool = True
) -> Comparison:
    """Compare a recorded execution with the result of its repetition.

    Args:
        at: Unix time at which the code ran again.
        strict: leave out nothing, and compare images by their data.
        output: compare what was printed and displayed, too.
    """
    end = recorded.end
    assert end is not None, "an execution that has not ended has nothing to compare"
    differences: list[Difference] = []
    ignored: dict[str, None] = {}
    then, now = ending_of(end), ending_of(result)
    if then != now:
        differences.append(Difference("ending", then, now, (f"- {then}", f"+ {now}")))
    for what, old, new in _outputs(recorded, end, result, strict=strict) if output else ():
        if _agree(old, new):
            continue
        old_masked = old if strict else [masked(text, recorded.start.started_at) for text in old]
        new_masked = new if strict else [masked(text, at) for text in new]
        first, second = _joined(old), _joined(new)
        if not _agree(old_masked, new_masked):
            lines = _diff(first, _joined(old_masked), second, _joined(new_masked))
            differences.append(Difference(what, first, second, tuple(lines)))
        else:
            kinds = kinds_of(first, recorded.start.started_at, second, at)
            ignored |= dict.fromkeys(kinds)
    return Comparison(tuple(differences), tuple(ignored))


def ending_of(end: ExecutionEnd | RunResult) -> str:
    """How code ended, in words."""
    text = "timed out" if end.timed_out else "interrupted" if end.interrupted else ""
    text = text or f"exit code {end.exit_code}"
    return f"{text}, interpreter restarted" if end.interpreter_restarted else text


def _outputs(
    recorded: RecordedExecution, end: ExecutionEnd, result: RunResult, *, strict: bool
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what is compared: its name, and both texts in pieces between gaps."""
    now = {"stdout": result.stdout, "stderr": result.stderr}
    for stream in _STREAMS:
        old = recorded.printed(stream)
        if stream in end.truncated:
            old = [piece for text in old for piece in _GAP.split(text)]
        new = _GAP.split(now[stream]) if stream in result.truncated else [now[stream]]
        yield stream, _named(old), _named(new)
    bundles = [_shown(bundle) for bundle in result.displays[:MAX_DISPLAYS]]
    omitted = [dict(shown.omitted) for shown in end.displays]
    old_text = [_text(shown, {}, strict=strict) for shown in end.displays]
    new_text = [
        _text(shown, omitted[place] if place < len(omitted) else {}, strict=strict)
        for place, shown in enumerate(bundles)
    ]
    yield "displays", _named(["\n".join(old_text)]), _named(["\n".join(new_text)])


def _named(pieces: list[str]) -> list[str]:
    return [without_own_names(text) for text in pieces]


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


def _diff(old: str, old_masked: str, new: str, new_masked: str) -> Iterator[str]:
    """Yield the lines that differ; those that are equal when masked do not."""
    lines, others = old.split("\n"), new.split("\n")
    compared, with_ = old_masked.split("\n"), new_masked.split("\n")
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


def _shown(bundle: Mapping[str, Any]) -> DisplayedValue:
    """A displayed value as a transcript has it."""
    data, place = split_place(bundle)
    texts: dict[str, str] = {}
    omitted: dict[str, int] = {}
    for kind, value in data.items():
        if place is not None and not kind.startswith("image/"):
            continue  # its text is in stdout
        if isinstance(value, str) and kind.startswith(("text/", "image/")):
            texts[kind] = value
        else:
            omitted[kind] = 0
    return DisplayedValue(texts, omitted)


def _text(shown: DisplayedValue, also_omitted: Mapping[str, int], *, strict: bool) -> str:
    """A displayed value as a text to compare: its texts, and the kinds of all else."""
    lines: list[str] = []
    kinds = sorted({*shown.data, *shown.omitted})
    for kind in kinds:
        text = shown.data.get(kind)
        compared = kind.startswith("text/") or strict
        if text is None or not compared or kind in also_omitted:
            lines.append(f"[{kind}]")
        elif kind == "text/plain":
            lines.append(text)
        else:
            lines.append(f"[{kind}] {text}")
    return "\n".join(lines)
