"""Lists of packages in projects, such as `uv.lock`, and nsm's copies of them.

An environment is made from the copy, so it stays as somebody agreed to it whatever becomes of the
project. The files are not parsed here: the installer does that. All
functions block.

If nsm followed the list instead, whoever writes to the project would choose what is installed. No
tool of the project is asked either (`uv export` needs the whole workspace), and nothing is resolved
again, since a team wants its own versions. The installer takes names, versions and hashes from a
lock, and no URL: a lock chooses among what the user's own indexes have.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from nsm.below import read_file
from nsm.dataclass import dataclass
from nsm.paths import replace_file
from nsmd.environments.project.reading import (
    MAX_PATH_CHARS,
    FoundEnvironment,
    NoEnvironmentError,
    hash_of,
    list_names,
    mode_of,
    open_folder,
    parts,
    why_unreadable,
)
from nsmd.host.paths import file_stamp, printable
from nsmd.model.packages import WantedPackages
from nsmd.model.values import ProjectMount
from nsmd.packages.locks import MAX_LOCK_BYTES, OF_POETRY

PYPROJECT = "pyproject.toml"

MAX_FILES = 32
"""Largest number of files of one list: requirements may include others."""

MAX_ENTRIES = 4096

_NPM = (
    "nsm reads npm's lock only: `npm install --package-lock-only` makes a package-lock.json from "
    "the same package.json"
)
UNREADABLE: Mapping[str, str] = {
    "pnpm-lock.yaml": _NPM,
    "yarn.lock": _NPM,
    "poetry.lock": OF_POETRY,
}
"""Lists from which nsm makes no environment, with what to do instead."""

_UV_LOCK = "uv.lock"
_NODE_LOCK = "package-lock.json"
_CONDA_LOCKS = ("pixi.lock", "conda-lock.yml")
_LOCKS = (_UV_LOCK, _NODE_LOCK, *_CONDA_LOCKS)
_CONDA = ("environment.yml", "environment.yaml", "pixi.toml", *_CONDA_LOCKS)
_BESIDE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_CONDA, ()),
    "pixi.toml": ("pixi.lock",),
    _UV_LOCK: (PYPROJECT,),
    PYPROJECT: (_UV_LOCK, "poetry.lock"),
    _NODE_LOCK: ("package.json",),
}
"""Files that belong to a list, in its directory, if they are there."""

_ENTRY = {
    _UV_LOCK: b"\n[[package]]",
    _NODE_LOCK: b'"node_modules/',
}
"""Beginnings of packages in locks; not of locks that have other platforms' packages, too."""

