"""Head and tail of a text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.text import HeadTail

MARK = re.compile(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n")


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 60))
def test_however_it_comes_the_same_is_kept(pieces: list[bytes], limit: int) -> None:
    whole = b"".join(pieces)
    one, many = HeadTail(limit), HeadTail(limit)
    one.write(whole)
    for piece in pieces:
        many.write(piece)
    assert many.result() == one.result()


@given(st.text(max_size=200), st.integers(0, 100))
def test_the_beginning_and_the_end_of_a_text_are_kept(text: str, limit: int) -> None:
    kept = HeadTail(limit)
    kept.write(text.encode())
    shown, omitted = kept.result()
    if len(text.encode()) <= limit:
        assert (shown, omitted) == (text, 0)
        return
    match = MARK.search(shown)
    assert match is not None
    assert int(match[1]) == omitted == len(text.encode()) - 2 * (limit // 2)
    head, tail = shown[: match.start()], shown[match.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert 2 * (limit // 2) - 6 <= len(head.encode()) + len(tail.encode()) <= limit


def test_a_flood_takes_no_memory() -> None:
    kept = HeadTail(1000)
    for _ in range(10_000):
        kept.write(b"x" * 1000)
    assert len(kept._tail) <= 3000  # pyright: ignore[reportPrivateUsage]
    assert kept.result()[1] == 10_000_000 - 1000
