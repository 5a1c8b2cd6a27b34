"""YAML that somebody else has written: mappings, lists and texts, read with a bound. Pure.

Every scalar is a text, so a version such as `3.10` stays what it is. Anchors are refused: a few
lines with them may mean gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

MAX_DEPTH = 32

Value = str | list["Value"] | dict[str, "Value"]


class YamlError(ValueError):
    """A text is not the YAML that is read here; the message is a clause that says why."""


def parse(text: str) -> Value:
    """Parse the only document of a text.

    Raises:
        YamlError: it is none.
    """
    import yaml  # type: ignore[import-untyped]  # 20 ms, for few builds  # noqa: PLC0415

    library = cast("Any", yaml)  # it has no types
    loader = library.__dict__.get("CSafeLoader", library.SafeLoader)
    builder = _Builder()
    try:
        for event in library.parse(text, Loader=loader):
            builder.take(event, library)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise YamlError(f"it is not valid YAML{where}") from error
    if len(builder.documents) != 1:
        raise YamlError(f"it has {len(builder.documents)} YAML documents, where one is expected")
    return builder.documents[0]


class _Builder:
    """Maker of values from events, without recursion."""

    def __init__(self) -> None:
        self.documents: list[Value] = []
        self._open: list[list[Value] | dict[str, Value]] = []
        self._keys: list[str | None] = []

    def take(self, event: Any, yaml: Any) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise YamlError(f"it has an anchor in line {event.start_mark.line + 1}")
        if isinstance(event, yaml.ScalarEvent):
            self._add(str(event.value), event)
        elif isinstance(event, yaml.CollectionStartEvent):
            value: list[Value] | dict[str, Value]
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._add(value, event)
            self._open.append(value)
            self._keys.append(None)
            if len(self._open) > MAX_DEPTH:
                raise YamlError(f"it is nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()

    def _add(self, value: Value, event: Any) -> None:
        if not self._open:
            self.documents.append(value)
            return
        around, key = self._open[-1], self._keys[-1]
        if isinstance(around, list):
            around.append(value)
        elif key is not None:
            around[key] = value
            self._keys[-1] = None
        elif not isinstance(value, str) or value in around:
            line = event.start_mark.line + 1
            raise YamlError(f"it has a key in line {line} that is no text, or there twice")
        else:
            self._keys[-1] = value


def table(value: object) -> Mapping[str, Value]:
    """Return a mapping; an empty one for anything else."""
    return cast("dict[str, Value]", value) if isinstance(value, dict) else {}


def rows(value: object) -> Sequence[Value]:
    """Return a list; an empty one for anything else."""
    return cast("list[Value]", value) if isinstance(value, list) else ()


def words(value: object) -> str:
    """Return a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""
