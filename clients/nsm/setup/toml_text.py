"""TOML, changed by position: every other byte stays. Pure.

Tables are added at the end of the file, where they are valid whatever is before them. Callers
compare what the new text means with what they wanted, so a file that is written in a way not known
here (an inline table, dotted keys) is refused and not damaged.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def value_of(text: str) -> Any:
    """Read a text.

    Raises:
        ValueError: it is no TOML.
    """
    return tomllib.loads(text.removeprefix("\ufeff"))


def with_value(text: str, keys: Sequence[str], value: str) -> str:
    """The text with a text as the value of a key, in a table that is made where it is missing."""
    table, key = ".".join(keys[:-1]), keys[-1]
    newline = "\r\n" if "\r\n" in text else "\n"
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    span = _table(text, table)
    if span is None:
        before = text if not text or text.endswith("\n") else text + newline
        gap = newline if before.strip() else ""
        return f"{before}{gap}[{table}]{newline}{line}{newline}"
    start, end = span
    older = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=[^\r\n]*", re.MULTILINE)
    found = older.search(text, start, end)
    if found is not None:
        return text[: found.start()] + line + text[found.end() :]
    head = text[:start] if text[:start].endswith("\n") else text[:start] + newline
    return f"{head}{line}{newline}{text[start:]}"


def _table(text: str, name: str) -> tuple[int, int] | None:
    """Place of the lines of a table, without its header."""
    header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(name)}[ \t]*\][ \t]*(?:#.*)?$", re.MULTILINE)
    found = header.search(text)
    if found is None:
        return None
    start = min(found.end() + 1, len(text))
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, start)
    return start, following.start() if following else len(text)
