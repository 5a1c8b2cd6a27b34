"""Texts from outside, and lists of them, on one line."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMED = 4
"""Largest number of paths or hosts that one line names: a model reads the line with
every result.
"""

_MAX_NAME_CHARS = 100


def plain(text: str, limit: int = _MAX_NAME_CHARS) -> str:
    """Put a text from outside on one line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def names(all_names: Sequence[str]) -> str:
    """List some of the names, and say if there are more."""
    shown = [plain(name) for name in all_names[:_MOST_NAMED]]
    if len(all_names) > _MOST_NAMED:
        shown.append(f"{len(all_names) - _MOST_NAMED} more")
    return ", ".join(shown)
