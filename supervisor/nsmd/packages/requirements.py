"""Requirements that somebody wants, and locks that a project has itself, such as `uv.lock`. Blocks.

Of a lock, versions and hashes are taken, and no URL: files come from the user's own indexes.
"""

from __future__ import annotations

import os
import platform
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nsm.dataclass import dataclass
from nsmd.jail.interpreters import FoundInterpreter
from nsmd.model.packages import WantedPackages, normal_name, why_no_requirement
from nsmd.packages.locks import (
    MAX_LOCK_BYTES,
    OF_POETRY,
    Lock,
    LockError,
    Pin,
    hash_of_wanted,
    parse,
)
from nsmd.packages.text_files import TextFileError, read_text, rows, table, tables

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 8

_INCLUDED = r"(?:-r|--requirement)(?:\s+|=)?(?P<path>\S.*)"
_HASH = r"\s--hash[= ]\S+"


class RequirementsError(Exception):
    """The requirements cannot be read; the message is a sentence without its final dot."""


def read(wanted: WantedPackages) -> list[str]:
    """Read all requirements.

    Raises RequirementsError if a file cannot be read, or has something else.
    """
    found = list(wanted.pip)
    if wanted.requirements:
        top = wanted.included_below or os.path.dirname(wanted.requirements)
        found += _of_files(top, os.path.relpath(wanted.requirements, top))
    if wanted.project:
        found += _of_project(wanted)
    if not found:
        raise RequirementsError(f"{wanted.text} names no package")
    return list(dict.fromkeys(found))


def hash_of(wanted: WantedPackages, lines: list[str]) -> str:
    """Hash what is wanted. Other versions of Python and other machines have the same."""
    return hash_of_wanted({"pip": sorted(lines), "allow_builds": wanted.allow_builds})


def included_files(text: str) -> Iterator[str]:
    """Paths of the files that the text of a requirements file includes, as it has them."""
    for line in _logical_lines(text):
        if included := re.fullmatch(_INCLUDED, line):
            yield included["path"]


def _of_files(top: str, name: str) -> Iterator[str]:
    try:
        root = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RequirementsError(f"{top} cannot be opened: {error.strerror}") from error
    try:
        yield from _of_file(top, root, name, 0)
    finally:
        os.close(root)


def _of_file(top: str, root: int, name: str, depth: int) -> Iterator[str]:
    path = os.path.join(top, name)
    if depth > MAX_DEPTH:
        raise RequirementsError(f"{path}: too many files refer to one another")
    for number, line in enumerate(_logical_lines(_read(path, root, name)), 1):
        if included := re.fullmatch(_INCLUDED, line):
            other = os.path.normpath(os.path.join(os.path.dirname(name), included["path"]))
            if other.startswith(("/", "../")):
                raise RequirementsError(
                    f"{path}: line {number}: the file that it includes lies outside of {top}: "
                    "copy it there"
                )
            yield from _of_file(top, root, other, depth + 1)
            continue
        # Whoever wrote the list may have it include any file, and gets to read the message.
        quoted = "it" if depth else f"{line!r:.80}"
        if line.startswith("-"):
            raise RequirementsError(
                f"{path}: line {number}: {quoted} is an option; indexes and constraints come "
                "from pip's own configuration"
            )
        if re.search(_HASH, line):
            # Resolving would drop it, and take a file that nobody has agreed to.
            raise RequirementsError(
                f"{path}: line {number} has a hash; then each line of this one file needs "
                "NAME==VERSION and --hash=sha256:"
            )
        if why := why_no_requirement(line):
            raise RequirementsError(f"{path}: line {number}: {quoted} {why}")
        yield line


def _of_project(wanted: WantedPackages) -> Iterator[str]:
    path = wanted.project
    try:
        parsed = tomllib.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise RequirementsError(f"{path} is not valid TOML: {error!s:.100}") from error
    project: object = parsed.get("project", {})
    if not isinstance(project, dict):
        raise RequirementsError(f"{path}: project is not a table")
    head = cast("dict[str, Any]", project)
    yield from _requirements(head.get("dependencies", []), f"{path}: project.dependencies")
    for key, each, names in (
        ("project.optional-dependencies", head.get("optional-dependencies"), wanted.extras),
        ("dependency-groups", parsed.get("dependency-groups"), wanted.groups),
    ):
        by_name = {normal_name(name): found for name, found in table(each).items()}
        for name in map(normal_name, names):
            if name not in by_name:
                has = ", ".join(sorted(by_name))[:200] or "nothing"
                raise RequirementsError(f"{path}: {key} has no {name:.100}; it has {has}")
            yield from _requirements(by_name[name], f"{path}: {key}.{name}")


def _requirements(found: object, where: str) -> Iterator[str]:
    if not isinstance(found, list):
        raise RequirementsError(f"{where} is not a list")
    for each in cast("list[object]", found):
        if not isinstance(each, str) or why_no_requirement(each):
            raise RequirementsError(f"{where}: {each!r:.80} is not a requirement")
        yield each


