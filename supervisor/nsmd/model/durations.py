"""Durations as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format a duration for people: ``40 s``, ``12 min``, ``3 h``, ``2 days``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"
