"""A transcript over several connections: each entry once, whatever the next supervisor knows."""

from __future__ import annotations

from typing import Any

import pytest

from nsm.cli.streams.resumed_transcript import Continued
from nsm.client.retry import RECONNECTED
from nsm.wire.messages import Event

SESSION = ("session", {"id": "s-1"})
AGAIN: tuple[str, dict[str, Any]] = (RECONNECTED, {})


def begin(known: str = "x", started_at: float = 1.0) -> tuple[str, dict[str, Any]]:
    return "execution", {"execution_id": known, "started_at": started_at}


Told = tuple[str, dict[str, Any]]


def output(text: str, known: str = "x", **more: Any) -> tuple[str, dict[str, Any]]:
    return "output", {"execution_id": known, "stream": "stdout", "text": text, **more}


def end(known: str = "x") -> tuple[str, dict[str, Any]]:
    return "finished", {"execution_id": known}


def taken(*events: Told) -> list[Told]:
    continued = Continued()
    shown = [continued.take(Event(1, name, data)) for name, data in events]
    return [(event.event, event.data) for event in shown if event is not None]


def test_an_execution_that_has_ended_is_shown_once() -> None:
    first = [SESSION, begin(), output("a"), end()]
    new = [begin("y"), output("b", "y"), end("y")]
    assert taken(*first, AGAIN, *first, *new) == first + new


@pytest.mark.parametrize(
    ("again", "shown"),
    [
        ([output("abc")], []),
        ([output("abcd")], [output("d", skipped=0)]),
        ([output("a"), output("bcde"), output("f")], [output("de", skipped=0), output("f")]),
        ([output("de", skipped=3)], [output("de", skipped=0)]),
        ([output("e", skipped=4)], [output("e", skipped=1)]),
    ],
)
def test_the_same_transcript_goes_on_where_it_was(again: list[Any], shown: list[Any]) -> None:
    first = [SESSION, begin(), output("ab"), output("c")]
    assert taken(*first, AGAIN, SESSION, begin(), *again) == first + shown


def test_another_transcript_has_what_was_printed_since() -> None:
    first = [SESSION, begin(), output("abc")]
    later = [output("def"), end()]
    assert taken(*first, AGAIN, SESSION, begin(started_at=9.0), *later) == first + later


def test_a_third_telling_counts_from_the_second() -> None:
    first = [SESSION, begin(), output("abc")]
    second = [SESSION, begin(started_at=9.0), output("de")]
    third = [SESSION, begin(started_at=9.0), output("def")]
    assert taken(*first, AGAIN, *second, AGAIN, *third) == [
        *first,
        output("de"),
        output("f", skipped=0),
    ]


def test_another_session_is_another() -> None:
    first = [SESSION, begin(), end()]
    other = [("session", {"id": "s-2"}), begin(), end()]
    assert taken(*first, AGAIN, *other) == first + other


def test_jobs_are_shown_once() -> None:
    started: Told = ("job", {"job": "1"})
    over: Told = ("job_ended", {"job": "1"})
    first = [SESSION, started, begin()]
    assert taken(*first, AGAIN, *first, over, AGAIN, *first, over) == [*first, over]
    other: Told = ("session", {"id": "s-2"})
    assert taken(*first, AGAIN, other, started) == [*first, other, started]
