"""How much a message may be made of: what is refused unparsed, and what must never be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.mcp import messages
from nsmd.mcp.messages import MAX_BARE_BYTES, MAX_DEPTH, MAX_VALUES
from nsmd.model.values import MAX_CODE_BYTES

VALUES = f"holds more than {MAX_VALUES:,} values"
BARE = f"has more than {MAX_BARE_BYTES:,} bytes outside of strings"
DEPTH = f"is nested more than {MAX_DEPTH} deep"

MANY = MAX_VALUES + 1
LARGE = 4 * 1024 * 1024


def call(arguments: bytes) -> bytes:
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":'
    return head + arguments + b"}}"


def row(item: bytes, number: int = MANY) -> bytes:
    return b"[" + b",".join([item] * number) + b"]"


def nested(levels: int) -> bytes:
    """Make JSON of this many levels, counting the three around it."""
    return call(b"[" * (levels - 2) + b"]" * (levels - 2))


REFUSED = {
    "numbers": (call(row(b"1")), VALUES),
    "texts": (call(row(b'""')), VALUES),
    "objects": (call(row(b"{}")), VALUES),
    "arrays": (call(row(b"[]")), VALUES),
    "spaced": (call(row(b" 1\t\n")), VALUES),
    "members": (call(b"{" + b",".join([b'"a":1'] * MANY) + b"}"), VALUES),
    "quotes that are escaped": (call(row(b'"\\""')), VALUES),
    "backslashes that are": (call(row(b'"\\\\"')), VALUES),
    "and both": (call(row(b'"\\\\\\""')), VALUES),
    "brackets in texts": (call(row(b'"]}[{,"')), VALUES),
    "behind a long text": (call(b'["' + b"x" * LARGE + b'",' + row(b"{}") + b"]"), VALUES),
    "a batch": (row(b"{}"), VALUES),
    "never closed": (b"[" * MANY, VALUES),
    "never closed, with names": (b'{"":' * MANY, VALUES),
    "texts one behind the other": (b"," * MANY + b'"' * (5 * MAX_VALUES), VALUES),
    "whole numbers": (call(row(b"1" * 4300, 300)), BARE),
    "other numbers": (call(row(b"1." + b"1" * 4300, 300)), BARE),
    "spaces": (call(row(b" " * 4300 + b"1", 300)), BARE),
    "deep": (nested(MAX_DEPTH + 1), DEPTH),
    "deep names": (call(b'{"a":' * 70 + b"1" + b"}" * 70), DEPTH),
    "deep once": (call(b"[" + row(b"[]", 100) + b"," + b"[" * 62 + b"]" * 62 + b"]"), DEPTH),
    "UTF-16": (call(row(b"1", 3)).decode().encode("utf-16"), "is not UTF-8"),
    "UTF-16 unmarked": (call(row(b"1", 3)).decode().encode("utf-16-le"), "is not UTF-8"),
    "UTF-32": (call(row(b"1", 3)).decode().encode("utf-32-be"), "is not UTF-8"),
}


@pytest.mark.parametrize(("message", "why"), REFUSED.values(), ids=REFUSED)
def test_too_much(message: bytes, why: str) -> None:
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
def test_code_may_be_of_anything(piece: str, ascii_only: bool) -> None:
    code = piece * (MAX_CODE_BYTES // 16 // len(piece.encode()))
    arguments = {"code": code, "env": "python"}
    message = call(json.dumps(arguments, ensure_ascii=ascii_only).encode())
    assert messages.why_too_complex(message) == ""


@pytest.mark.parametrize(
    "message",
    [
        call(row(b"1", MAX_VALUES - 10)),
        call(row(b'"-x"', 16_000)),  # arguments of a program, as many as are looked at
        call(b"[" + row(b"[]", 1000) + b"," + row(b"{}", 1000) + b"]"),
        nested(MAX_DEPTH),
        call(b" " * (MAX_BARE_BYTES - 1000) + b"[]"),
        b"",
        b"{",
        b'"',
        b"\\",
    ],
)
def test_what_is_not_too_much(message: bytes) -> None:
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
def test_it_is_counted_as_a_parser_would(value: Json, ascii_only: bool, space: int | None) -> None:
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
