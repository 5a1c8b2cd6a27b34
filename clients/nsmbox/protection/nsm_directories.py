"""Directories of nsm on the host, which no box may change.

What lies there decides what runs on the host: programs of the bridge, what boxes show, which of
them people have agreed to. It may be led to by links, as people do who keep their configuration in
a repository, and a box may be started in that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from nsmbox.host import nix_host

MAX_DEFINITIONS = 4096
"""Largest number of the bridge's definitions whose links are followed."""

_BASES = (
    ("XDG_CONFIG_HOME", ".config"),
    ("XDG_DATA_HOME", ".local/share"),
    ("XDG_STATE_HOME", ".local/state"),
    ("XDG_CACHE_HOME", ".cache"),
)


def look(homes: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """All of them, there or not, links not followed.

    Args:
        homes: absolute paths.
        variables: the caller's.
    """
    store = os.path.join(variables.get(nix_host.STORE_VARIABLE) or nix_host.STORE, "")
    for variable, base in _BASES:
        given = variables.get(variable, "")
        places = [given] if given.startswith("/") else []
        for place in (*places, *(os.path.join(home, base) for home in homes)):
            own = os.path.join(place, "nsm")
            yield own
            if base == ".config":
                # In the store nothing changes, and each generation has another path there.
                links = _links(own)
                yield from (p for p in links if not os.path.realpath(p).startswith(store))


def _links(directory: str) -> Iterator[str]:
    """Links in the directory of the configuration; all else there is within it."""
    tools = os.path.join(directory, "tools")
    for path in (os.path.join(directory, "config.toml"), tools):
        if os.path.islink(path):
            yield path
    try:
        with os.scandir(tools) as entries:
            for entry in islice(entries, MAX_DEFINITIONS):
                if entry.name.endswith(".md") and entry.is_symlink():
                    yield entry.path
    except OSError:
        return  # there is none


def leading_to(places: Iterable[str], directory: str) -> tuple[str, ...]:
    """Directories on the way from a directory to these places, sorted: one that could be renamed
    would let another one be put there.

    Args:
        places: real paths.
        directory: likewise.
    """
    top = directory.rstrip("/")
    found: set[str] = set()
    for place in places:
        above = os.path.dirname(place)
        while above.startswith(f"{top}/"):
            found.add(above)
            above = os.path.dirname(above)
    return tuple(sorted(found))
