"""Text on its way to a client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.mcp.text import clean, head_and_tail, one_line, settled, shares


@given(st.text(alphabet=st.characters(codec=None)))
def test_clean_text_can_be_sent(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned


def test_clean_joins_pairs_and_marks_halves() -> None:
    assert clean("a\ud83d\ude00b") == "a😀b"
    assert clean("a\ud800b\udc80") == "a\ufffdb\ufffd"
    assert clean("ordinary ä") == "ordinary ä"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("no return\n", "no return\n"),
        ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
        ("\r  0%| \r100%|#\n", "100%|#\n"),
        ("10%\r", "10%"),
        ("10%\rdone\n", "done\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("long line\r\x1b[Kshort\n", "short\n"),
        ("gone\r\x1b[2K", ""),
        ("outer 0\n\rinner 1\x1b[A\n\rinner 2\x1b[A\router 1\n", "outer 1\ninner 2"),
        ("\r\x1b[99999999999Ax", "x"),
    ],
)
def test_a_line_that_is_written_again_is_read_in_its_last_state(text: str, read: str) -> None:
    assert settled(text) == read


def test_one_line() -> None:
    assert one_line("a\n b\t\x1b[0m\u202e c", 80) == "a b [0m c"
    assert one_line("x" * 10, 5) == "xxxx…"


@given(st.text(max_size=200), st.integers(0, 100))
def test_head_and_tail_keep_what_they_may(text: str, limit: int) -> None:
    cut, omitted = head_and_tail(text, limit)
    assert omitted == max(0, len(text) - limit)
    if not omitted:
        assert cut == text
    else:
        head = limit // 2
        assert cut.startswith(text[:head])
        assert cut.endswith(text[len(text) - (limit - head) :])
        assert f"{omitted:,} characters left out" in cut


@given(st.lists(st.integers(0, 1000), max_size=6), st.integers(0, 3000))
def test_shares_are_fair(sizes: list[int], total: int) -> None:
    granted = shares(sizes, total)
    assert all(0 <= grant <= size for grant, size in zip(granted, sizes, strict=True))
    assert sum(granted) <= total
    if sum(sizes) <= total:
        assert granted == sizes
    else:
        # Whoever got less than it wanted got as much as anyone, but for rounding.
        short = [g for g, s in zip(granted, sizes, strict=True) if g < s]
        assert min(short) >= max(granted) - len(sizes)
