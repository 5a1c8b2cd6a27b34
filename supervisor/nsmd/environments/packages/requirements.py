"""Requirements that somebody wants, read from the files that name them. Blocks."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from typing import Any, cast

from nsmd.environments.packages.locks import hash_of_wanted
from nsmd.environments.packages.text_files import TextFileError, read_text
from nsmd.model.packages import WantedPackages, normal_name, why_no_requirement

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 8

OF_POETRY = (
    "nsm reads no locks of Poetry; `poetry export --with dev -o requirements.txt` writes the same "
    "versions and hashes as requirements"
)

_INCLUDED = re.compile(r"(?:-r|--requirement)(?:\s+|=)?(?P<path>\S.*)")
_HASH = re.compile(r"\s--hash[= ]\S+")


class RequirementsError(Exception):
    """The requirements cannot be read; the message is a sentence without its final dot."""


def read(wanted: WantedPackages) -> list[str]:
    """Read all requirements.

    Raises:
        RequirementsError: a file cannot be read, or has something else than requirements.
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
        if included := _INCLUDED.fullmatch(line):
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
        if included := _INCLUDED.fullmatch(line):
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
        if _HASH.search(line):
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
        table = tomllib.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise RequirementsError(f"{path} is not valid TOML: {error!s:.100}") from error
    project: object = table.get("project", {})
    if not isinstance(project, dict):
        raise RequirementsError(f"{path}: project is no table")
    head = cast("dict[str, Any]", project)
    yield from _requirements(head.get("dependencies", []), f"{path}: project.dependencies")
    for key, tables, names in (
        ("project.optional-dependencies", head.get("optional-dependencies"), wanted.extras),
        ("dependency-groups", table.get("dependency-groups"), wanted.groups),
    ):
        known = cast("dict[str, Any]", tables) if isinstance(tables, dict) else {}
        by_name = {normal_name(name): each for name, each in known.items()}
        for name in map(normal_name, names):
            if name not in by_name:
                has = ", ".join(sorted(by_name))[:200] or "nothing"
                raise RequirementsError(f"{path}: {key} has no {name:.100}; it has {has}")
            yield from _requirements(by_name[name], f"{path}: {key}.{name}")


def _requirements(found: object, where: str) -> Iterator[str]:
    if not isinstance(found, list):
        raise RequirementsError(f"{where} is no list")
    for each in cast("list[object]", found):
        if not isinstance(each, str) or why_no_requirement(each):
            raise RequirementsError(f"{where}: {each!r:.80} is no requirement")
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
