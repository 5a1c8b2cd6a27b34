"""Files in linked worktrees that say where their repository is: git there obeys it."""

from __future__ import annotations

import os
import stat

from nsm.autorun import CLAUDE_WORKTREES
from nsm.dataclass import replace
from nsmbox.protection.guarded_files import Guarded, joined

MAX_WORKTREES = 64
"""Each costs two mounts."""


def look(directory: str) -> Guarded:
    """Find those in a directory that holds worktrees."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        names = []
    places = [os.path.join(directory, name) for name in names]
    linked = [
        place
        for place in places
        if stat.S_ISDIR(_mode(place)) and stat.S_ISREG(_mode(os.path.join(place, ".git")))
    ]
    over = f"There are more than {MAX_WORKTREES} worktrees: the others are not protected."
    return Guarded(
        held=tuple(linked[:MAX_WORKTREES]),
        read_only=tuple(os.path.join(place, ".git") for place in linked[:MAX_WORKTREES]),
        notes=(over,) if len(linked) > MAX_WORKTREES else (),
    )


def with_claude_worktrees(guarded: Guarded, directory: str, *, make: bool) -> Guarded:
    """Let Claude Code make its worktrees, which lie beside its settings; what else is there stays
    protected.

    Args:
        directory: the working directory: the top of a repository.
        make: make the directory if even that of the settings is not there.
    """
    settings, path = (os.path.join(directory, *CLAUDE_WORKTREES[:n]) for n in (1, 2))
    absent = any(each.path == settings for each in guarded.stand_ins)
    if (settings not in guarded.read_only and not (absent and make)) or (
        os.path.lexists(path) and not stat.S_ISDIR(_mode(path))
    ):
        return guarded
    missing = [each for each in (settings, path) if absent or not os.path.lexists(each)]
    found = Guarded(
        held=(path,), read_only=(settings,), made=tuple((each, None) for each in missing)
    )
    kept = tuple(each for each in guarded.stand_ins if each.path != settings)
    return joined((replace(guarded, stand_ins=kept), found, look(path)))


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
