"""Frames: what passes, what is refused, and that nothing else ever happens."""

from __future__ import annotations

import math
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.wire.frames import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_ITEMS,
    FrameReader,
    LocalProtocolError,
    RemoteProtocolError,
    decode_body,
    encode_frame,
)


def in_map(item: bytes) -> bytes:
    """A map whose only value is `item`: `{"a": item}`."""
    return b"\xa1\x61a" + item


def tagged(tag: int, item: bytes, head: str = "shortest") -> bytes:
    """`item` under a tag; the head may be longer than necessary, as RFC 8949 permits."""
    if head == "shortest":
        return cbor2.dumps(cbor2.CBORTag(tag, None))[:-1] + item
    return b"\xdb" + struct.pack(">Q", tag) + item


ROUND_TRIPS: list[tuple[dict[str, Any], str]] = [
    ({}, "a0"),
    ({"a": 1}, "a1616101"),
    ({"a": -1}, "a1616120"),
    ({"a": 2**64 - 1}, "a161611bffffffffffffffff"),
    ({"a": -(2**64)}, "a161613bffffffffffffffff"),
    ({"a": True, "b": False, "c": None}, "a36161f56162f46163f6"),
    ({"a": 1.5}, "a16161fb3ff8000000000000"),
    ({"a": "ü€🎈"}, "a1616169c3bce282acf09f8e88"),
    ({"a": "nul\0nul"}, "a16161676e756c006e756c"),
    ({"a": b"\x00\xff"}, "a161614200ff"),
    ({"a": [1, [2, {}]]}, "a1616182018202a0"),
    ({"": {"": ""}}, "a160a16060"),
]


@pytest.mark.parametrize(("value", "hexadecimal"), ROUND_TRIPS)
def test_codec_in_both_directions(value: dict[str, Any], hexadecimal: str) -> None:
    body = bytes.fromhex(hexadecimal)
    assert encode_frame(value) == len(body).to_bytes(4, "big") + body
    assert decode_body(body) == value


