"""Output as lines, and how many of them are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsmd.bridge.monitor import (
    BATCH_CHARS,
    BATCH_LINES,
    MAX_WAITING_LINES,
    PIECE_CHARS,
    OutputLines,
    Told,
    Waiting,
)

TEXTS = st.text(alphabet="aé\U0001f600\n\r\x00", max_size=60)


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    found: list[bytes] = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [*found, data]


@given(text=TEXTS, sizes=st.lists(st.integers(0, 9), max_size=12))
def test_lines_are_the_same_however_bytes_are_cut(text: str, sizes: list[int]) -> None:
    lines = OutputLines()
    found = [line for data in chunks(text.encode(), sizes) for line in lines.add(data)]
    found += lines.end()
    *whole, rest = text.split("\n")
    assert found == [line.removesuffix("\r") for line in whole] + ([rest] if rest else [])


def test_a_long_line_comes_in_pieces() -> None:
    lines = OutputLines()
    line = "é" * (2 * PIECE_CHARS) + "x"
    data = line.encode()
    told = lines.add(data[:40_001]) + lines.add(data[40_001:] + b"\nshort\n")
    assert told == [line[:PIECE_CHARS], line[PIECE_CHARS : 2 * PIECE_CHARS], "x", "short"]
    # One that ends with a piece is ended by an empty one, so that it can be put together again.
    assert lines.add(b"y" * PIECE_CHARS) == ["y" * PIECE_CHARS]
    assert lines.add(b"\n") == [""]


def test_skipped_lines_are_counted() -> None:
    lines = OutputLines()
    assert lines.add(b"one\ntw") == ["one"]
    assert lines.skip(b"o\nthree\nfo") == 2
    assert lines.add(b"ur\n") == ["four"]
    assert lines.skip(b"five") == 0
    assert lines.add(b"\n") == ["five"]
    assert lines.skip(b"z" * (4 * PIECE_CHARS + 1)) == 1
    assert lines.add(b"rest\n") == ["rest"]


def test_skipping_a_line_without_end_keeps_nothing_of_it() -> None:
    lines = OutputLines()
    skipped = sum(lines.skip(b"\xff" * 1000) for _ in range(1000))
    assert 100 <= skipped <= 1_000_000 // PIECE_CHARS
    assert len("".join(lines.end())) < PIECE_CHARS


def test_batches_are_bounded_and_in_order() -> None:
    waiting = Waiting()
    waiting.add("stdout", [str(number) for number in range(100)])
    waiting.add("stderr", ["x" * BATCH_CHARS, "y"])
    first, second, third = waiting.batch(), waiting.batch(), waiting.batch()
    assert [len(first), len(second), len(third)] == [BATCH_LINES, 100 - BATCH_LINES + 1, 1]
    assert first + second + third == [
        *(("stdout", str(number)) for number in range(100)),
        ("stderr", "x" * BATCH_CHARS),
        ("stderr", "y"),
    ]
    assert not waiting
    assert waiting.batch() == []


def test_lines_left_out_are_counted_where_they_are_missing() -> None:
    waiting = Waiting()
    waiting.add("stdout", ["x"] * MAX_WAITING_LINES)
    assert not waiting.has_room
    waiting.leave_out("stdout", 3)
    waiting.leave_out("stdout", 4)
    while not waiting.has_room:
        assert len(waiting.batch()) == BATCH_LINES
    waiting.add("stdout", ["later"])
    waiting.leave_out("stdout", 1)
    told: list[Told] = []
    while waiting:
        told += waiting.batch()
    assert told[-3:] == [("stdout", 7), ("stdout", "later"), ("stdout", 1)]
    # Once full, it has room when half of it is told: one gap, not hundreds.
    assert len(told) < MAX_WAITING_LINES // 2 + BATCH_LINES