def _read(path: str, root: int | None = None, name: str = "") -> str:
    try:
        return read_text(name or path, MAX_FILE_BYTES, root=root)
    except TextFileError as error:
        raise RequirementsError(f"{path} cannot be used: {error}") from error


def _logical_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if stripped := re.sub(r"(^|\s)#.*", "", line).strip():
            yield stripped


_Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLock:
    """A lock of a project: the path of its file, its packages for one Python on this machine, and
    the names of packages that are directories of the project, and left out.
    """

    path: str
    lock: Lock
    left_out: tuple[str, ...] = ()


def read_project_lock(wanted: WantedPackages, python: FoundInterpreter) -> ProjectLock | None:
    """Read the lock that belongs to what is wanted, for a Python that will have the packages, or
    raise LockError; None if there is none.
    """
    if wanted.pip or (wanted.requirements and wanted.project):
        return None
    if wanted.requirements:
        return _of_requirements(wanted.requirements)
    path = os.path.join(os.path.dirname(wanted.project), "uv.lock")
    if not os.path.lexists(path):
        if os.path.lexists(other := os.path.join(os.path.dirname(path), "poetry.lock")):
            raise LockError(f"{other} cannot be used: {OF_POETRY}")
        return None
    locked = _toml(path)
    project: _Table = {}
    if os.path.lexists(wanted.project):
        project = _toml(wanted.project)
    try:
        pins, left_out = _followed(locked, project, _Target(python, wanted.extras, wanted.groups))
        return ProjectLock(path=path, lock=_lock(pins), left_out=tuple(left_out))
    except LockError as error:
        raise LockError(f"{path} cannot be used: {error}") from error


def _of_requirements(path: str) -> ProjectLock | None:
    """Read requirements that all have a version and hashes."""
    try:
        text = read_text(path, MAX_LOCK_BYTES)
        # Comments may follow anywhere in a requirements file; locks of nsm have none.
        lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
        lock = parse("\n".join(lines))
    except (TextFileError, LockError):
        return None  # `requirements` reads it, or says why not
    return ProjectLock(path=path, lock=lock) if lock.pins else None


class _Target:
    """The Python for which a lock is read, with this machine as its platform, and the extras and
    groups of dependencies that are wanted besides the usual ones.
    """

    def __init__(
        self, python: FoundInterpreter, extras: Iterable[str], groups: Iterable[str]
    ) -> None:
        self.extras = frozenset(map(normal_name, extras))
        self.groups = frozenset(map(normal_name, groups))
        self._python = python
        self._variables = {
            "implementation_name": "cpython",
            "implementation_version": python.version_text,
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_python_implementation": "CPython",
            "platform_release": platform.release(),
            "platform_system": platform.system(),
            "platform_version": platform.version(),
            "python_full_version": python.version_text,
            "python_version": ".".join(map(str, python.version[:2])),
            "sys_platform": "linux",
        }

    def check(self, versions: object) -> None:
        """Check that the Python has one of these versions; LockError if it has not."""
        try:
            fits = SpecifierSet(str(versions or "")).contains(self._python.version_text, True)
        except InvalidSpecifier:
            return  # uv checks each package
        if not fits:
            raise LockError(
                f"it is for Python {versions!s:.40}, and {self._python.program} is "
                f"{self._python.version_text}; `--python PROGRAM` names another one"
            )

    def fits(self, marker: object) -> bool:
        """Return whether an environment marker (PEP 508) holds; without one, True. LockError if it
        is none.
        """
        if not marker:
            return True
        try:
            parsed = Marker(str(marker))
            return any(
                parsed.evaluate({**self._variables, "extra": extra}) for extra in ("", *self.extras)
            )
        except (InvalidMarker, UndefinedEnvironmentName, RecursionError, ValueError) as error:
            raise LockError(f"{str(marker)!r:.100} is not an environment marker") from error


