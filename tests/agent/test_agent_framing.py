"""Framing and the resume marker: pure, byte by byte."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.framing import (
    MAX_FRAME_BYTES,
    RESUMED,
    FrameError,
    MessageReader,
    encode_frame,
    resume_marker,
)

TOKEN = "000102030405060708090a0b0c0d0e0f"
MARKER = resume_marker(TOKEN)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(), plain, max_size=4)


def feed(reader: MessageReader, data: bytes, cuts: list[int]) -> list[Any]:
    """Give `data` in pieces; the messages, with an exception where one was raised."""
    found: list[Any] = []
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in pairwise(edges):
        reader.receive_data(data[start:end])
        while True:
            try:
                message = reader.next_message()
            except FrameError as error:
                found.append(error)
                if error.fatal:
                    return found
                continue
            if message is None:
                break
            found.append(message)
    return found


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 500), max_size=20), st.booleans())
def test_any_messages_survive_any_cutting(
    sent: list[dict[str, Any]], cuts: list[int], marker: bool
) -> None:
    reader = MessageReader()
    reader.marker = MARKER if marker else b""
    assert feed(reader, b"".join(encode_frame(m) for m in sent), cuts) == sent


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=10))
def test_garbage_gives_messages_or_frame_errors_and_nothing_else(
    data: bytes, cuts: list[int]
) -> None:
    for item in feed(MessageReader(limit=200), data, cuts):
        assert isinstance(item, (dict, FrameError))


@given(st.lists(messages, max_size=3), messages, st.data())
def test_a_marker_is_found_after_a_frame_torn_at_any_place(
    before: list[dict[str, Any]], torn: dict[str, Any], data: st.DataObject
) -> None:
    whole = encode_frame(torn)
    cut = data.draw(st.integers(0, len(whole) - 1))
    after = {"type": "ping"}
    stream = b"".join([*map(encode_frame, before), whole[:cut], MARKER, encode_frame(after)])
    pieces = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    reader = MessageReader()
    reader.marker = MARKER
    found = feed(reader, stream, pieces)
    assert found == [*before, RESUMED, after]
    assert found[len(before)] is RESUMED


@pytest.mark.parametrize("before", [encode_frame({"a": 1}), MARKER], ids=["frame", "marker"])
@pytest.mark.parametrize("cut", range(20))
def test_a_marker_that_comes_byte_by_byte_after_what_was_torn(before: bytes, cut: int) -> None:
    """The first bytes of a marker must not complete a torn frame, nor another torn marker, whose
    writer was killed."""
    reader = MessageReader()
    reader.marker = MARKER
    stream = before[: min(cut, len(before) - 1)] + MARKER
    assert feed(reader, stream, list(range(len(stream)))) == [RESUMED]


@given(st.binary(max_size=60), st.lists(messages, max_size=3), st.lists(st.integers(0, 300)))
def test_a_new_holder_drops_everything_up_to_the_marker(
    torn: bytes, sent: list[dict[str, Any]], cuts: list[int]
) -> None:
    reader = MessageReader()
    reader.marker = MARKER
    reader.skip_to_marker()
    stream = torn + MARKER + b"".join(map(encode_frame, sent))
    assert feed(reader, stream, cuts) == [RESUMED, *sent]


def test_another_token_is_no_marker() -> None:
    reader = MessageReader()
    reader.marker = MARKER
    found = feed(reader, resume_marker("e" * 32), [])
    assert isinstance(found[0], FrameError)
    assert found[0].fatal


def test_an_invalid_frame_is_skipped_with_a_marker_too() -> None:
    reader = MessageReader()
    reader.marker = MARKER
    body = b'{"a": "\xff\x00"}'
    found = feed(reader, len(body).to_bytes(4, "big") + body + encode_frame({}), [])
    assert isinstance(found[0], FrameError)
    assert not found[0].fatal
    assert found[1] == {}


@pytest.mark.parametrize("token", ["", "00", "x" * 32, "0" * 31, "0" * 34])
def test_a_token_of_another_form_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match=r"16|hexadecimal"):
        resume_marker(token)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_without_json_are_not_sent(value: float) -> None:
    with pytest.raises(FrameError):
        encode_frame({"a": value})


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(FrameError, match="exceeds the limit"):
        encode_frame({"a": "x" * MAX_FRAME_BYTES})


def test_lone_surrogates_are_escaped() -> None:
    reader = MessageReader()
    assert feed(reader, encode_frame({"a": "x\udcffy"}), []) == [{"a": "x\udcffy"}]


def test_many_small_frames_in_one_piece_are_read_in_linear_time() -> None:
    reader = MessageReader()
    reader.marker = MARKER
    data = encode_frame({"type": "ack", "seq": 1}) * 30_000
    reader.receive_data(data)
    count = 0
    while reader.next_message() is not None:
        count += 1
    assert count == 30_000


@pytest.mark.parametrize(
    "text", ["A", "\u00e4", '"', "\\", "\n", "\x7f", "\x1f", "\u2028", "\U0001f600"]
)
@pytest.mark.parametrize("rest", [{}, {"type": "x", "id": '"data":""', "data2": [1]}])
def test_long_data_is_what_it_was(text: str, rest: dict[str, Any]) -> None:
    for data in ("A" * 70_000 + text, text + "A" * 70_000):
        reader = MessageReader()
        reader.receive_data(encode_frame({**rest, "data": data}))
        assert reader.next_message() == {**rest, "data": data}
    with pytest.raises(FrameError):
        encode_frame({**rest, "data": "A" * 70_000, "number": float("nan")})


def test_bytes_like_markers_are_read_in_linear_time() -> None:
    """Hostile code in an agent's place is not to hold up the supervisor that looks for one."""
    reader = MessageReader()
    reader.marker = MARKER
    size = 4 << 20
    reader.receive_data(size.to_bytes(4, "big"))
    began_s = time.process_time()
    for _ in range(size // 65536 - 1):
        reader.receive_data(b"\xff" * 65536)
        assert reader.next_message() is None
    assert time.process_time() - began_s < 5  # 20 ms; it was a minute
    reader.receive_data(MARKER)
    assert reader.next_message() is RESUMED
