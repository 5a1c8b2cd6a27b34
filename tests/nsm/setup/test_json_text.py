"""JSON with comments, changed by position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.setup import json_text

PEOPLES = [
    '{\n\t// mine\n\t"theme": "dark", // of course\n\t"a": [1, 2,],\n}\n',
    '{\r\n    "theme": "dark"\r\n}\r\n',
    '\ufeff{"a":1}',
    '{"a": {"b": [ ]}, }',
    "{\n  // nothing yet\n}",
    "{/* nothing */}\n",
    '{ "a": 1 /* , */ , /* b */ "c": "}" // {\n}',
    '{\n"deep": {"x": "// no comment", "y": "\\"}"},\n\n\n      "odd": 1\n\n}',
    '{"a": 1,\n "b": 2}\n// the end',
    "// only this\n",
    "",
    " \n",
]


@pytest.mark.parametrize("text", PEOPLES)
def test_a_value_comes_and_the_rest_stays(text: str) -> None:
    before = json_text.value_of(text)
    entry: dict[str, object] = {"command": "/bin/nsm-mcp", "args": list[str]()}
    added = json_text.with_value(text, ["servers", "nsm"], entry)
    assert json_text.value_of(added) == {**before, "servers": {"nsm": entry}}
    for comment in ("// mine", "// of course", "/* nothing */", "/* b */", "// the end"):
        assert (comment in added) == (comment in text)
    if "\r\n" in text:
        assert added.count("\n") == added.count("\r\n")


def test_an_entry_is_added_in_the_style_of_its_neighbours() -> None:
    tabs = '{\n\t"servers": {\n\t\t"other": {\n\t\t\t"url": "x" // why\n\t\t} // end\n\t}\n}\n'
    assert json_text.with_value(tabs, ["servers", "nsm"], {"command": "n"}) == (
        '{\n\t"servers": {\n\t\t"other": {\n\t\t\t"url": "x" // why\n\t\t}, // end\n'
        '\t\t"nsm": {\n\t\t\t"command": "n"\n\t\t}\n\t}\n}\n'
    )
    assert json_text.with_value('{"a": 1}', ["b"], 2) == '{"a": 1, "b": 2}'
    assert json_text.with_value('{"a": 1,}', ["b"], 2) == '{"a": 1, "b": 2,}'
    trailing = '{\n  "a": 1, // one\n}'
    assert json_text.with_value(trailing, ["b"], 2) == '{\n  "a": 1, // one\n  "b": 2,\n}'
    assert json_text.with_value('{\n "a": "x" // y\n}', ["a"], "z") == '{\n "a": "z" // y\n}'


def test_items() -> None:
    text = '{\n  "allow": [\n    "a", // keep\n    "b"\n  ]\n}'
    added = json_text.with_item(text, ["allow"], "c")
    assert added == '{\n  "allow": [\n    "a", // keep\n    "b",\n    "c"\n  ]\n}'
    assert json_text.with_item('{"allow": []}', ["allow"], "c") == ('{"allow": [\n  "c"\n]}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1', "line 1: ',' or '}' is missing"),
        ('{\n"a" 1}', "line 2: ':' is missing"),
        ("{\n\na: 1}", "line 3: a name in quotes or '}' is missing"),
        ('{"a": }', "line 1: a value is missing"),
        ('{"a": nope}', "line 1: a value is not JSON"),
        ('{"a": 1} {}', "line 1: something follows its end"),
        ('{"a": 1,, "b": 2}', "line 1: a name in quotes"),
        ('{"a": 1 /* }', "line 1: ',' or '}' is missing"),
        ("[" * 5000, "line 1: it is nested too deeply"),
        ('{"a\n": 1}', "line 1: a name in quotes"),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: ") as refused:
        json_text.parse(text)
    assert why in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.sampled_from([None, 0, 1, 4, "\t"]),
    st.text(min_size=1),
    VALUES,
)
def test_any_object(whole: dict[str, Any], indent: int | str | None, key: str, value: Any) -> None:
    text = json.dumps(whole, indent=indent)
    assert json_text.value_of(text) == whole
    added = json_text.with_value(text, [key], value)
    assert json_text.value_of(added) == {**whole, key: value}
