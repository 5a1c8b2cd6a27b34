"""Untrusted YAML between `---` lines; mistakes come with their lines.

It accepts only what definitions need: one mapping of plain keys to single values or lists of them.
It reads the parser's events instead of constructed objects. So tags, anchors and aliases, which
make YAML dangerous or large, are refused where they stand, and nothing nests.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, cast

import yaml  # type: ignore[import-untyped]

from nsm.dataclass import dataclass

MAX_FRONT_MATTER_CHARACTERS = 16 * 1024
"""Largest front matter: the parser takes some 10 us per character, in the thread that reads."""

MAX_DIGITS = 18
"""Largest number of digits of a number; no value here needs more."""

_CONTROLS = frozenset(("Cc", "Cs", "Zl", "Zp"))

Scalar = str | int | float | bool | None


class FrontMatterError(Exception):
    """A file is not a valid definition.

    Attributes:
        reason: what was found, and what was expected.
        line: line in the file, from 1; None if the problem is in no single line.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Value of a key.

    Attributes:
        value: one value, or a list of them.
        line: line of the key in the file, from 1.
    """

    value: Scalar | tuple[Scalar, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a file.

    Attributes:
        values: values of the front matter, by key, in its order.
        body: text after it, with newlines as line ends, without empty lines around.
    """

    values: Mapping[str, Value]
    body: str


def read(data: bytes) -> Parts:
    """Split a file into its parts.

    Raises:
        FrontMatterError: it is no text, or has no valid front matter.
    """
    front, body = _split(_text(data))
    if len(front) > MAX_FRONT_MATTER_CHARACTERS:
        raise FrontMatterError(
            f"the front matter has {len(front)} characters; at most "
            f"{MAX_FRONT_MATTER_CHARACTERS} are read",
            1,
        )
    return Parts(values=_Reader(front).read(), body=body.strip("\n"))


def _text(data: bytes) -> str:
    """Decode a file's text, with newlines as line ends.

    Raises:
        FrontMatterError: it is no text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise FrontMatterError(f"it is not UTF-8 (byte {data[error.start]:#04x})", at) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        for character in line:
            if character != "\t" and is_control(character):
                raise FrontMatterError(f"control character U+{ord(character):04X}", number)
    return text


def is_control(character: str) -> bool:
    """Return whether a character must not be shown: a control character, half of one, or a
    separator that ends lines only for YAML and some terminals."""
    return not character.isprintable() and unicodedata.category(character) in _CONTROLS


def _split(text: str) -> tuple[str, str]:
    """Split a text into the front matter, with an empty line in place of its first, and the rest.

    Raises:
        FrontMatterError: there is none.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise FrontMatterError("it does not begin with front matter: a line `---` is expected", 1)
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(["", *lines[1:number]]) + "\n", "\n".join(lines[number + 1 :])
    raise FrontMatterError("its front matter has no end: a second line `---` is expected", 1)


class _Reader:
    """Reader of a front matter's events.

    Args:
        text: front matter whose line 1 is empty, so that line numbers are those of the file.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._resolver = yaml.SafeLoader("")

    def read(self) -> dict[str, Value]:
        """Read the values.

        Raises:
            FrontMatterError: there is something else in it.
        """
        try:
            return self._document(_events(self._text))
        except yaml.MarkedYAMLError as error:
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise FrontMatterError(
                f"no valid YAML: {what}", self._line(error.problem_mark)
            ) from None
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            character = self._text[error.position]
            raise FrontMatterError(
                f"no valid YAML: the character U+{ord(character):04X}", line
            ) from None

    def _document(self, events: Iterator[yaml.Event]) -> dict[str, Value]:
        next(events)  # of the stream
        first = next(events)
        if isinstance(first, yaml.StreamEndEvent):
            raise FrontMatterError("its front matter is empty: `name: ...` is expected", 1)
        if isinstance(first, yaml.DocumentStartEvent) and first.explicit:
            self._refuse(first, "directives and further documents are not taken")
        top = next(events)
        self._check(top)
        if not isinstance(top, yaml.MappingStartEvent):
            self._refuse(top, "its front matter must be keys with values, as `name: deploy`")
        values: dict[str, Value] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event)
            if key in values:
                self._refuse(event, f"`{key}` is there twice, first in line {values[key].line}")
            values[key] = self._value(next(events), events, self._line(event.start_mark))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._refuse(event, "directives and further documents are not taken")
        return values

    def _key(self, event: yaml.Event) -> str:
        self._check(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, "a key must be one word")
        return str(event.value)

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], line: int) -> Value:
        self._check(event)
        if isinstance(event, yaml.ScalarEvent):
            return Value(value=self._scalar(event), line=line)
        if not isinstance(event, yaml.SequenceStartEvent):
            self._refuse(event, "keys within keys are not taken")
        items: list[Scalar] = []
        for item in events:
            if isinstance(item, yaml.SequenceEndEvent):
                break
            self._check(item)
            if not isinstance(item, yaml.ScalarEvent):
                self._refuse(item, "lists within lists, and keys within lists, are not taken")
            items.append(self._scalar(item))
        return Value(value=tuple(items), line=line)

    def _check(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, f"aliases (`*{event.anchor}`) are not taken")
        if getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors (`&...`) are not taken; quote text that begins with `&`")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "tags (`!...`) are not taken; quote text that begins with `!`")

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        text = str(event.value)
        if event.style is not None:
            return text
        kind = _kind(self._resolver, text)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in {"yes", "true", "on"}
        if kind == "int":
            if not re.fullmatch(rf"[-+]?(0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})", text):
                self._refuse(event, f"`{text:.40}` is no plain number; quote it if it is text")
            return int(text)
        if kind == "float":
            if not re.fullmatch(rf"[-+]?[0-9]{{1,{MAX_DIGITS}}}\.[0-9]{{0,{MAX_DIGITS}}}", text):
                self._refuse(event, f"`{text:.40}` is no plain number; quote it if it is text")
            return float(text)
        return text  # or it only looks like something else, such as a date

    def _refuse(self, event: yaml.Event, reason: str) -> NoReturn:
        raise FrontMatterError(reason, self._line(event.start_mark))

    def _line(self, mark: yaml.Mark | None) -> int:
        # Only newlines end lines: YAML knows further line ends, which editors do not.
        return 1 if mark is None else self._text.count("\n", 0, mark.index) + 1


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield events of the pure Python parser: the one in C would report mistakes differently."""
    parse = cast("Callable[..., Iterator[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
    return parse(text, Loader=yaml.SafeLoader)


def _kind(resolver: yaml.SafeLoader, text: str) -> str:
    """Return the type that YAML 1.1 gives plain text, e.g. `int`."""
    resolve = cast("Callable[..., str]", resolver.resolve)  # pyright: ignore[reportUnknownMemberType]
    return resolve(yaml.ScalarNode, text, (True, False)).removeprefix("tag:yaml.org,2002:")
