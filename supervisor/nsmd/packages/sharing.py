"""Files that environments share, as hard links; all functions block."""

from __future__ import annotations

import functools
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from nsmd.packages.store import (
    NODE_MODULES,
    EnvironmentDetails,
    EnvironmentStore,
    listed,
    make_directory,
    package_of,
)

_COMPILED = "__pycache__"

_INSTALLED = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)\.dist-info")


def share_files(store: EnvironmentStore, made: str, library: str, tag: str) -> list[str]:
    """Replace files of a new environment by links to equal files of other environments.

    Files at the same place are compared, byte by byte, with those of environments that have one of
    its releases. Compiled modules that packages bring are removed: their code need not be that of
    their sources. Those of equal sources are taken over.

    `library` is the path of its `site-packages`, from there; `tag` that of the Python
    (`sys.implementation.cache_tag`). Returns paths of the sources that are left to compile.
    """
    ours = _scan(made)
    for folder, files in ours.items():
        if os.path.basename(folder) == _COMPILED:
            for name in [name for name in files if name.endswith(".pyc")]:
                os.unlink(os.path.join(made, folder, name))
                del files[name]
    shared: dict[str, set[str]] = {folder: set() for folder in ours}
    for other in _others(store, made, library):
        theirs = _scan(other)
        for folder, files in ours.items():
            if folder in theirs:
                left = (files.keys() & theirs[folder].keys()) - shared[folder]
                equal = {
                    name
                    for name in left
                    if (files[name] and files[name] == theirs[folder][name])
                    or _share(os.path.join(other, folder, name), os.path.join(made, folder, name))
                }
                shared[folder] |= equal
                compiled = {f"{name[:-3]}.{tag}.pyc" for name in equal if name.endswith(".py")}
                inside = os.path.join(folder, _COMPILED)
                if compiled := compiled.intersection(theirs.get(inside, ())):
                    _link_all(os.path.join(other, inside), os.path.join(made, inside), compiled)
    return [
        os.path.join(folder, name)
        for folder, files in ours.items()
        if folder.startswith(library)
        # A shared source without a compiled module was found to be none.
        for name in sorted(files.keys() - shared[folder])
        if name.endswith(".py")
    ]


def _others(store: EnvironmentStore, made: str, library: str) -> Iterator[str]:
    """Find few environments that have releases of a new one, those with most of them first."""
    there = {
        path: _releases(os.path.join(path, library))
        for path in map(store.path, store.names())
        # Conda's compiled modules come from packages, and need not be of their sources.
        if not os.path.isdir(os.path.join(path, "conda-meta"))
    }
    left = _releases(os.path.join(made, library))
    while left:
        best = max(there, key=lambda path: len(there[path] & left), default="")
        if not best or not there[best] & left:
            return
        left -= there.pop(best)
        yield best


def _releases(site_packages: str) -> set[str]:
    return set(filter(_INSTALLED.fullmatch, listed(site_packages)))


def _link_all(there: str, here: str, names: Iterable[str]) -> None:
    """Take files of another directory over; what cannot be had is left out."""
    with suppress(OSError):
        make_directory(here)
        for name in names:
            with suppress(FileExistsError):
                os.link(os.path.join(there, name), os.path.join(here, name))


def share_packages(store: EnvironmentStore, made: str, versions: Mapping[str, str]) -> None:
    """Replace files of a new Node environment by links to equal files of others.

    Files of the same release of a package are compared, byte by byte. Versions are by path below
    `node_modules`.
    """
    folders = functools.cache(_scan)
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


def share_image(store: EnvironmentStore, made: str, details: EnvironmentDetails) -> None:
    """Replace files of a new image's environment by links to equal files of others.

    Images that have layers in common have most files in common; these are compared, byte by byte.
    """
    layers = set(details.image.layers if details.image is not None else ())
    ours: dict[str, dict[str, int]] = {}
    for other in map(store.path, store.names()):
        there = store.details(other)
        if there is None or there.image is None or not layers.intersection(there.image.layers):
            continue
        ours = ours or _scan(made)
        theirs = _scan(other)
        for folder, files in ours.items():
            for name in files.keys() & theirs.get(folder, {}).keys():
                one, its = os.path.join(other, folder, name), os.path.join(made, folder, name)
                if files[name] and _is_as_old(one, its) and _share(one, its):
                    files[name] = 0  # it is shared, and need not be compared with more


def installed(site_packages: str) -> dict[str, str]:
    """Versions of the packages in a directory, by name."""
    found = (_INSTALLED.fullmatch(entry) for entry in listed(site_packages))
    return {match["name"]: match["version"] for match in found if match is not None}


def uncompiled(site_packages: str, tag: str) -> list[str]:
    """Sources below a directory that have no compiled module, as paths from there. `tag` is that of
    the Python (`sys.implementation.cache_tag`).
    """
    found = _scan(site_packages)
    return [
        os.path.join(folder, name)
        for folder, files in found.items()
        for name in files
        if name.endswith(".py")
        and f"{name[:-3]}.{tag}.pyc" not in found.get(os.path.join(folder, _COMPILED), ())
    ]


def _scan(directory: str) -> dict[str, dict[str, int]]:
    """Look through a directory, and through no links. Returns, for each directory below it, by its
    path from there, the inodes of its files by their names; 0 for what is no regular file.
    """
    found: dict[str, dict[str, int]] = {}
    left = [""]
    while left:
        folder = left.pop()
        with suppress(OSError), os.scandir(os.path.join(directory, folder)) as entries:
            files = found[folder] = {}
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(os.path.join(folder, entry.name))
                else:
                    regular = entry.is_file(follow_symlinks=False)
                    files[entry.name] = entry.inode() if regular else 0
    return found


def _share(there: str, here: str) -> bool:
    """Replace a file by a link to an equal one. Returns whether they are the same now."""
    try:
        return _is_same(there, here) or _link_equal(there, here)
    except OSError:
        return False


def _is_as_old(one: str, other: str) -> bool:
    """Return whether two files have the same time, which compiled modules of Python depend on."""
    return os.lstat(one).st_mtime_ns == os.lstat(other).st_mtime_ns


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
