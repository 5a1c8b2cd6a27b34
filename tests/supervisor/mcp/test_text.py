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
        ("1/2\n0%\x1b[1A\x1b[2K\r2/2\n100%\n", "2/2\n100%\n"),
        ("a: 1\nb: 1\n\x1b[2A\x1b[2Ka: 2\n\x1b[2Kb: 2\n", "a: 2\nb: 2\n"),
        ("\x1b[?25l\x1b[32m\x1b[1mok\x1b[0m\x1b[K\x1b[?25h\n", "ok\n"),
        ("\x1b]0;title\x07\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\x1b(B\n", "link\n"),
        ("|\b/\b-\bdone\n", "done\n"),
        ("long\rlo\n", "long\n"),
        ("busy   \r       \rdone\n", "done\n"),
        ("a  b\x1b[3Db\x1b[1Gc\x1b[5C.\n", "cb b  .\n"),
        (
            "before\n" * 30 + "\x1b[H\x1b[2Jframe 1\n\x1b[H\x1b[Jframe 2\n",
            "before\n" * 7 + "frame 2\n",
        ),
        ("\x1b[2;3Hx\x1b[999999999;999999999Hy", "\n  x\n" + "\n" * 21 + " " * 120 + "y"),
        ("plain\x1b\x1b[", "plain\x1b\x1b["),
        ("日本: 1\b2\n", "日本: 2\n"),
        ("日本x\x1b[5Gy\x1b[3G語\n", "日語y\n"),
        ("é: 1\b2\n".replace("é", "e\u0301"), "e\u0301: 2\n"),
    ],
)
def test_a_line_that_is_written_again_has_its_last_state(text: str, read: str) -> None:
    assert settled(text) == read


@pytest.mark.parametrize(
    "piece", ["\x1b[A", "a\x1b[A", "\x1b[C", "\x1b]", "\x1b[", "\x1b[H", "a\r", "\x1b[2J"]
)
def test_no_text_takes_long(piece: str) -> None:
    count = 100_000  # minutes, if each piece cost as much as those before it
    assert len(settled(piece * count)) <= len(piece) * count


def test_one_line_has_no_control_characters() -> None:
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
