"""Readers of an operation's arguments. A wrong argument raises a `BadRequestError` that
names it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from nsm.wire.decode import DecodeError
from nsm.wire.errors import BadRequestError

Arguments = Mapping[str, Any]

PATH_MAX = 4096
"""Largest path in bytes, for the kernel."""

MAX_VARIABLES = 1000
MAX_VARIABLE_CHARS = 128 * 1024
"""Characters of all variables together."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def refusal(error: DecodeError) -> BadRequestError:
    """Make the error for an argument that is missing or wrong."""
    if error.missing:
        return BadRequestError(
            f"Argument {error.path!r} is required.", hint=f"It is {error.expected}."
        )
    return _wrong(error.path, error.found, error.expected)


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


def text_map(args: Arguments, key: str) -> dict[str, str]:
    """Read texts by name; empty if absent."""
    given = cast("Mapping[object, object]", optional_map(args, key) or {})
    found: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(f"Argument {key!r} has {name!r:.80}: it or its value is no text.")
        found[name] = value
    return found


def variables(args: Arguments) -> dict[str, str]:
    """Read environment variables, `environ`; empty if absent."""
    found = text_map(args, "environ")
    size = sum(len(name) + len(value) for name, value in found.items())
    if len(found) > MAX_VARIABLES or size > MAX_VARIABLE_CHARS:
        raise BadRequestError(
            f"Argument 'environ' has {len(found)} variables of {size} characters; at most "
            f"{MAX_VARIABLES} of {MAX_VARIABLE_CHARS} are taken.",
            hint="Put large values into files.",
        )
    for name, value in found.items():
        if not _VARIABLE.fullmatch(name):
            raise BadRequestError(
                f"Argument 'environ' has {name!r:.80}, which is not a variable's name."
            )
        if "\0" in value:
            raise BadRequestError(f"Argument 'environ' has a NUL in the value of {name}.")
    return found


def wait_s(args: Arguments, at_most: float) -> float:
    """Read how many seconds to wait; 0 if absent. More than `at_most` is clamped to that."""
    found = optional_number(args, "wait_s") or 0.0
    if math.isnan(found) or found < 0:
        raise BadRequestError(f"Argument 'wait_s' is {found}, not a number of seconds from 0.")
    return min(found, at_most)


def _wrong(key: str, value: object, expected: str) -> BadRequestError:
    return BadRequestError(f"Argument {key!r} is {value!r:.80}, not {expected}.")