_USUAL = frozenset((*_BESIDE, *UNREADABLE))
_DEPENDENCIES = re.compile(rb"^\s*dependencies\s*=", re.MULTILINE)
_REQUIREMENTS = re.compile(r"([\w.-]*[_.-])?requirements([_.-][\w.-]*)?\.(txt|in)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageList:
    """A list of packages in a project.

    Attributes:
        path: of its file, relative to the project.
        files: contents of all its files, by path relative to the project.
    """

    path: str
    files: Mapping[str, bytes]

    @property
    def found(self) -> FoundEnvironment:
        """The list as an environment that could be made."""
        # Where there is a lock, nothing else decides about the packages.
        locks = [name for name in self.files if os.path.basename(name) in _LOCKS]
        return FoundEnvironment(
            kind="packages",
            path=self.path,
            interpreter_key="",
            packages_key=self.hash_of(locks or self.files),
        )

    def hash_of(self, names: Iterable[str]) -> str:
        """Hash some of the files."""
        return hash_of(part for name in names for part in (name.encode(), self.files[name]))

    @property
    def count(self) -> int:
        """Number of packages in a lock; 0 for other lists."""
        name = os.path.basename(self.path)
        return self.files[self.path].count(_ENTRY[name]) if name in _ENTRY else 0

    def wanted(self, folder: str) -> WantedPackages:
        """Return what the installer has to install for this list."""
        path = os.path.join(folder, self.path)
        if path.endswith((".txt", ".in")):
            return WantedPackages(requirements=path, included_below=folder)
        if os.path.basename(path) in _CONDA:
            return WantedPackages(conda=path)
        if os.path.basename(path) == _NODE_LOCK:
            return WantedPackages(package_lock=path)
        return WantedPackages(project=os.path.join(os.path.dirname(path), PYPROJECT))


def is_list(path: str) -> bool:
    """Return whether a path is that of a list of packages, by its name."""
    name = os.path.basename(path)
    return name in _USUAL or name.endswith((".txt", ".in"))


def why_not(path: str) -> str:
    """Return why nsm makes no environment from such a file; empty if it does."""
    return UNREADABLE.get(os.path.basename(path), "")


def find_all(project: ProjectMount) -> list[str]:
    """Find the lists at the top of a project, by name.

    Raises:
        OSError: the project cannot be read.
    """
    with open_folder(project, "") as folder:
        names = list_names(folder, MAX_ENTRIES)
        found = [name for name in names if name in _USUAL or _REQUIREMENTS.fullmatch(name)]
        found = [name for name in found if mode_of(folder, name) & 0o170000 == 0o100000]
        locked = any(name in found for name in _BESIDE[PYPROJECT])
        if PYPROJECT in found and (locked or not _has_dependencies(folder)):
            found.remove(PYPROJECT)
    return found


def _has_dependencies(folder: int) -> bool:
    with suppress(OSError):
        data = read_file(PYPROJECT, MAX_LOCK_BYTES, root=folder)
        return b"[project]" in data and _DEPENDENCIES.search(data) is not None
    return False


def read(project: ProjectMount, path: str) -> PackageList:
    """Read a list.

    Args:
        path: of its file, relative to the project.

    Raises:
        NoEnvironmentError: it cannot be read, or used.
    """
    if reason := why_not(path):
        raise NoEnvironmentError(reason)
    files: dict[str, bytes] = {}
    for name in _files_of(project, path, files):
        if len(files) == MAX_FILES:
            raise NoEnvironmentError(f"it is made of more than {MAX_FILES} files")
        files[name] = _read(project, name, MAX_LOCK_BYTES - sum(map(len, files.values())))
    return PackageList(path=path, files=files)


def _files_of(project: ProjectMount, path: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Paths of the files that belong to a list; `files` has those before when the next is asked."""
    yield path
    folder, name = os.path.split(path)
    if name.endswith((".txt", ".in")):
        from nsmd.packages.requirements import included_files  # noqa: PLC0415  # imports much

        waiting = [path]
        for each in waiting:
            for included in included_files(files[each].decode(errors="replace")):
                other = os.path.normpath(os.path.join(os.path.dirname(each), included))
                if other not in files:
                    yield other
                    waiting.append(other)  # its content is there by now
        return
    beside: list[str] = []
    with suppress(OSError), open_folder(project, folder) as opened:
        beside = [each for each in _BESIDE[name] if mode_of(opened, each)]
    yield from (os.path.join(folder, each) for each in beside)


def _read(project: ProjectMount, path: str, most: int) -> bytes:
    if len(path) > MAX_PATH_CHARS:
        raise NoEnvironmentError(f"a path in it has more than {MAX_PATH_CHARS} characters")
    try:
        with open_folder(project, "") as folder:
            data = read_file("/".join(parts(path)), most + 1, root=folder)
    except OSError as error:
        raise NoEnvironmentError(f"{printable(path)}: {why_unreadable(error)}") from error
    if len(data) > most:
        raise NoEnvironmentError(f"its files have more than {MAX_LOCK_BYTES >> 20} MiB")
    return data


def signature(project: ProjectMount, files: Collection[str]) -> tuple[object, ...]:
    """Make a value that changes when one of these files may have changed."""
    return tuple(file_stamp(os.path.join(project.path, path), links=False) for path in files)


class ListCopies:
    """nsm's copies of lists, each in a directory named by a hash of project, path and content.

    Args:
        directory: absolute path; made with the first copy, for this user alone.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def keep(self, project: str, found: PackageList) -> str:
        """Copy a list. Returns the directory of the copy.

        Raises:
            OSError: it cannot be written.
        """
        contents = found.hash_of(found.files)
        key = hash_of([os.fsencode(project), found.path.encode(), contents.encode()])
        path = os.path.join(self._directory, key)
        if os.path.isdir(path):
            return path
        new = os.path.join(self._directory, f".new-{secrets.token_hex(8)}")
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        try:
            for name, data in found.files.items():
                os.makedirs(os.path.dirname(os.path.join(new, name)), exist_ok=True)
                replace_file(os.path.join(new, name), data)
            os.rename(new, path)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(path):
                raise
        return path

    def keep_only(self, paths: Collection[str]) -> None:
        """Remove all copies but these."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if not any(f"{kept}/".startswith(f"{path}/") for kept in paths):
                    shutil.rmtree(path, ignore_errors=True)
