"""Files in /etc that programs in /usr need. Found by the links in /usr that lead there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence

_NAMED = r"java(-[0-9.]+-[a-z]+)?|chromium\.d|locale\.alias"
"""Names that programs need although no link, or one deep in /usr, leads there: Java's settings on
Debian, Fedora and similar systems, Debian's for Chromium, and names of locales.
"""

_HIDDEN = (
    r"environment|fstab|g?shadow-?|group-?|host(s|name)|localtime|machine-id|mtab|nsswitch\.conf"
    r"|passwd-?|resolv\.conf|sudoers.*|ssh|ssl/private|pki/tls/private"
    # Lines that the administrator has every Python run at its start.
    r"|python[0-9.]*/sitecustomize\.py"
)
"""Paths that links of /usr may lead to and no jail shows, since they are about the host or its
people; each stands for all that is in it.
"""

_WITH_HIDDEN = r"ssl|pki(/tls)?|python[0-9.]*"
"""Directories that have such files in them: what links name in these is shown, and not the whole.
"""

_UNSEARCHED = frozenset(
    "doc fonts help icons include info jvm locale man modules node_modules site-packages"
    " dist-packages src themes zoneinfo".split()
)
"""Directories by name: thousands of files and no link to settings."""

_DEPTH = 3
"""Directories below /usr on the way to a link; that takes 10 ms."""

MOST = 64
"""Largest number of paths; each is a mount in every jail."""


def linked_files(shown: Sequence[str], root: str = "/") -> tuple[str, ...]:
    """Paths below /etc that programs in /usr need, besides those that a jail shows anyway. All of
    them can be read by everyone, and none is hidden.

    Args:
        shown: these other paths.
        root: root directory of the host; other than `/` in tests only.
    """
    root = os.path.realpath(root).rstrip("/")
    found = [f"/etc/{name}" for name in _names(f"{root}/etc") if re.fullmatch(_NAMED, name)]
    chosen: list[str] = []
    for path in sorted({*found, *_targets(root)}):
        if any(path == each or path.startswith(f"{each}/") for each in (*shown, *chosen)):
            continue
        if not _is_hidden(path) and _is_open(root, path):
            chosen.append(path)
    return tuple(chosen[:MOST])


def _targets(root: str) -> Iterator[str]:
    left = [(f"{root}/usr", 0)]
    while left:
        directory, depth = left.pop()
        try:
            entries = os.scandir(directory)
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    # Most links are versions of libraries.
                    target = "" if ".so" in entry.name else os.readlink(entry.path)
                    if "etc/" in target:
                        inside = directory.removeprefix(root)
                        path = os.path.normpath(os.path.join(inside, target))
                        if path.startswith("/etc/"):
                            yield path
                elif depth < _DEPTH and entry.name not in _UNSEARCHED and entry.is_dir():
                    left.append((entry.path, depth + 1))


def _is_hidden(path: str) -> bool:
    inside = path.removeprefix("/etc/")
    if re.fullmatch(_WITH_HIDDEN, inside):
        return True
    parts = inside.split("/")
    return any(re.fullmatch(_HIDDEN, "/".join(parts[:number])) for number in (1, 2, 3))


def _is_open(root: str, path: str) -> bool:
    """Return whether everyone may read a file or list a directory of the system's."""
    real = os.path.realpath(f"{root}{path}")
    if not real.startswith((f"{root}/etc/", f"{root}/usr/")):
        return False
    if real.startswith(f"{root}/etc/") and _is_hidden(real.removeprefix(root)):
        return False
    try:
        mode = os.stat(real).st_mode
        way = real.removeprefix(root).split("/")[1:-1]
        above = [os.stat(f"{root}/{'/'.join(way[:n])}").st_mode for n in range(1, len(way) + 1)]
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        above.append(mode)
    return bool(mode & stat.S_IROTH) and all(each & stat.S_IXOTH for each in above)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
