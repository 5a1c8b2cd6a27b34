"""The archive that `nsm host setup` copies: nsm and all that it needs, in one file.

The packages are those of this machine's own installation, so that the other machine needs the same
version of Python.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nsm._version import COMMIT_FILE, program_commit
from nsm.hosts import installer
from nsm.wire.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

Version = tuple[int, int]

DISTRIBUTION = "nsm-sessions"

OWN = ("nsm", "nsmbox", "nsmd", "sandbox", "sandbox_agent", "sandbox_template")
"""Our own packages and modules. In a clone, no list of files has them."""

_OLDER_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""Versions of glibc by the older names of platforms (PEP 600)."""

_TAG = re.compile(r"^Tag: \S+-(\S+)$", re.MULTILINE)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")


def write_archive(file: IO[bytes]) -> None:
    """Write the archive, for the version of Python that we have.

    Raises:
        HostError: it cannot be made.
    """
    needed = _needed()
    found = dict([*(pair for each in needed for pair in _files_of(each)), *_own_files()])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(installer.__file__, "__main__.py")
        for name, path in sorted(found.items()):
            archive.write(path, installer.PACKAGES + name)
        commit_file = f"nsm/{COMMIT_FILE}"
        if commit_file not in found and (commit := program_commit()):  # of a clone
            archive.writestr(installer.PACKAGES + commit_file, commit + "\n")
        facts = {
            "python": sys.version_info[:2],
            "machine": platform.machine(),
            "glibc": max(map(_glibc_of, needed)),
            "scripts": _scripts(),
        }
        archive.writestr(installer.FACTS, json.dumps(facts))


def _needed() -> list[Distribution]:
    """The distributions that nsm needs, without itself."""
    found: dict[str, Distribution] = {}
    wanted = [DISTRIBUTION]
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in found:
            continue
        found[name] = _distribution(name)
        wanted += [
            requirement.name
            for requirement in map(Requirement, found[name].requires or ())
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    del found[DISTRIBUTION]
    return list(found.values())


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise HostError(
            f"the package {name} is not installed here as nsm's own installation would have it",
            hint="Install nsm on the other machine as on this one.",
        ) from error


def _files_of(found: Distribution) -> Iterator[tuple[str, str]]:
    """The files of a distribution: name in `site-packages`, and path."""
    if found.files is None:
        raise HostError(
            f"the installation of {found.name} on this machine has no list of its files",
            hint="Install nsm on the other machine as on this one.",
        )
    for each in found.files:
        if each.parts[0] != ".." and "__pycache__" not in each.parts and not each.is_absolute():
            yield each.as_posix(), str(each.locate())


def _own_files() -> Iterator[tuple[str, str]]:
    for name in OWN:
        spec = find_spec(name)
        assert spec is not None, "it is part of this installation"
        assert spec.origin is not None, "and no namespace"
        if not spec.submodule_search_locations:
            yield f"{name}.py", spec.origin
            continue
        top = os.path.dirname(spec.origin)
        for inner, path in _files_below(top):
            yield f"{name}/{inner}", path
    for each in _distribution(DISTRIBUTION).files or ():
        if each.parts[0].endswith(".dist-info") and each.name in ("METADATA", "entry_points.txt"):
            yield each.as_posix(), str(each.locate())


def _files_below(top: str) -> Iterator[tuple[str, str]]:
    for directory, names, files in os.walk(top):
        names[:] = sorted(set(names) - {"__pycache__", "bin"})
        for name in files:
            path = os.path.join(directory, name)
            yield Path(path).relative_to(top).as_posix(), path


def _scripts() -> dict[str, str]:
    points = _distribution(DISTRIBUTION).entry_points
    return {point.name: point.value for point in points if point.group == "console_scripts"}


def _glibc_of(found: Distribution) -> Version:
    """The oldest glibc that a distribution runs with."""
    least: list[Version] = []
    for platforms in _TAG.findall(found.read_text("WHEEL") or ""):
        for tag in platforms.split("."):
            if match := _MANYLINUX.match(tag):
                least.append((int(match[1]), int(match[2])))
            elif version := _OLDER_NAMES.get(tag.partition("_")[0]):
                least.append(version)
    if least:
        return min(least)
    built_here = found.read_text("WHEEL") and "-any" not in (found.read_text("WHEEL") or "")
    return _own_glibc() if built_here else (0, 0)


def _own_glibc() -> Version:
    major, _, minor = platform.libc_ver()[1].partition(".")
    return (int(major or 0), int(minor.partition(".")[0] or 0))
