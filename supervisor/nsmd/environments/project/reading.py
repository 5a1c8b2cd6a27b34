"""A project's `.venv` or `node_modules`: what it is, and whether it has changed.

Only files are read. No program of the project runs. Anybody may have written the project: its files
may be pipes, links to elsewhere, and larger than memory. All functions block.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal, cast

from nsm.below import DIRECTORY, open_below, read_file
from nsm.dataclass import dataclass, field
from nsmd.host.paths import file_stamp
from nsmd.jail.interpreters import is_module
from nsmd.model.values import ProjectMount

Kind = Literal["venv", "node_modules", "packages"]

VENV_FILE = "pyvenv.cfg"
NODE_LOCK = ".package-lock.json"
"""npm's list of what it has installed, in `node_modules`."""

USUAL = (".venv", "venv", "env", "node_modules")
"""Directories that are looked for in a project."""

MAX_ENTRIES = 4096
"""Largest number of entries of a directory to read: 3 ms."""

MAX_PATH_CHARS = 1024
"""Longest path that is remembered."""

MAX_VENV_FILE_BYTES = 16 * 1024
MAX_LOCK_BYTES = 4 * 1024 * 1024
"""Largest part of a lock to read: 4 ms. That of a thousand packages has 500 KiB."""

_NAME = r"(@?[A-Za-z0-9][A-Za-z0-9._-]{0,99}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,63}"
_DIST_INFO = r"(.+?)-([^-]+)\.dist-info"
_TOOLS = frozenset(("pip", "setuptools", "wheel"))
"""Packages that are in virtual environments anyway; they are not listed."""


class NoEnvironmentError(Exception):
    """No such environment in the project; the message is a clause that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that is installed.

    Attributes:
        version: empty if unknown.
        chosen: somebody asked for it by name; other packages need it if this is false.
    """

    name: str
    version: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEnvironment:
    """An environment that lies in a project, or a list of packages from which one can be made.

    Attributes:
        path: of its directory or file, relative to the project.
        home: directory of the Python that it was made with; only of a `venv`.
        packages: those that somebody asked for first, at most `MAX_ENTRIES`.
        interpreter_key: hash of what decides about its interpreter.
        packages_key: hash of what is installed, or of the list.
    """

    kind: Kind
    path: str
    home: str = ""
    version: str = ""
    packages: tuple[Package, ...] = ()
    modules: tuple[str, ...] = field(default=(), repr=False)
    interpreter_key: str
    packages_key: str


def find_all(project: ProjectMount) -> list[FoundEnvironment]:
    """Find the environments in the usual places of a project.

    Raises:
        OSError: the project cannot be read.
    """
    with open_folder(project, "") as folder:
        there = [name for name in USUAL if is_folder(folder, name)]
    found: list[FoundEnvironment] = []
    for name in there:
        try:
            found.append(read(project, name))
        except NoEnvironmentError:
            continue  # a directory that only has the name
    return found


def read(project: ProjectMount, path: str, *, details: bool = True) -> FoundEnvironment:
    """Read an environment.

    Args:
        path: of its directory, relative to the project.

    Raises:
        NoEnvironmentError: there is none.
    """
    if len(path) > MAX_PATH_CHARS:
        raise NoEnvironmentError(f"its path has more than {MAX_PATH_CHARS} characters")
    try:
        with open_folder(project, path) as folder:
            if parts(path)[-1:] == ["node_modules"]:
                return _read_modules(project, path, folder, details=details)
            if mode_of(folder, VENV_FILE):
                return _read_venv(project, path, folder, details=details)
    except OSError as error:
        raise NoEnvironmentError(why_unreadable(error)) from error
    raise NoEnvironmentError(f"it has no {VENV_FILE}, and is not node_modules")


def signature(project: ProjectMount, path: str, kind: Kind, version: str) -> tuple[object, ...]:
    """Make a value that changes when the environment may have changed; takes 20 us."""
    files: tuple[str, ...] = (NODE_LOCK,)
    if kind == "venv":
        files = (VENV_FILE, "bin", "bin/python", "bin/python3", _library(version))
    folder = os.path.join(project.path, path)
    paths = (folder, *(os.path.join(folder, name) for name in files))
    return tuple(file_stamp(path, links=False) for path in paths)


# Virtual environments of Python.


