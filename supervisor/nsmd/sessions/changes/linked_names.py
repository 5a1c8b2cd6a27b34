"""Names of a project by which the host would run what lies elsewhere in it, by symbolic links."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping

from nsm import autorun
from nsm.paths import follow_links

MAX_ENTRIES = 4096
"""Largest number of names that are looked at below those of the table."""

MAX_SEARCHED = 10_000
"""Largest number of a project's entries among which those names are searched, upper ones first."""

_OF_GIT = ("hooks", "config", "config.worktree", "info", "commondir")


def find_linked(project: int) -> Mapping[str, str]:
    """Find what links lead to in a project, with the name that leads there; the links on the way to
    it, too. Paths are relative. Blocks.

    Args:
        project: descriptor of the directory.

    Raises:
        OSError: it cannot be read.
    """
    directory = os.readlink(f"/proc/self/fd/{project}")
    found: dict[str, str] = {}
    waiting = deque(_find_names(directory))
    seen: set[str] = set()
    left = MAX_ENTRIES
    while waiting and left > 0:
        left -= 1
        name = waiting.popleft()
        real, links = follow_links(os.path.join(directory, name), directory)
        if links:
            for place in (real, *links):
                below = os.path.relpath(place, directory)
                if below != "." and not below.startswith("../") and below != "..":
                    found.setdefault(below, name)
        if real not in seen and real != directory:
            seen.add(real)
            waiting.extend(f"{name}/{each}" for each in _names(real, name))
    return found


def _find_names(directory: str) -> list[str]:
    """Find the names of the table, in the project and in all directories below it, apart from
    those of installed packages.
    """
    found: list[str] = []
    waiting = deque([""])
    left = MAX_SEARCHED
    while waiting and left > 0:
        inside = waiting.popleft()
        try:
            with os.scandir(os.path.join(directory, inside)) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            if not inside:
                raise
            continue
        left -= len(entries)
        for entry in entries:
            name, low = f"{inside}{entry.name}", autorun.folded(entry.name)
            if low in autorun.FIRST or low == ".git" or low.endswith(autorun.ENDINGS):
                found.append(name)
            elif low not in autorun.PACKAGE_DIRECTORIES and entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
    return found


def _names(directory: str, name: str) -> list[str]:
    """Names in a directory; those that git obeys in one of its own."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [each for each in names if each in _OF_GIT] if autorun.folded(name) == ".git" else names


def names_of(path: str, linked: Mapping[str, str]) -> Iterator[str]:
    """Yield the names by which links lead to a path, or to what is below it.

    Args:
        linked: from `find_linked`.
    """
    for place, name in linked.items():
        if path == place or place.startswith(f"{path}/"):
            yield name
        elif path.startswith(f"{place}/"):
            yield name + path[len(place) :]
