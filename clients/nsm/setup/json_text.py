"""JSON with comments and trailing commas, changed by position: every other byte stays. Pure.

People write these files, so comments, indentation, order and line ends are theirs. A member or an
item is added after the last one, written as that one is.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from nsm.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_DEPTH = 200
"""Nested objects and arrays; editors' own have a handful."""

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n]*?\*/)*(?://[^\r\n]*)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"[-+.\w]+")


@dataclass(slots=True, kw_only=True)
class Node:
    """A value, and the place in the text of its first character and of the one behind it."""

    start: int
    end: int
    value: Any
    elements: list[Element] = field(default_factory=list["Element"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A member of an object, or an item of an array, which has no key; where it starts, and where
    the comma behind it is."""

    key: str | None
    start: int
    node: Node
    comma: int | None


def parse(text: str) -> Node | None:
    """Parse a text; None where it is empty but for comments.

    Raises:
        ValueError: it is no JSON, apart from comments and trailing commas; says the line.
    """
    place = _skip(text, 0)
    if place == len(text):
        return None
    node = _value(text, place, 0)
    if (end := _skip(text, node.end)) != len(text):
        raise _wrong(text, end, "something follows its end")
    return node


def value_of(text: str) -> Any:
    """Read a text; an empty object for an empty text.

    Raises:
        ValueError: as `parse`.
    """
    node = parse(text)
    return {} if node is None else node.value


def with_value(text: str, keys: Sequence[str], value: object) -> str:
    """The text with a value at a place; objects on the way are made where they are missing.

    What there is on the way has to be objects.

    Raises:
        ValueError: it is no JSON.
    """
    root = parse(text)
    if root is None:
        newline = "\r\n" if "\r\n" in text else "\n"
        head = text if not text.strip("\ufeff \t\r\n") else text.rstrip() + newline
        return f"{head}{_rendered(_nested(keys, value), '  ', '', newline)}{newline}"
    node = root
    for depth, key in enumerate(keys):
        element = _member(node, key)
        if element is None:
            return _added(text, root, node, key, _nested(keys[depth + 1 :], value))
        node = element.node
    style = _Style(text, root)
    written = _rendered(value, style.unit, style.indent_at(node.start), style.newline)
    return text[: node.start] + written + text[node.end :]


def with_item(text: str, keys: Sequence[str], item: str) -> str:
    """The text with an item at the end of the array that is at a place.

    Raises:
        ValueError: it is no JSON, or has no such array.
    """
    root = parse(text)
    node = root
    for key in keys:
        element = None if node is None else _member(node, key)
        node = None if element is None else element.node
    if root is None or node is None:
        raise ValueError(f"there is no {'.'.join(keys)}")
    return _added(text, root, node, None, item)


def _added(text: str, root: Node, node: Node, key: str | None, value: object) -> str:
    """Add an element at the end of an object or an array."""
    style = _Style(text, root)
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if not node.elements:
        base = style.indent_at(node.start)
        inner = base + style.unit
        content_end = node.start + 1 + len(text[node.start + 1 : node.end - 1].rstrip())
        written = name + _rendered(value, style.unit, inner, style.newline)
        body = f"{style.newline}{inner}{written}{style.newline}{base}"
        return text[:content_end] + body + text[node.end - 1 :]
    last = node.elements[-1]
    if "\n" not in text[node.start : last.start]:
        written = name + json.dumps(value, ensure_ascii=False)
        end = last.node.end if last.comma is None else last.comma + 1
        written = f", {written}" if last.comma is None else f" {written},"
        return text[:end] + written + text[end:]
    indent = style.indent_at(last.start)
    written = f"{style.newline}{indent}{name}{_rendered(value, style.unit, indent, style.newline)}"
    end = last.node.end if last.comma is None else last.comma + 1
    rest = _REST_OF_LINE.match(text, end)
    comment_end = end + len(rest[0].rstrip()) if rest else end
    if last.comma is None:
        return text[:end] + "," + text[end:comment_end] + written + text[comment_end:]
    return text[:comment_end] + written + "," + text[comment_end:]


class _Style:
    """Line ends and indentation of a text."""

    def __init__(self, text: str, root: Node) -> None:
        self._text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.unit = "  "
        if root.elements and "\n" in text[root.start : root.elements[0].start]:
            first = self.indent_at(root.elements[0].start)
            outer = self.indent_at(root.start)
            self.unit = first.removeprefix(outer) or "  "

    def indent_at(self, place: int) -> str:
        """The white space that the line of a place begins with."""
        line = self._text[self._text.rfind("\n", 0, place) + 1 : place].lstrip("\ufeff")
        return line[: len(line) - len(line.lstrip(" \t"))]


def _rendered(value: object, unit: str, indent: str, newline: str) -> str:
    text = json.dumps(value, indent=unit, ensure_ascii=False)
    return text.replace("\n", newline + indent)


def _nested(keys: Sequence[str], value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def _member(node: Node, key: str) -> Element | None:
    """The member that counts: of several with one key, the last."""
    return next((each for each in reversed(node.elements) if each.key == key), None)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _value(text: str, place: int, depth: int) -> Node:
    if depth > _MAX_DEPTH:
        raise _wrong(text, place, "it is nested too deeply")
    opened = text[place : place + 1]
    if opened in ("{", "["):
        return _container(text, place, depth)
    found = _STRING.match(text, place) if opened == '"' else _SCALAR.match(text, place)
    if found is None:
        raise _wrong(text, place, "a value is missing")
    try:
        value: object = json.loads(found[0])
    except ValueError:
        raise _wrong(text, place, "a value is not JSON") from None
    return Node(start=place, end=found.end(), value=value)


def _container(text: str, start: int, depth: int) -> Node:
    close = "}" if text[start] == "{" else "]"
    elements: list[Element] = []
    place = _skip(text, start + 1)
    while text[place : place + 1] != close:
        if elements and elements[-1].comma is None:
            raise _wrong(text, place, f"',' or {close!r} is missing")
        first, key = place, None
        if close == "}":
            found = _STRING.match(text, place)
            if found is None:
                raise _wrong(text, place, f"a name in quotes or {close!r} is missing")
            key = _value(text, place, depth).value
            place = _skip(text, found.end())
            if text[place : place + 1] != ":":
                raise _wrong(text, place, "':' is missing")
            place = _skip(text, place + 1)
        node = _value(text, place, depth + 1)
        place = _skip(text, node.end)
        comma = place if text[place : place + 1] == "," else None
        elements.append(Element(key=key, start=first, node=node, comma=comma))
        if comma is not None:
            place = _skip(text, comma + 1)
    value: object = (
        {cast("str", each.key): each.node.value for each in elements}
        if close == "}"
        else [each.node.value for each in elements]
    )
    return Node(start=start, end=place + 1, value=value, elements=elements)


def _wrong(text: str, place: int, what: str) -> ValueError:
    return ValueError(f"line {text.count(chr(10), 0, place) + 1}: {what}")