def _read_venv(project: ProjectMount, path: str, folder: int, *, details: bool) -> FoundEnvironment:
    text = read_file(VENV_FILE, MAX_VENV_FILE_BYTES, root=folder)
    said = dict(_settings(text.decode(errors="replace")))
    home = said.get("home", "")
    version = said.get("version", said.get("version_info", ""))
    if not home.startswith("/") or not home.isprintable() or len(home) > MAX_PATH_CHARS:
        raise NoEnvironmentError(f"its {VENV_FILE} names no directory of a Python")
    numbers = re.match(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?", version)
    if numbers is None:
        raise NoEnvironmentError(f"its {VENV_FILE} names no version of Python")
    version = numbers[0]
    names: Sequence[str] = ()
    packages: list[Package] = []
    with (
        suppress(FileNotFoundError),
        open_folder(project, f"{path}/{_library(version)}") as library,
    ):
        names = list_names(library, MAX_ENTRIES)
        packages = list(_distributions(library, names)) if details else []
        packages = [each for each in packages if each.name not in _TOOLS]
    packages.sort(key=lambda p: (not p.chosen, p.name.lower()))
    interpreter = [text, *(os.fsencode(_target(folder, f"bin/{n}")) for n in ("python", "python3"))]
    return FoundEnvironment(
        kind="venv",
        path=path,
        home=os.path.normpath(home),
        version=version,
        packages=tuple(packages),
        modules=tuple(sorted({n.partition(".")[0] for n in names if is_module(n)})),
        interpreter_key=hash_of(interpreter),
        packages_key=hash_of(os.fsencode(name) for name in names if name != "__pycache__"),
    )


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip().lower(), value.strip()


def _library(version: str) -> str:
    return f"lib/python{'.'.join(version.split('.')[:2])}/site-packages"


def _target(folder: int, path: str) -> str:
    """Return where a link leads; for a file, its size and time."""
    try:
        return os.readlink(path, dir_fd=folder)
    except OSError:
        pass
    try:
        found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _distributions(library: int, names: Sequence[str]) -> Iterator[Package]:
    for entry in names:
        match = re.fullmatch(_DIST_INFO, entry)
        if match is None or not _is_package(match[1], match[2]) or not is_folder(library, entry):
            continue
        # pip and uv leave this file for packages that were asked for by name.
        chosen = stat.S_ISREG(mode_of(library, f"{entry}/REQUESTED"))
        yield Package(name=match[1].replace("_", "-"), version=match[2], chosen=chosen)


# Packages of Node.


def _read_modules(
    project: ProjectMount, path: str, folder: int, *, details: bool
) -> FoundEnvironment:
    names = list_names(folder, MAX_ENTRIES)
    lock = b""
    if mode_of(folder, NODE_LOCK):
        lock = read_file(NODE_LOCK, MAX_LOCK_BYTES, root=folder)
    packages: Sequence[Package] = ()
    if details:
        wanted = _wanted(project, os.path.dirname(path))
        packages = _locked(lock, wanted) or [
            Package(name=name, chosen=name in wanted) for name in names if _is_package(name, "0")
        ]
    return FoundEnvironment(
        kind="node_modules",
        path=path,
        packages=tuple(sorted(packages, key=lambda p: (not p.chosen, p.name))),
        interpreter_key="",
        packages_key=hash_of([lock, *(os.fsencode(name) for name in names)]),
    )


def _wanted(project: ProjectMount, path: str) -> frozenset[str]:
    """Names of the packages that package.json asks for."""
    try:
        with open_folder(project, path) as folder:
            text = read_file("package.json", MAX_LOCK_BYTES, root=folder)
    except OSError:
        return frozenset()
    said = _object(text)
    return frozenset(
        name for key in ("dependencies", "devDependencies") for name in _map(said.get(key))
    )


def _locked(lock: bytes, wanted: frozenset[str]) -> list[Package]:
    """The packages at the top of npm's list; those of other packages' own are left out."""
    found: list[Package] = []
    for place, row in _map(_object(lock).get("packages")).items():
        name = place.removeprefix("node_modules/")
        version = _map(row).get("version", "")
        if "node_modules/" not in name and isinstance(version, str) and _is_package(name, "0"):
            version = version if re.fullmatch(_VERSION, version) else ""
            found.append(Package(name=name, version=version, chosen=name in wanted))
            if len(found) == MAX_ENTRIES:
                break
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        return _map(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _map(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _is_package(name: str, version: str) -> bool:
    return bool(re.fullmatch(_NAME, name) and re.fullmatch(_VERSION, version))


def hash_of(values: Sequence[bytes] | Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(len(value).to_bytes(8, "big") + value)
    return digest.hexdigest()[:32]


def why_unreadable(error: OSError) -> str:
    """Return why something could not be read, as a clause."""
    if error.errno == errno.ELOOP:
        return "a link leads to it, and nsm follows no links in a project"
    if error.errno == errno.ENOTDIR:
        return "a part of its path is a link or no directory, and nsm follows no links in a project"
    if error.errno == errno.ENOENT:
        return "it is not there"
    return (error.strerror or str(error)).lower()


# Files of a project, opened without following links.


def open_project(project: ProjectMount) -> int:
    """Open the directory of a project; return its descriptor.

    Raises:
        OSError: it is not there, or is another one now.
    """
    fd = os.open(project.path, DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (project.device, project.inode):
        os.close(fd)
        raise OSError(errno.ESTALE, "another directory is there now", project.path)
    return fd


@contextmanager
def open_folder(project: ProjectMount, path: str) -> Generator[int]:
    """Open a directory of a project for a block; gives its descriptor.

    Args:
        path: relative to the project; empty for the project itself.

    Raises:
        OSError: it is not there, is none, or there is a link on the way.
    """
    root = open_project(project)
    try:
        fd = open_below(root, "/".join(parts(path)), DIRECTORY, mounts=True)
    finally:
        os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


def parts(path: str) -> list[str]:
    """Split a relative path into names.

    Raises:
        OSError: it leads out of its directory.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "the path leads out of the project", path)
    return names


def is_folder(folder: int, name: str) -> bool:
    """Return whether an open directory has a directory of that name; a link is none."""
    return stat.S_ISDIR(mode_of(folder, name))


def mode_of(folder: int, name: str) -> int:
    """Type and mode of an entry, links not followed; 0 if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except (OSError, ValueError):
        return 0


def list_names(folder: int, at_most: int) -> list[str]:
    """Sorted names of an open directory's entries; only some of them beyond `at_most`.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, at_most))
