"""YAML that was written to hurt, and mistakes that people make: each with its line."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.bridge.definitions import MAX_FRONT_MATTER_CHARACTERS, DefinitionError, parse


def refusal(text: str | bytes) -> tuple[int | None, str]:
    with pytest.raises(DefinitionError) as caught:
        parse(text if isinstance(text, bytes) else text.encode())
    return caught.value.line, caught.value.reason


def front(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "body", ""])


def values(*lines: str) -> dict[str, object]:
    return parse(front(*lines).encode())[0]


def test_front_matter_is_read_with_its_lines() -> None:
    found, lines, body = parse(
        b"---\n# how we deploy\nname: deploy\ntimeout_seconds: 600\nratio: 2.5\n"
        b"env: [A, B]\nlist:\n- x\n- y\nallow_options: true\n"
        b"description: >\n  Deploys\n  it.\nempty:\n---\n\n# Deploy\n\n---\nText\n\n"
    )
    assert found == {
        "name": "deploy",
        "timeout_seconds": 600,
        "ratio": 2.5,
        "env": ["A", "B"],
        "list": ["x", "y"],
        "allow_options": True,
        "description": "Deploys it.\n",
        "empty": None,
    }
    assert list(lines.values()) == [3, 4, 5, 6, 7, 10, 11, 14]
    assert body == "# Deploy\n\n---\nText"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_ends_of_lines_and_byte_order_marks_are_nobodys_business(end: str, mark: str) -> None:
    text = (mark + front("name: x", "n: 1")).replace("\n", end)
    assert parse(text.encode()) == ({"name": "x", "n": 1}, {"name": 2, "n": 3}, "body")


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "it does not begin with front matter"),
        ("# Deploy\n", 1, "it does not begin with front matter"),
        ("\n---\nname: x\n---\n", 1, "it does not begin with front matter"),
        ("----\nname: x\n----\n", 1, "it does not begin with front matter"),
        ("---\nname: x\n", 1, "its front matter has no end"),
        ("---\n---\n", 1, "its front matter is empty"),
    ],
)
def test_a_definition_begins_with_front_matter(text: str, line: int, why: str) -> None:
    at, reason = refusal(text)
    assert at == line
    assert reason.startswith(why)


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        (["a: !!python/object/apply:os.system [id]"], 2, "tags"),
        (["x: y", "a: !ruby/object:X {}"], 3, "tags"),
        (["!!map {a: b}"], 2, "tags"),
        (["a:", "- b", "- !x c"], 4, "tags"),
        (["a: &x b"], 2, "anchors"),
        (["a: &x [b]"], 2, "anchors"),
        (["a: *x"], 2, "aliases"),
        (["a: [*x]"], 2, "aliases"),
        (["a: [[b]]"], 2, "lists and keys within these"),
        (["a: [{b: c}]"], 2, "lists and keys within these"),
        (["? [a]", ": b"], 2, "a key must be one word"),
        (["just text"], 2, "its front matter must be keys"),
        (["a: b", "c: d", "a: e"], 4, "`a` is there twice, first in line 2"),
        (["a: b: c"], 2, "no valid YAML"),
        (["a: b", "\tc: d"], 3, "no valid YAML"),
        (["a: 'b"], 3, "no valid YAML"),
        (["a: @b"], 2, "no valid YAML"),
        (["a: b", "...", "c: d"], 4, "no valid YAML"),
        (["%YAML 1.1", "--- "], 2, "directives"),
        (["a: " + "9" * 5000], None, "no valid YAML"),
        (["a: 2026-13-45"], None, "no valid YAML"),
    ],
)
def test_yaml_beyond_keys_and_lists_is_refused_with_its_line(
    lines: list[str], line: int | None, why: str
) -> None:
    at, reason = refusal(front(*lines))
    assert why in reason
    assert at == line


BOMB = [
    "a: &a [x,x,x,x,x,x,x,x,x]",
    *(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
]


@pytest.mark.parametrize(
    "lines",
    [
        BOMB,
        ["[" * 16_000],
        ["? " * 8_000],
        [" " * n + "a:" for n in range(150)],
        ["a: " + "!" * 16_000],
        ["a: '" + "''" * 8_000],
        ['a: "' + "\\" * 15_999],
        ["a: " + "|" * 16_000],
    ],
    ids=lambda lines: lines[0][:12],
)
def test_bombs_are_refused_with_little_work(lines: list[str]) -> None:
    """Counted in the parser's steps, since a clock would say something about the machine."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(DefinitionError):
            parse(front(*lines).encode())
    finally:
        sys.setprofile(before)
    assert steps < 2_000_000


def test_a_large_front_matter_is_not_parsed() -> None:
    fits = ["a: b", "#" * (MAX_FRONT_MATTER_CHARACTERS - len("\na: b\n\n"))]
    assert values(*fits) == {"a": "b"}
    line, reason = refusal(front(*fits, "x: y"))
    assert (line, "at most 16384 are read" in reason) == (1, True)


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b"\xff\xfe-\0-\0-\0\n\0", 1, "it is not UTF-8 (byte 0xff)"),
        (b"---\nname: \xe9\n---\n", 2, "it is not UTF-8 (byte 0xe9)"),
        (b"---\nname: \xed\xa0\x80\n---\n", 2, "it is not UTF-8 (byte 0xed)"),
        (b"---\nname: a\0b\n---\n", 2, "control character U+0000"),
        (b"---\nname: a\n---\nx\x1b[31m\n", 4, "control character U+001B"),
        ("---\nname: a\u2028b: c\n---\n".encode(), 2, "control character U+2028"),
        ("---\nname: \ufffe\n---\n".encode(), None, "no valid YAML: unacceptable character"),
    ],
)
def test_a_file_that_is_no_text_is_refused(data: bytes, line: int | None, why: str) -> None:
    at, reason = refusal(data)
    assert reason.startswith(why)
    assert at == line


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_anything_is_values_or_a_reason(text: str) -> None:
    with suppress(DefinitionError):
        parse(front(text).encode())
