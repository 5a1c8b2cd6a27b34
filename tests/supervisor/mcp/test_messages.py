"""Lines of JSON-RPC: what is served, what is refused, and how that is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ErrorData, JSONRPCError, JSONRPCResponse

from nsm.jsonlines import MAX_LINE_BYTES, TooLong
from nsmd.mcp import messages
from nsmd.mcp.messages import MAX_BARE_BYTES, MAX_DEPTH, MAX_VALUES, ErrorAnswer
from nsmd.mcp.render import ToolReply
from nsmd.model.values import MAX_CODE_BYTES

PARSE, REQUEST, PARAMS = -32700, -32600, -32602


def deep(levels: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + (
        b"[" * levels + b"]" * levels + b"}}"
    )


REFUSED_LINES: list[tuple[bytes, object, int, str]] = [
    (b"garbage", None, PARSE, "Parse error"),
    (b'{"jsonrpc":"2.0","id":1,"method":"m"', None, PARSE, "Parse error"),
    (b'{"jsonrpc":"2.0","id":NaN,"method":"m"}', None, PARSE, "NaN is not JSON"),
    (b'{"id":' + b"9" * 5000 + b"}", None, PARSE, "4300 digits"),
    (b'{"jsonrpc":"2.0","id":8,"method":"m","params":{"a":Infinity}}', 8, PARSE, "Infinity is not"),
    (b'{"params":{"a":NaN},"method":"m","jsonrpc":"2.0","id":"x"}', "x", PARSE, "NaN is not"),
    (b'{"jsonrpc":"2.0","id":8,"result":{"a":Infinity}}', None, PARSE, "Infinity is not"),
    (b'[{"jsonrpc":"2.0","id":8,"method":"m"},NaN]', None, PARSE, "NaN is not"),
    (b"\xff\xfe", None, PARSE, "not UTF-8"),
    (b"[" * 200_000, None, PARSE, "nested too deeply"),
    (b"[]", None, REQUEST, "an empty batch"),
    (b"7", None, REQUEST, "must be an object"),
    (b'"text"', None, REQUEST, "must be an object"),
    (b"null", None, REQUEST, "must be an object"),
    (b"{}", None, REQUEST, "neither a method nor a result"),
    (b'{"jsonrpc":"2.0","id":4}', 4, REQUEST, "neither a method nor a result"),
    (b'{"jsonrpc":"2.0","id":null,"method":"m"}', None, REQUEST, "id must be"),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', None, REQUEST, "id must be"),
    (b'{"jsonrpc":"2.0","id":true,"method":"m"}', None, REQUEST, "id must be"),
    (b'{"jsonrpc":"2.0","id":[1],"method":"m"}', None, REQUEST, "id must be"),
    (b'{"jsonrpc":"2.0","id":5,"method":7}', 5, REQUEST, "method is not"),
    (b'{"jsonrpc":"1.0","id":5,"method":"m"}', 5, REQUEST, "jsonrpc is not"),
    (b'{"id":"x","method":"m"}', "x", REQUEST, "jsonrpc is not"),
    (b'{"jsonrpc":"2.0","id":6,"method":"m","params":[1]}', 6, PARAMS, "params must be"),
    (b'{"jsonrpc":"2.0","id":6,"method":"m","params":"x"}', 6, PARAMS, "params must be"),
    (b'{"jsonrpc":"2.0","id":"\\ud800","method":7}', "\ud800", REQUEST, "method is not"),
]


@pytest.mark.parametrize(("line", "known", "code", "says"), REFUSED_LINES)
def test_a_line_that_is_no_message_is_refused(
    line: bytes, known: object, code: int, says: str
) -> None:
    (refusal,) = messages.decode(line)
    assert isinstance(refusal, ErrorAnswer)
    assert (refusal.id, refusal.code) == (known, code)
    assert says in refusal.message
    sent = json.loads(messages.encode(messages.error_message(refusal)))
    assert sent == {
        "jsonrpc": "2.0",
        "id": known,
        "error": {"code": code, "message": refusal.message},
    }


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"m","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":7}',
        b'{"jsonrpc":"2.0","id":1,"error":"x"}',
    ],
)
def test_wrong_messages_that_nobody_waits_for_are_dropped(line: bytes) -> None:
    assert messages.decode(line) == []


def test_a_batch_of_too_many_is_refused_as_one() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert (
        len(messages.decode(b"[" + b",".join([ping] * messages.MAX_BATCH) + b"]"))
        == messages.MAX_BATCH
    )
    (refusal,) = messages.decode(b"[" + b",".join([ping] * (messages.MAX_BATCH + 1)) + b"]")
    assert isinstance(refusal, ErrorAnswer)
    assert (refusal.id, refusal.message) == (
        None,
        "Invalid request: a batch of 1001 messages; at most 1000 are taken",
    )


@given(st.binary() | st.text().map(str.encode))
def test_garbage_gives_refusals_and_nothing_else(line: bytes) -> None:
    for message in messages.decode(line):
        assert isinstance(message, ErrorAnswer)


JSON_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | JSON_ANY,
            "id": JSON_ANY,
            "method": st.just("tools/call") | JSON_ANY,
            "params": JSON_ANY,
            "result": JSON_ANY,
            "error": JSON_ANY,
        },
    )
)
def test_any_object_is_served_refused_or_dropped(message: dict[str, Any]) -> None:
    for item in messages.decode(json.dumps(message).encode()):
        if isinstance(item, ErrorAnswer):
            messages.encode(messages.error_message(item))


def test_half_a_surrogate_is_sent_escaped() -> None:
    error = ErrorData(code=1, message="m", data={"requested": "\ud800"})
    line = messages.encode(JSONRPCError(jsonrpc="2.0", id=1, error=error))
    assert json.loads(line)["error"]["data"] == {"requested": "\ud800"}


def test_a_line_over_the_limit_is_answered_to_its_sender() -> None:
    head = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run","code":"xxx'
    answer = messages.too_long(TooLong(20_000_000, head, b'xxx"}}'))
    assert isinstance(answer, JSONRPCResponse)
    assert answer.id == 7
    assert answer.result["isError"] is True
    assert "20,000,000 bytes; the limit is 16,777,216" in answer.result["content"][0]["text"]

    other = messages.too_long(TooLong(20_000_000, b'{"id":8,"method":"x","y', b'"}'))
    assert isinstance(other, JSONRPCError)
    assert other.id == 8

    unknown = messages.too_long(TooLong(20_000_000, b"xxxx", b"xxxx"))
    assert isinstance(unknown, JSONRPCError)
    assert unknown.id is None


def test_a_line_of_too_much_is_answered_to_its_sender() -> None:
    head = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run","x":['
    answer = messages.misshapen(head + b"1," * 10_000 + b"1]}}", "holds too much")
    assert isinstance(answer, JSONRPCResponse)
    assert answer.id == 7
    assert answer.result["isError"] is True
    text = answer.result["content"][0]["text"]
    assert "The message holds too much, and was not read further." in text
    assert "Nothing was run. Write data as text" in text

    last = b'{"x":[' + b"1," * 10_000 + b'1],"method":"x","jsonrpc":"2.0","id":"8"}'
    other = messages.misshapen(last, "is deep")
    assert isinstance(other, JSONRPCError)
    assert other.id == "8"
    assert other.error.code == REQUEST

    unknown = messages.misshapen(b"[" * 10_000, "is deep")
    assert isinstance(unknown, JSONRPCError)
    assert unknown.id is None

    error = messages.misshapen_error(head + b"1," * 10_000, "is deep")
    assert (error.id, error.error.code) == (7, REQUEST)
    assert error.error.message.startswith("The message is deep, and")


def test_an_answer_that_no_line_has_room_for_is_an_error_and_not_lost() -> None:
    reply = ToolReply(text="\0" * (MAX_LINE_BYTES // 6 + 1), is_error=False, meta={})
    response = JSONRPCResponse(jsonrpc="2.0", id=7, result=messages.result_map(reply))
    answer = json.loads(messages.encode(response))
    assert answer["id"] == 7
    assert answer["result"]["isError"] is True
    (content,) = answer["result"]["content"]
    assert "the limit is 16,777,216" in content["text"]
    assert "The code was run." in content["text"]


# How much a message may be made of: what is refused unparsed, and what must never be.


VALUES = f"holds more than {MAX_VALUES:,} values"
BARE = f"has more than {MAX_BARE_BYTES:,} bytes outside of strings"
DEPTH = f"is nested more than {MAX_DEPTH} deep"

MANY = MAX_VALUES + 1
LARGE = 4 * 1024 * 1024


def call_with(arguments: bytes) -> bytes:
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":'
    return head + arguments + b"}}"


def row(item: bytes, number: int = MANY) -> bytes:
    return b"[" + b",".join([item] * number) + b"]"


def nested(levels: int) -> bytes:
    """Make JSON of this many levels, counting the three around it."""
    return call_with(b"[" * (levels - 2) + b"]" * (levels - 2))


REFUSED = {
    "numbers": (call_with(row(b"1")), VALUES),
    "texts": (call_with(row(b'""')), VALUES),
    "objects": (call_with(row(b"{}")), VALUES),
    "arrays": (call_with(row(b"[]")), VALUES),
    "spaced": (call_with(row(b" 1\t\n")), VALUES),
    "members": (call_with(b"{" + b",".join([b'"a":1'] * MANY) + b"}"), VALUES),
    "quotes that are escaped": (call_with(row(b'"\\""')), VALUES),
    "backslashes that are": (call_with(row(b'"\\\\"')), VALUES),
    "and both": (call_with(row(b'"\\\\\\""')), VALUES),
    "brackets in texts": (call_with(row(b'"]}[{,"')), VALUES),
    "behind a long text": (call_with(b'["' + b"x" * LARGE + b'",' + row(b"{}") + b"]"), VALUES),
    "a batch": (row(b"{}"), VALUES),
    "never closed": (b"[" * MANY, VALUES),
    "never closed, with names": (b'{"":' * MANY, VALUES),
    "texts one behind the other": (b"," * MANY + b'"' * (5 * MAX_VALUES), VALUES),
    "whole numbers": (call_with(row(b"1" * 4300, 300)), BARE),
    "other numbers": (call_with(row(b"1." + b"1" * 4300, 300)), BARE),
    "spaces": (call_with(row(b" " * 4300 + b"1", 300)), BARE),
    "deep": (nested(MAX_DEPTH + 1), DEPTH),
    "deep names": (call_with(b'{"a":' * 70 + b"1" + b"}" * 70), DEPTH),
    "deep once": (call_with(b"[" + row(b"[]", 100) + b"," + b"[" * 62 + b"]" * 62 + b"]"), DEPTH),
    "UTF-16": (call_with(row(b"1", 3)).decode().encode("utf-16"), "is not UTF-8"),
    "UTF-16 unmarked": (call_with(row(b"1", 3)).decode().encode("utf-16-le"), "is not UTF-8"),
    "UTF-32": (call_with(row(b"1", 3)).decode().encode("utf-32-be"), "is not UTF-8"),
}


@pytest.mark.parametrize(("message", "why"), REFUSED.values(), ids=REFUSED)
def test_a_message_of_too_much_is_refused_unparsed(message: bytes, why: str) -> None:
    assert messages.why_too_complex(message) == why


CODES = {
    "plain": "x",
    "commas": ",",
    "brackets": "[",
    "braces": "{}",
    "quotes": '"',
    "backslashes": "\\",
    "both": '\\"',
    "lines": "\n",
    "other letters": "\u0122\u2c22",
    "of two halves": "\U0001f600",
    "code": 'x = {"a": [1, 2, "\\"b\\\\"], \'c\': "[["}  # , and\n',
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("piece", CODES.values(), ids=CODES)
def test_code_of_any_characters_is_not_too_much(piece: str, ascii_only: bool) -> None:
    code = piece * (MAX_CODE_BYTES // 16 // len(piece.encode()))
    arguments = {"code": code, "env": "python"}
    message = call_with(json.dumps(arguments, ensure_ascii=ascii_only).encode())
    assert messages.why_too_complex(message) == ""


@pytest.mark.parametrize(
    "message",
    [
        call_with(row(b"1", MAX_VALUES - 10)),
        call_with(row(b'"-x"', 16_000)),  # arguments of a program, as many as are looked at
        call_with(b"[" + row(b"[]", 1000) + b"," + row(b"{}", 1000) + b"]"),
        nested(MAX_DEPTH),
        call_with(b" " * (MAX_BARE_BYTES - 1000) + b"[]"),
        b"",
        b"{",
        b'"',
        b"\\",
    ],
)
def test_messages_up_to_the_limits_are_not_too_much(message: bytes) -> None:
    assert messages.why_too_complex(message) == ""


Json = str | int | bool | None | list["Json"] | dict[str, "Json"]


def values_of(value: Json) -> int:
    """Commas and opening brackets outside of its strings."""
    if isinstance(value, dict | list):
        inside = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(0, len(inside) - 1) + sum(map(values_of, inside))
    return 0


def depth_of(value: Json) -> int:
    if isinstance(value, dict | list):
        inside = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(map(depth_of, inside), default=0)
    return 0


TEXTS = st.text('\\"[]{},:a\n\u0122\U0001f600')
VALUES_OF_JSON = st.recursive(
    TEXTS | st.integers() | st.none() | st.booleans(),
    lambda some: st.lists(some) | st.dictionaries(TEXTS, some),
)


@given(value=VALUES_OF_JSON, ascii_only=st.booleans(), space=st.sampled_from([None, 1]))
def test_values_and_depth_are_counted_as_a_parser_would(
    value: Json, ascii_only: bool, space: int | None
) -> None:
    values, depth = values_of(value), depth_of(value)
    message = json.dumps(value, ensure_ascii=ascii_only, indent=space).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "MAX_DEPTH", depth)
        patch.setattr(messages, "MAX_VALUES", max(1, values))
        assert messages.why_too_complex(message) == ""
        if values > 1:
            patch.setattr(messages, "MAX_VALUES", values - 1)
            assert messages.why_too_complex(message).startswith("holds more than")
            patch.setattr(messages, "MAX_VALUES", values)
        if depth > 0:
            patch.setattr(messages, "MAX_DEPTH", depth - 1)
            assert messages.why_too_complex(message).startswith("is nested more than")
