"""Files that environments share, as hard links; all functions block."""

from __future__ import annotations

import functools
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nsmd.environments.packages.store import (
    NODE_MODULES,
    EnvironmentStore,
    listed,
    package_of,
    read_left,
)

MAX_RECORD_BYTES = 64 * 1024 * 1024

_INSTALLED = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)\.dist-info")


def remove_compiled(site_packages: str) -> None:
    """Remove compiled modules that packages bring.

    Their code need not be that of their sources, and other environments with equal sources take
    compiled modules over.
    """
    for folder, _, names in os.walk(site_packages):
        if os.path.basename(folder) == "__pycache__":
            for name in names:
                if name.endswith(".pyc"):
                    os.unlink(os.path.join(folder, name))


def share_files(store: EnvironmentStore, made: str, library: str, tag: str) -> frozenset[str]:
    """Replace files of a new environment by links to equal files of other environments.

    Files of the same release of a package are compared, byte by byte. Compiled modules of equal
    sources are taken over.

    Args:
        made: the new environment.
        library: path of its `site-packages`, from there.
        tag: of the Python (`sys.implementation.cache_tag`).

    Returns:
        Paths of the replaced files, from `made`.
    """
    replaced: set[str] = set()
    folders = functools.cache(_folders)
    others: dict[str, str] = {}
    for name in store.names():
        if os.path.isdir(os.path.join(store.path(name), "conda-meta")):
            continue  # its compiled modules come from packages, and need not be of their sources
        for entry in listed(os.path.join(store.path(name), library)):
            if _INSTALLED.fullmatch(entry):
                others.setdefault(entry, store.path(name))
    for entry in listed(os.path.join(made, library)):
        if entry in others:
            equal: list[str] = []
            for path in _record(os.path.join(made, library, entry, "RECORD"), library):
                folder = os.path.dirname(path)
                there, here = os.path.join(others[entry], path), os.path.join(made, path)
                both = folder in folders(made) and folder in folders(others[entry])
                if both and _share(there, here):
                    equal.append(path)
            _share_compiled(others[entry], made, equal, tag)
            replaced.update(equal)
    return frozenset(replaced)


def _share_compiled(other: str, made: str, sources: Iterable[str], tag: str) -> None:
    """Take compiled modules of sources over, which are equal in both environments."""
    by_folder: dict[str, list[str]] = {}
    for path in sources:
        folder, name = os.path.split(path)
        if name.endswith(".py"):
            by_folder.setdefault(folder, []).append(f"{name[:-3]}.{tag}.pyc")
    for folder, names in by_folder.items():
        there, here = (os.path.join(each, folder, "__pycache__") for each in (other, made))
        if known := {*listed(there)}.intersection(names):
            with suppress(OSError):
                os.makedirs(here, exist_ok=True)
                for name in known:
                    with suppress(FileExistsError):
                        os.link(os.path.join(there, name), os.path.join(here, name))


def share_packages(store: EnvironmentStore, made: str, versions: Mapping[str, str]) -> None:
    """Replace files of a new Node environment by links to equal files of others.

    Files of the same release of a package are compared, byte by byte.

    Args:
        made: the new environment.
        versions: its packages, by path below `node_modules`.
    """
    folders = functools.cache(_folders)
    others: dict[tuple[str, str], tuple[str, str]] = {}
    for path in map(store.path, store.names()):
        details = store.details(path)
        if details is not None and details.interpreter == "node":
            for place, version in details.versions.items():
                others.setdefault((package_of(place), version), (path, f"{NODE_MODULES}/{place}"))
    for place, version in versions.items():
        if (package_of(place), version) in others:
            other, there = others[package_of(place), version]
            here = f"{NODE_MODULES}/{place}"
            for folder, names, files in os.walk(os.path.join(made, here)):
                names[:] = [name for name in names if name != NODE_MODULES]
                own = os.path.relpath(folder, made)
                their = os.path.normpath(os.path.join(there, os.path.relpath(own, here)))
                if own in folders(made) and their in folders(other):
                    for name in files:
                        _share(os.path.join(other, their, name), os.path.join(folder, name))


def installed(site_packages: str) -> dict[str, str]:
    """Versions of the packages in a directory, by name."""
    found = (_INSTALLED.fullmatch(entry) for entry in listed(site_packages))
    return {match["name"]: match["version"] for match in found if match is not None}


def uncompiled(site_packages: str, tag: str) -> list[str]:
    """Sources below a directory that have no compiled module, as paths from there.

    Args:
        tag: of the Python (`sys.implementation.cache_tag`).
    """
    found: list[str] = []
    for folder, _, names in os.walk(site_packages):
        if sources := [name for name in names if name.endswith(".py")]:
            there = set(listed(os.path.join(folder, "__pycache__")))
            inside = folder[len(site_packages) + 1 :]
            found += [
                os.path.join(inside, name)
                for name in sources
                if f"{name[:-3]}.{tag}.pyc" not in there
            ]
    return found


def _record(path: str, library: str) -> list[str]:
    """Paths of a package's files in its environment."""
    try:
        lines = read_left(path, MAX_RECORD_BYTES).splitlines()
    except (OSError, ValueError):
        return []
    names = (line.rsplit(",", 2)[0].strip('"') for line in lines)
    found = (os.path.normpath(os.path.join(library, name)) for name in names if name)
    return [path for path in found if not path.startswith(("/", ".."))]


def _folders(directory: str) -> frozenset[str]:
    """Paths of the directories below a directory, none of them through a link."""
    return frozenset(folder[len(directory) + 1 :] for folder, _, _ in os.walk(directory))


def _share(there: str, here: str) -> bool:
    """Replace a file by a link to an equal one. Returns whether they are the same now."""
    try:
        return _is_same(there, here) or _link_equal(there, here)
    except OSError:
        return False


def _is_same(one: str, other: str) -> bool:
    a, b = os.lstat(one), os.lstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _link_equal(there: str, here: str) -> bool:
    one, other = os.lstat(there), os.lstat(here)
    if (one.st_mode, one.st_size) != (other.st_mode, other.st_size):
        return False
    if not stat.S_ISREG(one.st_mode):
        return False
    with open(there, "rb") as a, open(here, "rb") as b:
        while piece := a.read(1 << 20):
            if piece != b.read(1 << 20):
                return False
    new = f"{here}.{secrets.token_hex(4)}"
    os.link(there, new, follow_symlinks=False)
    os.replace(new, here)
    return True
