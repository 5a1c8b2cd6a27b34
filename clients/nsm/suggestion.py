"""The word that somebody probably meant who has mistyped one. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_CHARS = 60
"""Only the beginning is compared: megabytes take a second, in which nobody gets an answer."""


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Choose the word that was probably meant; empty if none is close.

    Args:
        cutoff: as of `difflib.get_close_matches`.
    """
    from difflib import get_close_matches  # noqa: PLC0415  # only for a mistake

    return next(iter(get_close_matches(word[:_MAX_CHARS], list(known), n=1, cutoff=cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Ask about that word, in front of further sentences of a hint; empty if none is close."""
    close = closest(word, known, cutoff=cutoff)
    return f"Did you mean {close!r}? " if close else ""