REFUSED = {
    "nothing": b"",
    "not a map: array": b"\x80",
    "not a map: text": b"\x61a",
    "not a map: null": b"\xf6",
    "trailing bytes": b"\xa0\x00",
    "trailing map": b"\xa0\xa0",
    "no value": b"\xa1\x61a",
    "torn text": in_map(b"\x65abc"),
    "torn head": in_map(b"\x19\x01"),
    "torn length": in_map(b"\x5b\x00\x00"),
    "promised map entries": b"\xbb\x00\x00\x00\x00\x00\x00\x00\x05\x61a\x01",
    "integer key": b"\xa1\x01\x02",
    "bytes key": b"\xa1\x41a\x02",
    "null key": b"\xa1\xf6\x02",
    "array key": b"\xa1\x80\x02",
    "inner integer key": in_map(b"\xa1\x01\x02"),
    "duplicate key": b"\xa2\x61a\x01\x61a\x02",
    "inner duplicate key": in_map(b"\xa2\x61a\x01\x61a\x01"),
    "duplicate key in two encodings": b"\xa2\x61a\x01\x78\x01a\x02",
    "indefinite map": b"\xbf\x61a\x01\xff",
    "indefinite array": in_map(b"\x9f\x01\xff"),
    "indefinite text": in_map(b"\x7f\x61a\xff"),
    "indefinite bytes": in_map(b"\x5f\x41a\xff"),
    "break": in_map(b"\xff"),
    "reserved head 28": in_map(b"\x1c"),
    "reserved head 30": in_map(b"\x7e"),
    "undefined": in_map(b"\xf7"),
    "simple 0": in_map(b"\xe0"),
    "simple 16": in_map(b"\xf0"),
    "simple 255": in_map(b"\xf8\xff"),
    "simple 20 in two bytes": in_map(b"\xf8\x14"),
    "half NaN": in_map(b"\xf9\x7e\x00"),
    "half infinity": in_map(b"\xf9\x7c\x00"),
    "single NaN": in_map(struct.pack(">Bf", 0xFA, math.nan)),
    "single -infinity": in_map(struct.pack(">Bf", 0xFA, -math.inf)),
    "double NaN": in_map(struct.pack(">Bd", 0xFB, math.nan)),
    "double infinity": in_map(struct.pack(">Bd", 0xFB, math.inf)),
    "text that is not UTF-8": in_map(b"\x61\xff"),
    "text with a surrogate": in_map(b"\x63\xed\xa0\x80"),
    "key that is not UTF-8": b"\xa1\x61\xff\x01",
    "huge array": in_map(b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff"),
    "largest array": in_map(b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"),
    "huge map": b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff",
    "huge text": in_map(b"\x7b\x7f\xff\xff\xff\xff\xff\xff\xff"),
    "huge bytes": in_map(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff"),
    "nested too deep": b"\xa1\x61a" * MAX_DEPTH + b"\x80",
    "nested far too deep": b"\xa1\x61a" + b"\x81" * 1_000_000,
    "too many items": in_map(b"\x9a" + struct.pack(">I", MAX_ITEMS) + b"\x80" * MAX_ITEMS),
    "too many items in small arrays": in_map(b"\x99\x02\x00" + b"\x99\x02\x00" * 512 + b"\x00"),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(body)


TAGGED = {
    0: cbor2.dumps("2020-01-01T00:00:00Z"),
    1: b"\x01",
    2: b"\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00",
    3: b"\x41\x01",
    4: b"\x82\x01\x02",
    5: b"\x82\x01\x02",
    28: b"\x81\xd8\x1d\x00",  # a list that holds itself
    29: b"\x00",
    30: b"\x82\x01\x02",
    35: cbor2.dumps("(a+)+b"),
    36: cbor2.dumps("From: a\n\nb"),
    37: cbor2.dumps(b"0" * 16),
    256: b"\x81\x61a",
    258: b"\x81\x61a",
    260: cbor2.dumps(b"\x7f\0\0\1"),
    55799: b"\x01",
}


def is_refused(body: bytes) -> bool:
    try:
        decode_body(body)
    except RemoteProtocolError as error:
        return "tag" in error.message
    return False


def test_every_tag_is_refused_whatever_it_holds() -> None:
    """The sweep goes over the whole range of two bytes, cbor2's built-in decoders included."""
    taken = [tag for tag in range(0x10000) if not is_refused(in_map(tagged(tag, b"\x01")))]
    assert taken == []
    for tag, content in TAGGED.items():
        assert is_refused(in_map(tagged(tag, content)))
        assert is_refused(in_map(tagged(tag, content, head="longest")))
    assert is_refused(in_map(tagged(2**64 - 1, b"\x01")))


def test_a_tag_as_the_whole_frame_and_as_key() -> None:
    for body in (tagged(55799, b"\xa0"), b"\xa1" + tagged(0, b"\x61a") + b"\x01"):
        with pytest.raises(RemoteProtocolError):
            decode_body(body)


Plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), Plain))
def test_plain_values_come_back_as_they_were(value: dict[str, Any]) -> None:
    assert decode_body(encode_frame(value)[4:]) == value


@given(st.binary(max_size=200))
def test_garbage_gives_a_map_or_the_remote_protocol_error(body: bytes) -> None:
    for candidate in (body, in_map(body)):
        with suppress(RemoteProtocolError):
            assert isinstance(decode_body(candidate), dict)


@given(st.dictionaries(st.text(), Plain, min_size=1), st.data())
def test_damaged_frames_give_a_map_or_the_remote_protocol_error(
    value: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(encode_frame(value)[4:])
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        assert isinstance(decode_body(bytes(body)), dict)


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        2**64,
        -(2**64) - 1,
        {1: 2},
        {b"a": 1},
        {1, 2},
        object(),
        cyclic(),
        nested(MAX_DEPTH),
        nested(100_000),
        [0] * MAX_ITEMS,
        "x" * MAX_FRAME_BYTES,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_has_no_frame_is_a_local_error(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame({"a": value})


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udcff", "\ufffd"),
        ("\ud83c\udf88", "🎈"),  # two halves make the whole character
    ],
)
def test_lone_surrogates_are_replaced(text: str, sent: str) -> None:
    """Text that jailed code makes up must not be able to end a connection."""
    value = {"a": [{"b" + text: text, "c": (1, text)}]}
    assert decode_body(encode_frame(value)[4:]) == {"a": [{"b" + sent: sent, "c": [1, sent]}]}


def test_reader_refuses_a_length_before_its_bytes_come() -> None:
    reader = FrameReader()
    for length in (MAX_FRAME_BYTES + 1, 0xFFFFFFFF, int.from_bytes(b'{"ns', "big")):
        reader = FrameReader()
        reader.feed(length.to_bytes(4, "big"))
        with pytest.raises(RemoteProtocolError, match=str(length)):
            reader.next_frame()


def test_reader_takes_the_largest_frame() -> None:
    value = {"a": "x" * (MAX_FRAME_BYTES - 8)}
    reader = FrameReader()
    data = encode_frame(value)
    assert len(data) == MAX_FRAME_BYTES + 4
    reader.feed(data)
    assert reader.next_frame() == value
    assert not reader


def test_reader_says_when_nobody_takes_its_frames() -> None:
    reader = FrameReader()
    reader.feed(b"\0" * (2 * MAX_FRAME_BYTES))
    with pytest.raises(LocalProtocolError):
        reader.feed(b"\0" * 100)


def test_an_empty_frame_is_refused() -> None:
    reader = FrameReader()
    reader.feed(b"\0\0\0\0")
    with pytest.raises(RemoteProtocolError):
        reader.next_frame()


@pytest.mark.slow
@pytest.mark.parametrize("item", [b"\x80", pytest.param(b"\xa0", marks=pytest.mark.slow)])
def test_memory_of_the_worst_frame_is_bounded(item: bytes) -> None:
    """16 MiB of empty arrays would be a gigabyte; the limit on items is one on memory."""
    body = in_map(b"\x9a" + struct.pack(">I", MAX_ITEMS - 3) + item * (MAX_ITEMS - 3))
    tracemalloc.start()
    try:
        decode_body(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 1024 * 1024
