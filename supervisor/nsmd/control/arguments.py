"""Readers of an operation's arguments. A wrong argument raises a `BadRequestError` that
names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from nsm.wire.errors import BadRequestError

Arguments = Mapping[str, Any]

PATH_MAX = 4096
"""Largest path in bytes, for the kernel."""


def text(args: Arguments, key: str) -> str:
    """Read a required text."""
    value = optional_text(args, key)
    if value is None:
        raise BadRequestError(f"Argument {key!r} is required.", hint="It is a text.")
    return value


def optional_text(args: Arguments, key: str) -> str | None:
    """Read a text; None if absent."""
    value = args.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(key, value, "a text")


def optional_number(args: Arguments, key: str) -> float | None:
    """Read a number; None if absent."""
    value = args.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _wrong(key, value, "a number of ordinary size") from None


def optional_count(args: Arguments, key: str) -> int | None:
    """Read a whole number from 0; None if absent."""
    value = args.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise _wrong(key, value, "a whole number from 0")


def data(args: Arguments, key: str) -> bytes:
    """Read required bytes."""
    value = args.get(key)
    if isinstance(value, bytes):
        return value
    raise _wrong(key, value, "bytes")


def flag(args: Arguments, key: str) -> bool:
    """Read true or false; false if absent."""
    value = args.get(key, False)
    if isinstance(value, bool):
        return value
    raise _wrong(key, value, "true or false")


def texts(args: Arguments, key: str) -> list[str]:
    """Read a list of texts; empty if absent."""
    value: object = args.get(key, [])
    if isinstance(value, list):
        items = cast("list[object]", value)
        if all(isinstance(item, str) for item in items):
            return cast("list[str]", items)
    raise _wrong(key, args[key], "a list of texts")


def paths(args: Arguments, key: str, at_most: int) -> tuple[str, ...]:
    """Read a list of absolute paths, each as bytes; empty if absent."""
    value: object = args.get(key, [])
    if isinstance(value, list):
        items = cast("list[object]", value)
        known = [os.fsdecode(item) for item in items if isinstance(item, bytes)]
        if len(known) == len(items) <= at_most and all(map(_is_path, known)):
            return tuple(known)
    raise _wrong(key, args[key], f"a list of at most {at_most} absolute paths, each as bytes")


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and len(text) <= PATH_MAX


def optional_map(args: Arguments, key: str) -> Arguments | None:
    """Read a map; None if absent."""
    value: Any = args.get(key)
    found: Arguments = value
    if value is None:
        return None
    if isinstance(value, dict):
        return found
    raise _wrong(key, value, "a map")


def _wrong(key: str, value: object, expected: str) -> BadRequestError:
    return BadRequestError(f"Argument {key!r} is {value!r:.80}, not {expected}.")
