"""Version of the distribution, and of the program with its commit."""

from __future__ import annotations

import os
from functools import cache

__version__ = "0.3.0"

_HERE = os.path.dirname(os.path.abspath(__file__))
COMMIT_FILE = "_commit.txt"
_DIGITS = frozenset("0123456789abcdef")


@cache
def program_version() -> str:
    """Version with the commit where it is known, for example ``0.3.0+1a2b3c4d``.

    A program that was built has its commit in a file, which `hatch_build.py` writes. One that
    runs from a clone has git's; a change that was not committed does not show.
    """
    commit = program_commit()
    return f"{__version__}+{commit[:8]}" if commit else __version__


def installed_files() -> tuple[str, str]:
    """Read what differs between installed versions: changed once another one is installed here."""
    return _read(__file__), _read(os.path.join(_HERE, COMMIT_FILE))


def program_commit() -> str:
    """The commit of this program; empty where nobody knows it."""
    commit = _read(os.path.join(_HERE, COMMIT_FILE))
    if not _is_commit(commit):
        commit = _head(os.path.dirname(os.path.dirname(_HERE)))
    return commit if _is_commit(commit) else ""


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and _DIGITS.issuperset(text)  # SHA-1 or SHA-256


def _head(clone: str) -> str:
    """The commit that is checked out in a clone, or an empty text (gitrepository-layout(5))."""
    git = os.path.join(clone, ".git")
    if (link := _read(git)).startswith("gitdir: "):  # a further work tree of a clone
        git = os.path.join(clone, link.removeprefix("gitdir: "))
    head = _read(os.path.join(git, "HEAD"))
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    common = os.path.join(git, _read(os.path.join(git, "commondir")))
    if commit := _read(os.path.join(common, ref)):
        return commit
    for line in _read(os.path.join(common, "packed-refs")).splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""
