"""Lines and what is in them; the C half of `json` driven directly must read as `json` does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm import jsonlines
from nsm.jsonlines import LineBuffer, TooLong

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.data())
def test_lines_come_out_as_they_went_in_however_they_are_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"the rest"
    buffer, out, at = LineBuffer(), list[bytes | TooLong](), 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        out += buffer.feed(stream[at : at + size])
        at += size
    assert out == lines
    assert buffer.rest() == b"the rest"


@given(st.integers(1, 7))
def test_a_line_over_the_limit_is_reported_and_the_next_one_read(size: int) -> None:
    stream = b"x" * 10 + b"\n" + b"y" * 11 + b"\n" + b"z\n"
    buffer, out = LineBuffer(limit=10), list[bytes | TooLong]()
    for at in range(0, len(stream), size):
        out += buffer.feed(stream[at : at + size])
    first, second, third = out
    assert (first, third) == (b"x" * 10, b"z")
    assert isinstance(second, TooLong)
    assert (second.size, second.head, second.tail) == (11, b"y" * 11, b"y" * 11)


def test_only_the_ends_of_a_long_line_are_kept() -> None:
    buffer = LineBuffer(limit=20_000)
    for _ in range(100):
        assert buffer.feed(b"a" * 1000) == []
        assert len(buffer.rest()) <= 20_000
    (line,) = buffer.feed(b"the end\n")
    assert isinstance(line, TooLong)
    assert (line.size, len(line.head)) == (100_007, 4096)
    assert line.tail.endswith(b"aaathe end")
    assert len(line.tail) == 1024


@given(JSON_VALUES)
def test_parse_reads_what_json_writes(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        if not _has_surrogate(text):
            assert jsonlines.parse(text.encode()) == value


@given(st.dictionaries(st.text(), JSON_VALUES))
def test_json_reads_what_dump_writes(message: dict[str, object]) -> None:
    assert json.loads(jsonlines.dump(message)) == message
    assert jsonlines.dump(message) == json.dumps(message).encode()


@given(st.text(alphabet='{}[]",:0123456789.eE+-\\ \tnulltruefalse') | st.text())
def test_parse_accepts_and_refuses_as_json_does(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=_refuse)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            jsonlines.parse(text.encode("utf-8", "surrogatepass"))
    else:
        assert jsonlines.parse(text.encode()) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "no value"),
        (b"   ", "no value"),
        (b"nonsense", "no value"),
        (b'{"a": 1', "delimiter"),
        (b'{"a": 1} {}', "more than one value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[NaN]", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"9" * 5000, "4300 digits"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "no value"),
    ],
)
def test_text_that_is_not_json_is_a_value_error(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        jsonlines.parse(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"id":7,"method":"tools/call","params":{"code":"%s', {"id": 7, "method": "tools/call"}),
        (b' { "id" : "a" , "method": "x", "params', {"id": "a", "method": "x"}),
        (b'{"method":"tools/call","params":{"a":1},"jsonrpc":"2.0","id":9}', {"id": 9}),
        (b'..."},"jsonrpc":"2.0","id":"z"}', {"id": "z", "jsonrpc": "2.0"}),
        (b'..., a"}, "jsonrpc": "2.0", "id": 4 } ', {"id": 4, "jsonrpc": "2.0"}),
        (b'...a, \\"id\\": 3, "}', {}),
        (b'...","x":{"y":1,"id":3}}', {}),  # that id is not the message's
        (b'...,\\"id\\":3}"}', {}),  # nor is one inside a string
        (b'...a,","id":5}', {"id": 5}),
        (b"no json at all", {}),
        (b"", {}),
    ],
)
def test_outline_finds_whose_message_it_was(line: bytes, expected: dict[str, object]) -> None:
    found = jsonlines.outline(TooLong(len(line), line[:60], line))
    assert expected.items() <= found.items()
    assert found.get("id") == expected.get("id")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"id": 1}, 1),
        ({"id": "a"}, "a"),
        ({"id": True}, None),
        ({"id": 1.0}, None),
        ({"id": None}, None),
        ({"id": [1]}, None),
        ({}, None),
    ],
)
def test_ids_that_mcp_allows(message: dict[str, object], expected: object) -> None:
    assert jsonlines.request_id(message) == expected


def _refuse(name: str) -> object:
    raise ValueError(name)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
