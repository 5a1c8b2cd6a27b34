"""Conversion of nsm's own dataclasses to plain JSON and back.

pydantic, which nsm uses for the configuration, does the same. But importing it takes longer than
everything else before a supervisor answers, and a restart must be short.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class CodecError(ValueError):
    """The text is no such value; the message says where."""


def to_plain(value: object) -> Any:
    """Convert a value to plain JSON, without fields that have their default.

    Raises:
        TypeError: it is, or holds, something that has no such form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for name, default in _defaults(type(value)):
            given = getattr(value, name)
            if default is dataclasses.MISSING or given != default:
                found[name] = to_plain(given)
        return found
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, frozenset):
        return sorted(to_plain(each) for each in cast("frozenset[object]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(key): to_plain(each) for key, each in items}
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: type[T], plain: object, where: str = "it") -> T:
    """Convert the result of `to_plain` back. Unknown fields are ignored: a newer nsm may have
    written them.

    Args:
        kind: expected type.
        where: its place, for the error.

    Raises:
        CodecError: it is something else.
    """
    return cast("T", _value(kind, plain, where))


@cache
def _defaults(kind: type) -> tuple[tuple[str, object], ...]:
    fields = dataclasses.fields(kind)
    return tuple((each.name, each.default) for each in fields if each.init)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _value(kind: Any, plain: Any, where: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), plain, where)
    if origin is Literal:
        if plain not in get_args(kind):
            raise CodecError(f"{where} is {plain!r:.50}, which is none of {get_args(kind)}")
        return plain
    if origin is tuple:
        return _tuple(get_args(kind), plain, where)
    if origin is frozenset:
        (item,) = get_args(kind)
        return frozenset(_value(item, each, where) for each in _list(plain, where))
    if origin is not None and issubclass(origin, Mapping):
        _, item = get_args(kind)
        return {key: _value(item, each, where) for key, each in _map(plain, where).items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast("type", kind), plain, where)
    if kind is Any:
        return plain
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if kind in (str, int, float, bool, type(None)) and type(plain) is kind:
        return plain
    raise CodecError(f"{where} is {plain!r:.50}, not {getattr(kind, '__name__', kind)}")


def _one_of(kinds: tuple[Any, ...], plain: object, where: str) -> object:
    if plain is None and type(None) in kinds:
        return None
    failure: CodecError | None = None
    for kind in kinds:
        try:
            return _value(kind, plain, where)
        except CodecError as error:
            failure = failure or error
    assert failure is not None, "a union has members"
    raise failure


def _tuple(kinds: tuple[Any, ...], plain: object, where: str) -> tuple[object, ...]:
    items = _list(plain, where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], each, where) for each in items)
    if len(items) != len(kinds):
        raise CodecError(f"{where} has {len(items)} members, not {len(kinds)}")
    return tuple(_value(kind, each, where) for kind, each in zip(kinds, items, strict=True))


def _dataclass(kind: type, plain: object, where: str) -> object:
    given = _map(plain, where)
    hints = _hints(kind)
    known = {
        name: _value(hints[name], given[name], f"{where}.{name}")
        for name, _ in _defaults(kind)
        if name in given
    }
    try:
        return kind(**known)
    except (TypeError, ValueError) as error:
        raise CodecError(f"{where}: {error}") from error


def _list(plain: object, where: str) -> list[Any]:
    if not isinstance(plain, list):
        raise CodecError(f"{where} is {plain!r:.50}, not a list")
    return plain  # pyright: ignore[reportUnknownVariableType]


def _map(plain: object, where: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise CodecError(f"{where} is {plain!r:.50}, not an object")
    return cast("dict[str, Any]", plain)
