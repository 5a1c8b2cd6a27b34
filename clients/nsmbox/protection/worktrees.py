"""Files in linked worktrees that say where their repository is: git there obeys it."""

from __future__ import annotations

import os
import stat

from nsmbox.protection.guarded_files import Guarded

MAX_WORKTREES = 64
"""Each costs two mounts."""


def look(directory: str) -> Guarded:
    """Find those in a directory that holds worktrees.

    Args:
        directory: absolute, all links followed.
    """
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


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
