"""uv and npm: found on this host, and their commands in the jail of a build."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from nsmd.environments.interpreters import FoundInterpreter, in_base_system
from nsmd.environments.packages import node_locks
from nsmd.environments.packages.build_jail import ENV
from nsmd.environments.packages.locks import MAX_LOCK_BYTES, Lock, parse
from nsmd.environments.packages.node_locks import NodeLock
from nsmd.environments.packages.store import BUILD, read_left
from nsmd.host.paths import why_not_run

RESOLVED = "resolved"
"""Directory in which npm resolves."""

PLACE = "/run/nsm/tool"
"""Directory of the tool in the jail."""

PYTHON = f"{ENV}/bin/python"


class PackageTool(Protocol):
    """A program that resolves and installs packages.

    Attributes:
        name: name for people.
        shown: what the jail has to show, and where.
        variables: its variables.
        offline: options with which it uses its cache alone; none if it cannot.
        prefers_cache: it asks the indexes only for what its cache lacks.
    """

    @property
    def name(self) -> str: ...
    @property
    def shown(self) -> Sequence[tuple[str, str]]: ...
    @property
    def variables(self) -> Mapping[str, str]: ...
    @property
    def offline(self) -> Sequence[str]: ...
    @property
    def prefers_cache(self) -> bool: ...

    def resolve(self, work: str, constraints: Sequence[str], *, builds: bool) -> list[str]:
        """Make the command that resolves what the packages' `prepare` has written.

        Args:
            work: the build's own directory, in the jail.
            constraints: files with constraints.
            builds: packages that are not ready to use may be built.
        """
        ...

    def resolved(self, place: str, wanted_hash: str) -> Any:
        """Read the lock that this command has made.

        Args:
            place: the build's own directory on the host.

        Raises:
            LockError, OSError, ValueError: there is none.
        """
        ...

    def install(self, work: str, *, builds: bool) -> list[str]:
        """Make the command that installs what the packages' `write_lock` has written."""
        ...

    def run_scripts(self) -> list[str]:
        """Make the command that runs the packages' own scripts after an installation with `builds`,
        in a jail whose `BUILD` is the build's own directory; empty if `install` has run all.
        """
        ...


class Uv:
    """uv.

    Args:
        program: path of its program.
    """

    name = "uv"
    offline = ("--offline",)
    prefers_cache = False

    def __init__(self, program: str) -> None:
        self._program = f"{PLACE}/uv"
        self.shown = ((os.path.realpath(program), self._program),)
        self.variables: Mapping[str, str] = {
            "UV_CACHE_DIR": f"{BUILD}/cache/uv",
            "UV_LINK_MODE": "hardlink",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def __repr__(self) -> str:
        return f"<Uv {self.shown[0][0]}>"

    def resolve(self, work: str, constraints: Sequence[str], *, builds: bool) -> list[str]:
        return [
            *(self._program, "pip", "compile", "--universal", "--generate-hashes"),
            *("--quiet", "--no-header", "--no-annotate", "--python", PYTHON),
            *("--output-file", f"{work}/resolved.txt"),
            *_wheels_only(builds=builds),
            *(word for path in constraints for word in ("--constraint", path)),
            f"{work}/wanted.txt",
        ]

    def resolved(self, place: str, wanted_hash: str) -> Lock:
        text = read_left(f"{place}/resolved.txt", MAX_LOCK_BYTES)
        return Lock(pins=parse(text).pins, wanted_hash=wanted_hash)

    def install(self, work: str, *, builds: bool) -> list[str]:
        return [
            *(self._program, "pip", "install", "--python", PYTHON, "--require-hashes"),
            *("--no-deps", *_wheels_only(builds=builds), "-r", f"{work}/lock.txt"),
        ]

    def run_scripts(self) -> list[str]:
        return []


class Npm:
    """npm.

    Args:
        node: path of the Node that runs it.
        package: directory of its package.
    """

    name = "npm"
    offline = ("--offline",)
    prefers_cache = True

    def __init__(self, node: str, package: str) -> None:
        # Debian's npm uses packages beside it, which jails show anyway.
        place = package if in_base_system(package) else f"{PLACE}/npm"
        self.shown = () if place == package else ((package, place),)
        self._program = (node, f"{place}/bin/npm-cli.js")
        self.variables: Mapping[str, str] = {
            "npm_config_cache": f"{BUILD}/cache/npm",
            "npm_config_globalconfig": "/nonexistent",
            "npm_config_userconfig": os.devnull,
            "npm_config_logs_max": "0",
            "npm_config_progress": "false",
            "npm_config_audit": "false",
            "npm_config_fund": "false",
            "npm_config_update_notifier": "false",
        }

    def __repr__(self) -> str:
        return f"<Npm {self._program[1]}>"

    def resolve(self, work: str, constraints: Sequence[str], *, builds: bool) -> list[str]:
        del constraints, builds
        return [
            *(*self._program, "install", "--package-lock-only", "--ignore-scripts"),
            *("--prefix", f"{work}/{RESOLVED}"),
        ]

    def resolved(self, place: str, wanted_hash: str) -> NodeLock:
        text = read_left(f"{place}/{RESOLVED}/{node_locks.FILE}", MAX_LOCK_BYTES)
        return node_locks.resolved(text, wanted_hash)

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


def _wheels_only(*, builds: bool) -> Sequence[str]:
    return () if builds else ("--only-binary", ":all:")


def find_uv(search_path: str) -> Uv | None:
    """Find uv: the one that nsm was installed with, else one on PATH. Blocks."""
    for program in _uvs(search_path):
        if os.path.isfile(program) and os.access(program, os.X_OK) and not why_not_run(program):
            return Uv(program)
    return None


def find_npm(node: FoundInterpreter, search_path: str) -> Npm | None:
    """Find npm: that of the Node, else another one on PATH. Blocks."""
    for package in _npms(node, search_path):
        if os.path.isfile(os.path.join(package, "bin/npm-cli.js")) and not why_not_run(package):
            return Npm(node.program, package)
    return None


def _npms(node: FoundInterpreter, search_path: str) -> Iterator[str]:
    prefix = os.path.dirname(os.path.dirname(node.program))
    yield f"{prefix}/lib/node_modules/npm"
    for folder in search_path.split(os.pathsep):
        program = os.path.realpath(os.path.join(folder, "npm"))
        if os.path.isabs(folder) and os.path.basename(program) == "npm-cli.js":
            yield os.path.dirname(os.path.dirname(program))
    yield "/usr/share/nodejs/npm"


def _uvs(search_path: str) -> Iterator[str]:
    # On other machines, to which `nsm host setup` copies nsm, there is the module alone.
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin  # noqa: PLC0415

        yield find_uv_bin()
    for folder in search_path.split(os.pathsep):
        if os.path.isabs(folder):
            yield os.path.join(folder, "uv")
