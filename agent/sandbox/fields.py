"""Checks of the fields of frames and of command lines."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)

MAX_MODULE = 100
"""Characters of a module's name."""


def as_object(value: Any) -> dict[str, Any] | None:
    """`value` if it is a JSON object; what JSON makes has text keys."""
    found: Any = value
    return found if isinstance(value, dict) else None


def as_texts(value: Any) -> dict[str, str] | None:
    """Variables as a frame has them; None where they are none. They may be left out."""
    found = {} if value is None else as_object(value)
    if found is None:
        return None
    for name, text in found.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            return None
    return found


def is_module_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_MODULE and bool(_MODULE.fullmatch(value))


def are_arguments(value: Any) -> TypeGuard[list[str]]:
    """Tell whether this is a list of a program and its arguments."""
    items: list[Any] = value
    return isinstance(value, list) and bool(items) and all(map(is_argument, items))


def is_argument(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def is_id(value: object) -> TypeGuard[str | int]:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
