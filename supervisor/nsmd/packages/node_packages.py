"""Environments of Node packages: npm, its locks, and what it has installed.

Locks are files in the format of npm's `package-lock.json`; npm can install from them, too.
`resolved` is the URL of a package's file. If that is the usual path of a registry, which may be a
mirror, the lock has the same path in npm's own registry. Else the lock leaves it out, and npm asks
the registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from nsm.dataclass import dataclass, field
from nsmd.host.package_manager import install_command
from nsmd.host.paths import why_not_run
from nsmd.jail.interpreters import FoundInterpreter, Unreadable, find_node, in_base_system
from nsmd.model.host_rules import AllowList
from nsmd.model.packages import npm_versions
from nsmd.packages import locks
from nsmd.packages.build_jail import PLACE, BuildJail
from nsmd.packages.build_network import BuildSettings, npm_settings
from nsmd.packages.index_reading import NPM
from nsmd.packages.language_packages import LanguagePackages
from nsmd.packages.locks import MAX_LOCK_BYTES, LockError, hash_of_wanted
from nsmd.packages.package_builds import InstallError, InstallRequest, in_thread
from nsmd.packages.sharing import share_packages
from nsmd.packages.store import (
    BUILD,
    NODE_MODULES,
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    make_directory,
    package_of,
    read_left,
    write_new,
)

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
    """Exact versions of Node packages: what is wanted, as in a `package.json`, what the file says
    of each package, by its path, and the hash of what was wanted, empty if the file does not say
    it.
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
        """Make the files for an installation: texts by name. URLs of registries are by scope."""
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
    """Read a lock, and what is wanted from its `package.json`; if that is None, from the lock.

    Raises LockError if it is not a lock, or a package comes from no registry.
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
    """Read the lock that npm has written for what is wanted, and pin that, too; or raise
    LockError.
    """
    lock = parse(text)
    rows = {name: lock.packages.get(f"{NODE_MODULES}/{name}") for name in lock.names}
    exact = {name: str(row["version"]) for name, row in rows.items() if row is not None}
    return NodeLock(root={"dependencies": exact}, packages=lock.packages, wanted_hash=wanted_hash)


def read_project(path: str) -> NodeLock | None:
    """Read a `package-lock.json`, with the `package.json` beside it, or raise LockError; None if
    there is none. Blocks.
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
    """Check what a file says of a package. Raises LockError if no registry has it, or no hash."""
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


RESOLVED = "resolved"
"""Directory in which npm resolves."""


def find_npm(node: FoundInterpreter, search_path: str) -> str | None:
    """Find the directory of npm's package: that of the Node, else another one on PATH. Blocks."""
    for package in _npms(node, search_path):
        if os.path.isfile(os.path.join(package, "bin/npm-cli.js")) and not why_not_run(package):
            return package
    return None


def _npms(node: FoundInterpreter, search_path: str) -> Iterator[str]:
    prefix = os.path.dirname(os.path.dirname(node.program))
    yield f"{prefix}/lib/node_modules/npm"
    for folder in search_path.split(os.pathsep):
        program = os.path.realpath(os.path.join(folder, "npm"))
        if os.path.isabs(folder) and os.path.basename(program) == "npm-cli.js":
            yield os.path.dirname(os.path.dirname(program))
    yield "/usr/share/nodejs/npm"


