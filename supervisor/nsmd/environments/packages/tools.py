"""uv, pip and npm: found on this host, and their commands in the jail of a build."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version

from nsmd.environments.interpreters import FoundInterpreter, in_base_system
from nsmd.environments.packages import node_locks, pip_install, pip_resolve
from nsmd.environments.packages.build_jail import ENV
from nsmd.environments.packages.locks import MAX_LOCK_BYTES, Lock, LockError, parse, pinned
from nsmd.environments.packages.node_locks import NodeLock
from nsmd.environments.packages.store import BUILD, read_left
from nsmd.host.paths import why_not_run

RESOLVED = "resolved"
"""Directory in which npm resolves."""

PLACE = "/run/nsm/tool"
"""Directory of the tool in the jail."""

PYTHON = f"{ENV}/bin/python"

_PIP_RESOLVE = f"{PLACE}/pip_resolve.py"
_PIP_INSTALL = f"{PLACE}/pip_install.py"

_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(
    r"[^-]+-(?P<wheel>[^-]+)-[^/]+\.whl|[^/]+-(?P<source>[^-/]+)\.(?:tar\.(?:gz|bz2|xz)|tgz|zip)"
)
"""Name of a wheel or of a source, with its version (packaging.python.org)."""

MAX_REPORT_BYTES = 64 * 1024 * 1024


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
            # Mostly the configuration is pip's, so this chooses as pip does.
            "UV_INDEX_STRATEGY": "unsafe-best-match",
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


class Pip:
    """pip.

    Args:
        package: path of its package: a directory, or one in a wheel.
    """

    name = "pip"
    offline = (pip_install.OFFLINE,)
    prefers_cache = True

    def __init__(self, package: str) -> None:
        # Without what lies beside it, which pip would take for installed packages.
        above, name = os.path.split(package)
        if above.endswith(".whl"):
            wheel = f"{PLACE}/{os.path.basename(above)}"
            self.shown: tuple[tuple[str, str], ...] = ((above, wheel),)
            self._program = f"{wheel}/{name}"
        else:
            self._program = f"{PLACE}/{name}"
            self.shown = ((package, self._program),)
        for program, shown in ((pip_resolve, _PIP_RESOLVE), (pip_install, _PIP_INSTALL)):
            self.shown += ((os.path.abspath(str(program.__file__)), shown),)
        self.variables: Mapping[str, str] = {
            "PIP_CACHE_DIR": f"{BUILD}/cache/pip",
            "PIP_PROGRESS_BAR": "off",
        }

    def __repr__(self) -> str:
        return f"<Pip {self.shown[0][0]}>"

    def resolve(self, work: str, constraints: Sequence[str], *, builds: bool) -> list[str]:
        report = f"{work}/report.json"
        return [
            *(PYTHON, "-I", _PIP_RESOLVE, report, f"{work}/hashes.json"),
            *(PYTHON, "-I", self._program, "install", "--dry-run", "--ignore-installed"),
            *("--report", report, *_wheels_only(builds=builds)),
            *(word for path in constraints for word in ("--constraint", path)),
            *("-r", f"{work}/wanted.txt"),
        ]

    def resolved(self, place: str, wanted_hash: str) -> Lock:
        report: Any = json.loads(read_left(f"{place}/report.json", MAX_REPORT_BYTES))
        others: Any = json.loads(read_left(f"{place}/hashes.json", MAX_REPORT_BYTES))
        try:
            versions = (
                (each["metadata"]["name"], each["metadata"]["version"], each["download_info"])
                for each in report["install"]
            )
            return pinned(
                (
                    (
                        name,
                        version,
                        [_sha256(chosen["archive_info"]), *_of(version, others.get(name, {}))],
                    )
                    for name, version, chosen in versions
                ),
                wanted_hash,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LockError(f"pip's report has no {error}") from error

    def install(self, work: str, *, builds: bool) -> list[str]:
        lock, pip = f"{work}/lock.txt", (PYTHON, "-I", self._program)
        if builds:  # alone, without wheels that others have kept
            return [
                *(*pip, "install", "--require-hashes", "--no-deps"),
                *("--no-compile", "--no-warn-script-location", "-r", lock),
            ]
        wheels = f"{BUILD}/cache/pip-wheels"
        return [PYTHON, "-I", _PIP_INSTALL, wheels, lock, *pip]


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
            # The proxy is near, and has tried again itself.
            "npm_config_fetch_retries": "1",
            "npm_config_fetch_retry_mintimeout": "500",
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
        scripts = () if builds else ("--ignore-scripts",)
        return [
            *(*self._program, "ci", "--prefer-offline", "--loglevel", "http", *scripts),
            # Not `ENV`, since npm takes a link for another package.
            *("--prefix", f"{work}/env"),
        ]


def _wheels_only(*, builds: bool) -> Sequence[str]:
    return () if builds else ("--only-binary", ":all:")


def _sha256(archive: Any) -> str:
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)])
    return str(hashes["sha256"])


def _of(version: str, hashes: Mapping[str, str]) -> Iterator[str]:
    """Hashes of a version's files, for all platforms.

    Args:
        hashes: hashes of a project's files, by their names.

    Raises:
        ValueError: it is no version.
    """
    wanted = Version(version)
    for name, digest in hashes.items():
        if match := _FILE.fullmatch(name):
            with suppress(InvalidVersion):
                if Version(match["wheel"] or match["source"]) == wanted and _HASH.fullmatch(digest):
                    yield digest


def find_python_tool(
    python: FoundInterpreter, search_path: str, only: str = ""
) -> PackageTool | None:
    """Find uv, else pip: that of the interpreter, else the one beside nsm. Blocks.

    Args:
        python: Python of the environment.
        search_path: value of PATH.
        only: name of the tool to find.
    """
    for program in _uvs(search_path) if only in ("", "uv") else ():
        if os.path.isfile(program) and os.access(program, os.X_OK) and not why_not_run(program):
            return Uv(program)
    for package in _pips(python) if only in ("", "pip") else ():
        wheel = os.path.dirname(package)
        if os.path.isfile(wheel) if wheel.endswith(".whl") else os.path.isdir(package):
            return Pip(package)
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
    for folder in search_path.split(os.pathsep):
        if os.path.isabs(folder):
            yield os.path.join(folder, "uv")
    spec = importlib.util.find_spec("uv")
    if spec is not None and spec.origin is not None:
        # `site-packages/uv/__init__.py`; the program is in the `bin` of that environment.
        prefix = os.path.abspath(os.path.join(spec.origin, *[os.pardir] * 5))
        yield os.path.join(prefix, "bin", "uv")


def _pips(python: FoundInterpreter) -> Iterator[str]:
    library = f"lib/python{'.'.join(map(str, python.version[:2]))}"
    prefix = os.path.dirname(os.path.dirname(python.program))
    yield f"{prefix}/{library}/site-packages/pip"
    if prefix == "/usr":
        yield f"/usr/local/{library}/dist-packages/pip"
        yield "/usr/lib/python3/dist-packages/pip"
    for folder in (f"{prefix}/{library}/ensurepip/_bundled", "/usr/share/python-wheels"):
        for wheel in sorted(glob.glob(f"{glob.escape(folder)}/pip-*.whl"), reverse=True):
            yield f"{wheel}/pip"
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None:
        yield os.path.dirname(spec.origin)