def _check_known(wanted: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Check that a lock has what was named; LockError if it has not."""
    there = {normal_name(name) for name in known}
    for name in wanted:
        if name not in there:
            has = ", ".join(sorted(there))[:200] or "none"
            raise LockError(f"it has no {kind} {name:.100}; it has {has}")


def _followed(locked: _Table, project: _Table, target: _Target) -> tuple[list[Pin], list[str]]:
    """Follow the dependencies of the project, as `uv sync` does."""
    if locked.get("version") != 1:
        raise LockError(f"it has format {locked.get('version')!r:.20}, and nsm reads format 1")
    target.check(locked.get("requires-python"))
    packages = tables(locked.get("package"))
    by_name: dict[str, list[_Table]] = {}
    for package in packages:
        by_name.setdefault(_name(package), []).append(package)
    members = {
        normal_name(str(each)) for each in rows(table(locked.get("manifest")).get("members"))
    }
    locals_ = [package for package in packages if _directory(package) is not None]
    roots = [package for package in locals_ if _directory(package) == "."] or [
        package for package in locals_ if _name(package) in members
    ]
    if not roots:
        raise LockError("it has no package for the project itself; `uv lock` writes it again")
    groups = table(table(project.get("tool")).get("uv")).get("default-groups", ["dev"])
    found: dict[tuple[str, str], _Table] = {}
    seen: set[tuple[int, str]] = set()
    waiting: list[tuple[_Table, str]] = []
    for root in roots:
        waiting.append((root, ""))
        for group, dependencies in table(root.get("dev-dependencies")).items():
            if groups == "all" or group in groups or normal_name(group) in target.groups:
                waiting += _reached(tables(dependencies), by_name, target)
        for extra in table(root.get("optional-dependencies")):
            if normal_name(extra) in target.extras:
                waiting.append((root, extra))
    told = [name for root in roots for name in table(root.get("optional-dependencies"))]
    _check_known(target.extras, told, "extra")
    told = [name for root in roots for name in table(root.get("dev-dependencies"))]
    _check_known(target.groups, told, "group")
    while waiting:
        package, extra = waiting.pop()
        if (id(package), extra) in seen:
            continue
        seen.add((id(package), extra))
        found[_name(package), str(package.get("version", ""))] = package
        dependencies = package.get("dependencies", [])
        if extra:
            dependencies = table(package.get("optional-dependencies")).get(extra, [])
        waiting += _reached(tables(dependencies), by_name, target)
    pins = [_pin_of(package) for package in found.values() if _directory(package) is None]
    inside = {_name(root) for root in roots}
    left_out = [name for name, _ in found if name not in inside]
    return pins, [n for n in left_out if all(_directory(p) is not None for p in by_name[n])]


def _reached(
    dependencies: Iterable[_Table], by_name: Mapping[str, Sequence[_Table]], target: _Target
) -> Iterator[tuple[_Table, str]]:
    """Packages that dependencies mean, each with an extra, or none."""
    for each in dependencies:
        if not target.fits(each.get("marker")):
            continue
        meant = [
            package
            for package in by_name.get(_name(each), ())
            if each.get("version") in (None, package.get("version"))
            and each.get("source") in (None, package.get("source"))
            and _fits_any(package.get("resolution-markers"), target)
        ]
        if len(meant) != 1:
            raise LockError(f"it has {len(meant)} packages {_name(each)}, where one is needed")
        yield meant[0], ""
        for extra in rows(each.get("extra")):
            yield meant[0], str(extra)


def _fits_any(markers: object, target: _Target) -> bool:
    if not isinstance(markers, list):
        return True
    return any(target.fits(marker) for marker in cast("list[object]", markers))


def _directory(package: _Table) -> str | None:
    """The directory that a package is, relative to the lock; None if it is none."""
    source = table(package.get("source"))
    for key in ("virtual", "editable", "directory"):
        if key in source:
            return str(source[key])
    return None


def _pin_of(package: _Table) -> Pin:
    source = table(package.get("source"))
    if "registry" not in source:
        raise _elsewhere(package, next(iter(source), "nowhere"))
    files = [*tables(package.get("wheels")), table(package.get("sdist"))]
    return _pin(package, (each.get("hash") for each in files))


def _lock(pins: Sequence[Pin]) -> Lock:
    if not pins:
        raise LockError("it has no packages for this Python")
    return Lock(pins=tuple(sorted(pins, key=lambda pin: pin.name)))


def _pin(package: _Table, hashes: Iterable[object]) -> Pin:
    """Make the pin of a package, checked as those of nsm's own locks are."""
    hashed = sorted({str(each).lower() for each in hashes if each is not None})
    if not hashed:
        raise LockError(f"it has no hash for {_name(package)}")
    name, version = _name(package), package.get("version")
    try:
        pins = parse(f"{name}=={version} {' '.join(f'--hash={each}' for each in hashed)}").pins
    except LockError:
        pins = ()
    if len(pins) != 1 or (pins[0].name, pins[0].version, pins[0].marker) != (name, version, ""):
        raise LockError(f"it has no plain version and hashes for {name}")
    return pins[0]


def _elsewhere(package: _Table, kind: str) -> LockError:
    return LockError(
        f"it takes {_name(package)} from elsewhere ({kind:.20}), and nsm installs packages of "
        "indexes only"
    )


def _name(package: _Table) -> str:
    name = package.get("name")
    if not isinstance(name, str) or not name.isascii() or not name.isprintable():
        raise LockError("it has a package without a name")
    return normal_name(name)[:100]


def _toml(path: str) -> _Table:
    try:
        return tomllib.loads(read_text(path, MAX_LOCK_BYTES))
    except TextFileError as error:
        raise LockError(f"{path} cannot be used: {error}") from error
    except (ValueError, RecursionError) as error:
        raise LockError(f"{path} is not valid TOML: {error!s:.100}") from error
