"""Text files that somebody else has written, and YAML: read with a bound, waiting for nobody."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any, cast

from nsm.below import read_file


class TextFileError(Exception):
    """A file cannot be used; the message is a clause that says why."""


def read_text(path: str, max_bytes: int, *, follow: bool = False, root: int | None = None) -> str:
    """Read a regular file of UTF-8 text, of at most so many bytes, or raise TextFileError.

    Args:
        follow: it lies in a directory in which no code can put a link.
        root: descriptor of a directory below which it has to lie, with no link on its way; `path`
            is relative to it.
    """
    try:
        # A link in a project may have been put there by code, to see what is in another file.
        data = read_file(path, max_bytes + 1, root=root, links=follow)
        if len(data) > max_bytes:
            raise TextFileError(f"it is larger than {max_bytes} bytes")
        return data.decode()
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise TextFileError(
                "it is a symbolic link, or behind one: name the file itself"
            ) from error
        if error.errno == errno.EINVAL:
            raise TextFileError("it is not a regular file") from error
        raise TextFileError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TextFileError("it is not UTF-8 text") from error


MAX_YAML_DEPTH = 32

Value = str | list["Value"] | dict[str, "Value"]


class YamlError(ValueError):
    """A text is not the YAML that is read here; the message is a clause that says why."""


def parse_yaml(text: str) -> Value:
    """Parse the only document of a text, or raise YamlError."""
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
            if len(self._open) > MAX_YAML_DEPTH:
                raise YamlError(f"it is nested more than {MAX_YAML_DEPTH} deep")
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
            raise YamlError(f"it has a key in line {line} that is not text, or there twice")
        else:
            self._keys[-1] = value


def table(value: object) -> Mapping[str, Any]:
    """Return a mapping, such as a table of TOML; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(value: object) -> Sequence[Any]:
    """Return a list; an empty one for anything else."""
    is_list = isinstance(value, list)  # a name, as checkers disagree about what it tells them
    return cast("list[Any]", value) if is_list else ()


def tables(value: object) -> Sequence[Mapping[str, Any]]:
    """Return those of a list that are mappings."""
    found: list[object] = [each for each in rows(value) if isinstance(each, dict)]
    return [table(each) for each in found]


def words(value: object) -> str:
    """Return a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""
