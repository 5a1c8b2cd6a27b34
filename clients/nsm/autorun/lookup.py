"""Lookup of a path in the table."""

from __future__ import annotations

import re

from nsm.autorun.names import NAMES, Autorun

DENIED = Autorun("", "you", "as you said")
"""Entry for a path that the user or git's configuration names."""

DENIED_FILE = Autorun("", "git", "at its next call", nothing="")
"""The same for a file that git reads."""

PACKAGE_DIRECTORIES = frozenset(
    "node_modules site-packages dist-packages vendor .venv venv .tox .nox .cache .npm .pnpm-store "
    "bower_components .gradle .m2".split()
)
"""Directories full of other people's projects, which nobody opens as projects."""

CLAUDE_WORKTREES = (".claude", "worktrees")
"""Directory in which Claude Code makes worktrees of git; each is a project of its own."""

# Characters that file systems without regard to case may also leave out (as HFS+ and casefolded
# ext4 do); git's list of them is the same (utf8.c, next_hfs_char).
_LEFT_OUT = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def folded(name: str) -> str:
    """Return a name as a file system without regard to case compares it."""
    if name.isascii():
        return name.lower()
    return _LEFT_OUT.sub("", name).casefold()


_BY_FIRST: dict[str, list[tuple[tuple[str, ...], Autorun]]] = {}
_BY_ENDING: dict[str, Autorun] = {}
for _each in NAMES:
    if _each.path.startswith("*"):
        _BY_ENDING[_each.path[1:]] = _each
    else:
        _parts = tuple(map(folded, _each.path.split("/")))
        _BY_FIRST.setdefault(_parts[0], []).append((_parts, _each))

FIRST = frozenset(_BY_FIRST)
"""Folded first components: a name that is not one of these and has no ending of `ENDINGS` begins
no path of the table."""

ENDINGS = tuple(_BY_ENDING)


def beside(entry: Autorun) -> tuple[str, ...]:
    """Return the other names of the table that the same programs read."""
    return tuple(other.path for other in NAMES if other.by == entry.by and other != entry)


def find(path: str) -> Autorun | None:
    """Return the entry that a path falls under, wherever below a project it lies. It is relative,
    without `.` and `..`."""
    parts = tuple(map(folded, path.split("/")))
    for place, name in enumerate(parts):
        if parts[place : place + 2] == CLAUDE_WORKTREES and len(parts) > place + 2:
            continue
        for wanted, entry in _BY_FIRST.get(name, ()):
            end = place + len(wanted)
            if parts[place:end] == wanted and (end == len(parts) or not entry.says):
                return entry
    return next((_BY_ENDING[end] for end in ENDINGS if parts[-1].endswith(end)), None)
