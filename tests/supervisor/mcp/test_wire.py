"""Lines of JSON-RPC: what is served, what is refused, and how that is said."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

import pictures
from nsm.jsonlines import MAX_LINE_BYTES, TooLong
from nsm.wire.images import decode
from nsmd.mcp import messages
from nsmd.mcp.messages import ErrorAnswer
from nsmd.mcp.render import ToolReply

PARSE, REQUEST, PARAMS = -32700, -32600, -32602


def deep(levels: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + (
        b"[" * levels + b"]" * levels + b"}}"
    )


REFUSED: list[tuple[bytes, object, int, str]] = [
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


@pytest.mark.parametrize(("line", "known", "code", "says"), REFUSED)
def test_refused(line: bytes, known: object, code: int, says: str) -> None:
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
    ("line", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}', JSONRPCRequest),
        (b'{"jsonrpc":"2.0","id":"a","method":"m","params":null}', JSONRPCRequest),
        (b' \t{"params":{},"method":"m","id":1,"jsonrpc":"2.0"}\r', JSONRPCRequest),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","extra":1}', JSONRPCRequest),
        (deep(60), JSONRPCRequest),
        (b'{"jsonrpc":"2.0","method":"m"}', JSONRPCNotification),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', JSONRPCResponse),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}', JSONRPCError),
    ],
)
def test_served(line: bytes, kind: type) -> None:
    (message,) = messages.decode(line)
    assert type(message) is kind


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"m","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":7}',
        b'{"jsonrpc":"2.0","id":1,"error":"x"}',
    ],
)
def test_nobody_waits_for_an_answer_to_these(line: bytes) -> None:
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


def test_a_batch_is_its_messages() -> None:
    line = b'[{"jsonrpc":"2.0","id":1,"method":"m"}, 7, {"jsonrpc":"2.0","method":"n"}]'
    request, refusal, notification = messages.decode(line)
    assert isinstance(request, JSONRPCRequest)
    assert isinstance(refusal, ErrorAnswer)
    assert isinstance(notification, JSONRPCNotification)


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


def test_what_no_utf8_has_is_sent_escaped() -> None:
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


def test_images_come_after_the_text_in_order() -> None:
    images = (
        decode("image/jpeg", pictures.text(pictures.jpeg())),
        decode("image/png", base64.encodebytes(pictures.png()).decode()),
    )
    result = messages.result_map(
        ToolReply(text="two", is_error=False, meta={"a": 1}, images=images)
    )
    assert result == {
        "content": [
            {"type": "text", "text": "two"},
            {"type": "image", "mimeType": "image/jpeg", "data": pictures.text(pictures.jpeg())},
            {"type": "image", "mimeType": "image/png", "data": pictures.text(pictures.png())},
        ],
        "isError": False,
        "_meta": {"a": 1},
    }


def test_an_answer_that_no_line_has_room_for_is_an_error_and_not_lost() -> None:
    reply = ToolReply(text="\0" * (MAX_LINE_BYTES // 6 + 1), is_error=False, meta={})
    response = JSONRPCResponse(jsonrpc="2.0", id=7, result=messages.result_map(reply))
    answer = json.loads(messages.encode(response))
    assert answer["id"] == 7
    assert answer["result"]["isError"] is True
    (content,) = answer["result"]["content"]
    assert "the limit is 16,777,216" in content["text"]
    assert "The code was run." in content["text"]
