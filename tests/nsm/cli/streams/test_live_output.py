"""Streamed output and final text: every byte once, in order, and what is missing is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.cli.streams.live_output import Live, Rest
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