class NodePackages(LanguagePackages):
    """Node packages that are wanted, for a Node, and a Python for the agent and the jail."""

    tool = "npm"
    variables: ClassVar[Mapping[str, str]] = {
        "npm_config_cache": f"{BUILD}/cache/npm",
        "npm_config_globalconfig": "/nonexistent",
        "npm_config_userconfig": os.devnull,
        "npm_config_logs_max": "0",
        "npm_config_progress": "false",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_update_notifier": "false",
    }

    def __init__(self, request: InstallRequest, unreadable: Unreadable) -> None:
        found = find_node(
            request.wanted.interpreter or None,
            request.search_path,
            home=request.home,
            unreadable=unreadable,
        )
        if isinstance(found, str):
            raise InstallError(f"There is no Node for it: {found}")
        self.node, python = found
        facts = self.node.program, self.node.version_text
        super().__init__(request, python, facts=facts, lock_file=FILE)
        self._program: Sequence[str] = ()

    @property
    def wanted_hash(self) -> str:
        wanted = self.request.wanted
        return hash_of_wanted({"npm": sorted(wanted.npm), "allow_builds": wanted.allow_builds})

    def own_lock(self) -> tuple[NodeLock, str, str] | None:
        path = self.request.wanted.package_lock
        if not path:
            return None
        try:
            lock = read_project(path)
        except LockError as error:
            raise InstallError(f"{path} cannot be used: {error}") from error
        if lock is None:
            raise InstallError(
                f"{path} is not there", "`npm install --package-lock-only` in the project makes it."
            )
        if not lock.packages:
            raise InstallError(
                f"{path} names no package",
                "Add packages to the package.json beside it, then run "
                "`npm install --package-lock-only`.",
            )
        return lock, path, ""

    def read_lock(self, path: str) -> NodeLock | None:
        return locks.read(path, parse, follow=True)

    def find_tool(self) -> Sequence[tuple[str, str]]:
        package = find_npm(self.node, self.request.search_path)
        if package is None:
            raise InstallError(
                "There is no npm to install packages with",
                f"Install it: {install_command('npm')}",
            )
        # Debian's npm uses packages beside it, which jails show anyway.
        place = package if in_base_system(package) else f"{PLACE}/npm"
        self._program = (self.node.program, f"{place}/bin/npm-cli.js")
        return () if place == package else ((package, place),)

    def problems(self) -> Sequence[str]:
        return self.indexes.npm_problems

    def shown(self) -> Sequence[str]:
        return tuple(dict.fromkeys((*self.node.prefixes, *self.python.prefixes)))

    def prepare(self, staging: Staging) -> None:
        wanted = dict(map(npm_versions, self.request.wanted.npm))
        for folder in (staging.environment, os.path.join(staging.place, RESOLVED)):
            make_directory(folder)
        manifest = {"name": "environment", "private": True, "dependencies": wanted}
        staging.write(f"{RESOLVED}/{MANIFEST}", [json.dumps(manifest)])

    def resolve(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [
            *(*self._program, "install", "--package-lock-only", "--ignore-scripts"),
            *("--prefix", f"{work}/{RESOLVED}"),
        ]

    def resolved(self, place: str) -> NodeLock:
        text = read_left(f"{place}/{RESOLVED}/{FILE}", MAX_LOCK_BYTES)
        return resolved(text, self.wanted_hash)

    def install(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [
            *(*self._program, "ci", "--prefer-offline", "--loglevel", "http", "--ignore-scripts"),
            # Not `ENV`, since npm takes a link for another package.
            *("--prefix", f"{work}/env"),
        ]

    def run_scripts(self) -> list[str]:
        own = ("--prefix", f"{BUILD}/env", "--cache", f"{BUILD}/npm")
        return [*self._program, "rebuild", "--loglevel", "http", *own]

    def settings(self, listed: AllowList) -> BuildSettings:
        del listed
        return npm_settings(self.indexes)

    def write_lock(self, staging: Staging, lock: NodeLock) -> None:
        registries = {each.scope: each.url for each in self.indexes.npm}
        for name, text in lock.files(registries).items():
            write_new(os.path.join(staging.environment, name), text)

    async def finish(
        self, staging: Staging, jail: BuildJail, store: EnvironmentStore, lock: NodeLock
    ) -> EnvironmentDetails:
        del jail
        return await in_thread(self._look, staging, store, lock)

    def _look(
        self, staging: Staging, store: EnvironmentStore, lock: NodeLock
    ) -> EnvironmentDetails:
        staging.check(NODE_MODULES)
        made = staging.environment
        # Sessions see these files, and the URL of a registry is nobody's business there.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(made, NODE_MODULES, f".{FILE}"))
        for name, text in lock.files({"": NPM}).items():
            os.unlink(os.path.join(made, name))
            write_new(os.path.join(made, name), text)
        versions = _installed(made, lock)
        share_packages(store, made, versions)
        return EnvironmentDetails(
            interpreter="node",
            program=self.node.program,
            agent_python=self.python.program,
            prefixes=tuple(dict.fromkeys((*self.node.prefixes, *self.python.prefixes))),
            version=self.node.version_text,
            lock=lock.digest,
            versions=versions,
            modules=tuple(name for name in lock.names if name in versions),
        )


def _installed(made: str, lock: NodeLock) -> dict[str, str]:
    """Versions of packages, by path below `node_modules`; the others are for other platforms."""
    return {
        place.removeprefix(f"{NODE_MODULES}/"): row["version"]
        for place, row in lock.packages.items()
        if os.path.isdir(os.path.join(made, place))
    }
