"""Questions to the person at the terminal, before a verb does harm."""

from __future__ import annotations

import sys


def may_ask() -> bool:
    """Tell whether there is somebody to ask."""
    return bool(sys.stdin) and sys.stdin.isatty()


def choice(question: str) -> str:
    """Ask; the answer in lower case, empty for nothing."""
    sys.stdout.write(f"{question} ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower()


def agreed(question: str, choices: str = "[y]es, [N]o") -> bool:
    """Ask a question that is answered by yes or no."""
    return choice(f"{question} {choices}") in ("y", "yes")
