"""How what a supervisor sent is read, field by field.

A value's `from_wire` takes a map: unknown fields are ignored (a newer supervisor may send more), a
missing or mistyped one raises `RemoteProtocolError` that names it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from nsm.wire.frames import RemoteProtocolError

Value = TypeVar("Value")


def rows_of(wire: Mapping[str, Any], key: str) -> tuple[dict[str, Any], ...]:
    """The list of maps that an answer holds under `key`."""
    return Fields(wire, "an answer").maps(key)


def flag_of(wire: Mapping[str, Any], key: str) -> bool:
    """The truth value that an answer holds under `key`."""
    return Fields(wire, "an answer").flag(key)


class Fields:
    """Reads a map's fields by type; `noun` names the map in errors.

    Every reader raises `RemoteProtocolError` where the field is missing or of another type.
    """

    __slots__ = ("_noun", "_wire")

    def __init__(self, wire: Mapping[str, Any], noun: str) -> None:
        self._wire = wire
        self._noun = noun

    def text(self, key: str) -> str:
        value = self._wire.get(key)
        if isinstance(value, str):
            return value
        raise self._mistyped(key, "text")

    def data(self, key: str) -> bytes:
        """Bytes."""
        value = self._wire.get(key)
        if not isinstance(value, bytes):
            raise self._mistyped(key, "bytes")
        return value

    def integer(self, key: str) -> int:
        value = self._wire.get(key)
        if type(value) is int:  # a bool is no number here
            return value
        raise self._mistyped(key, "an integer")

    def number(self, key: str) -> float:
        value = self._wire.get(key)
        if type(value) is float or type(value) is int:
            return value
        raise self._mistyped(key, "a number")

    def flag(self, key: str) -> bool:
        value = self._wire.get(key)
        if isinstance(value, bool):
            return value
        raise self._mistyped(key, "true or false")

    def map(self, key: str) -> dict[str, Any]:
        value = self._wire.get(key)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        raise self._mistyped(key, "a map")

    def maps(self, key: str) -> tuple[dict[str, Any], ...]:
        value = self._wire.get(key)
        if isinstance(value, list):
            items = cast("list[object]", value)
            if all(isinstance(item, dict) for item in items):
                return tuple(cast("list[dict[str, Any]]", items))
        raise self._mistyped(key, "a list of maps")

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._wire.get(key)
        if isinstance(value, list):
            items = cast("list[object]", value)
            if all(isinstance(item, str) for item in items):
                return tuple(cast("list[str]", items))
        raise self._mistyped(key, "a list of texts")

    def optional(self, key: str, read: Callable[[str], Value]) -> Value | None:
        return None if self._wire.get(key) is None else read(key)

    def _mistyped(self, key: str, expected: str) -> RemoteProtocolError:
        found = type(self._wire[key]).__name__ if key in self._wire else "nothing"
        return RemoteProtocolError(
            f"the supervisor sent {self._noun} with {found} for `{key}`; expected {expected}",
            hint="Is an older or newer supervisor running? `nsm shutdown` ends it.",
        )
