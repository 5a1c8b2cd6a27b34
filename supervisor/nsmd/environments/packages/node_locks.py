"""Locks of Node packages: files in the format of npm's `package-lock.json`.

npm can install from them, too. `resolved` is the URL of a package's file. If that is the usual path
of a registry, which may be a mirror, the lock has the same path in npm's own registry. Else the
lock leaves it out, and npm asks the registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from nsm.dataclass import dataclass, field
from nsmd.environments.packages import locks
from nsmd.environments.packages.indexes.reading import NPM
from nsmd.environments.packages.locks import LockError
from nsmd.environments.packages.store import NODE_MODULES, package_of

FILE = "package-lock.json"

MANIFEST = "package.json"

DEPENDENCIES = (
    "dependencies",
    "devDependencies",
    "optionalDependencies",
    "peerDependencies",
)

_OWN = "nsm"
"""Key of what nsm adds to a file."""

_NAME = r"(?:@[A-Za-z0-9_~][A-Za-z0-9._~-]*/)?[A-Za-z0-9_~][A-Za-z0-9._~-]*"
_PLACE = re.compile(rf"{NODE_MODULES}/{_NAME}(?:/{NODE_MODULES}/{_NAME})*")
_VERSION = re.compile(r"\d+\.\d+\.\d+[A-Za-z0-9.+-]*")
_HASH = r"sha(?:1|256|384|512)-[A-Za-z0-9+/]+={0,2}"
_INTEGRITY = re.compile(rf"{_HASH}(?: {_HASH})*")

_KEPT = frozenset(
    (
        *(*DEPENDENCIES, "peerDependenciesMeta", "bundleDependencies"),
        *("name", "version", "integrity", "inBundle", "hasShrinkwrap", "hasInstallScript"),
        *("dev", "optional", "devOptional", "peer", "bin", "engines", "os", "cpu", "libc"),
    )
)
"""Facts about a package that an installation needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """Exact versions of Node packages.

    Attributes:
        root: what is wanted, as in a `package.json`.
        packages: what the file says of each package, by its path.
        wanted_hash: hash of what was wanted; empty if the file does not say it.
    """

    root: Mapping[str, Any]
    packages: Mapping[str, Mapping[str, Any]] = field(repr=False)
    wanted_hash: str = ""

    @property
    def digest(self) -> str:
        """Hash of root and packages."""
        text = json.dumps([self.root, self.packages], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the packages that are wanted."""
        found = (self.root.get(key, {}) for key in DEPENDENCIES)
        return tuple(sorted({name for each in found for name in each}))

    def text(self, name: str) -> str:
        """Make the file for an environment of that name."""
        own = {"wanted": self.wanted_hash, "update": f"nsm env update {name}"}
        return self._file({"name": name, _OWN: own}, self.packages)

    def files(self, registries: Mapping[str, str]) -> Mapping[str, str]:
        """Make the files for an installation: texts by name.

        Args:
            registries: URLs of registries, by scope.
        """
        packages = {place: dict(row) for place, row in self.packages.items()}
        for place, row in packages.items():
            if "resolved" in row:
                scope = _name(place, row).partition("/")[0]
                registry = registries.get(scope, registries.get("", ""))
                row["resolved"] = registry + row["resolved"].removeprefix(NPM)
        manifest = {"name": "environment", "private": True, **self.root}
        return {
            MANIFEST: json.dumps(manifest, indent=2),
            FILE: self._file({"name": "environment"}, packages),
        }

    def _file(self, head: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]) -> str:
        root = {key: self.root[key] for key in DEPENDENCIES if key in self.root}
        table = {**head, "lockfileVersion": 3, "requires": True, "packages": {"": root, **packages}}
        return f"{json.dumps(table, indent=2)}\n"


def parse(text: str, manifest: Mapping[str, Any] | None = None) -> NodeLock:
    """Read a lock.

    Args:
        manifest: its `package.json`; None for what the lock says of it.

    Raises:
        LockError: it is not a lock, or a package comes from no registry.
    """
    table = _table(text)
    rows = table.get("packages")
    if not isinstance(rows, dict):
        raise LockError("it has no `packages`; npm 7 or newer writes them")
    packages: dict[str, Mapping[str, Any]] = {}
    root: Mapping[str, Any] = {}
    for place, row in sorted(cast("dict[str, object]", rows).items()):
        if not isinstance(row, dict):
            raise LockError(f"{place!r:.100} is not an object")
        told = cast("dict[str, Any]", row)
        if place:
            packages[place] = _package(place, told)
        else:
            root = told
    chosen = root if manifest is None else manifest
    wanted = {key: chosen[key] for key in (*DEPENDENCIES, "overrides") if key in chosen}
    for key, each in wanted.items():
        if not isinstance(each, dict):
            raise LockError(f"{key} is not an object")
    own: object = table.get(_OWN)
    found: object = cast("dict[str, Any]", own).get("wanted") if isinstance(own, dict) else None
    return NodeLock(
        root=wanted, packages=packages, wanted_hash=found if isinstance(found, str) else ""
    )


def resolved(text: str, wanted_hash: str) -> NodeLock:
    """Read the lock that npm has written for what is wanted, and pin that, too.

    Raises:
        LockError: it is not a lock.
    """
    lock = parse(text)
    rows = {name: lock.packages.get(f"{NODE_MODULES}/{name}") for name in lock.names}
    exact = {name: str(row["version"]) for name, row in rows.items() if row is not None}
    return NodeLock(root={"dependencies": exact}, packages=lock.packages, wanted_hash=wanted_hash)


def read_project(path: str) -> NodeLock | None:
    """Read a `package-lock.json`, with the `package.json` beside it; None if there is none. Blocks.

    Raises:
        LockError: one of them cannot be used.
    """
    beside = os.path.join(os.path.dirname(path), MANIFEST)
    try:
        manifest = locks.read(beside, _table)
    except LockError as error:
        raise LockError(f"{beside}, beside it, cannot be used: {error}") from error
    return locks.read(path, lambda text: parse(text, manifest))


def _table(text: str) -> dict[str, Any]:
    try:
        table: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LockError(f"it is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise LockError("it is not a JSON object")
    return cast("dict[str, Any]", table)


def _package(place: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check what a file says of a package.

    Raises:
        LockError: no registry has it, or no hash.
    """
    if not _PLACE.fullmatch(place):
        raise LockError(f"{place!r:.100} is not in {NODE_MODULES}; workspaces are not supported")
    version, integrity, link = (row.get(key) for key in ("version", "integrity", "resolved"))
    if row.get("link") or (isinstance(link, str) and not link.startswith(("http:", "https:"))):
        raise LockError(f"{package_of(place)!r:.100} comes from a directory or from git")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise LockError(f"{package_of(place)!r:.100} has no version")
    if not row.get("inBundle") and not (
        isinstance(integrity, str) and _INTEGRITY.fullmatch(integrity)
    ):
        raise LockError(f"{package_of(place)!r:.100} has no hash (integrity)")
    kept = {key: row[key] for key in sorted(_KEPT) if key in row}
    name = _name(place, row)
    usual = f"{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    if isinstance(link, str) and link.endswith(f"/{usual}"):
        kept["resolved"] = NPM + usual
    return kept


def _name(place: str, row: Mapping[str, Any]) -> str:
    """Name of a package in its registry; its directory may have another one."""
    name = row.get("name")
    return name if isinstance(name, str) and re.fullmatch(_NAME, name) else package_of(place)
