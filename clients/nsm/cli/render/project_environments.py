"""Environments that lie in a project as text, for `nsm env`. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from nsm.cli.render.formats import table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.environments import FoundRow

NAMED = 5
"""Largest number of packages to name."""


_LIST = "list of packages"
_LISTS = {
    "uv.lock": "lock of uv",
    "poetry.lock": "lock of Poetry",
    "package-lock.json": "lock of npm",
    "pnpm-lock.yaml": "lock of pnpm",
    "yarn.lock": "lock of Yarn",
    "pyproject.toml": "dependencies of a Python project",
    "pixi.lock": "lock of pixi",
    "conda-lock.yml": "lock of conda",
    "pixi.toml": "packages of conda",
    "environment.yml": "packages of conda",
    "environment.yaml": "packages of conda",
    ".txt": "requirements of Python",
    ".in": "requirements of Python",
}
"""Kinds of lists of packages, by how their names end."""


def found_table(rows: Sequence[FoundRow], width: int | None = None) -> str:
    """The table of `nsm env found`."""
    if not rows:
        return "No environments in this project."
    return table(
        "PATH NAME CONTENT STATE".split(),
        ((row.path, row.name or "-", content(row), _state(row)) for row in rows),
        width=width,
        least="CONTENT",
    )


def hints(rows: Sequence[FoundRow]) -> list[str]:
    """A line for each environment that somebody could agree to use."""
    # Lists are for those languages that have no environment yet.
    has = {_is_node(row) for row in rows if row.kind != "packages" or row.name}
    return [
        f"found: {visible(row.path)} ({content(row)}): {_command(row)} {_effect(row)}"
        for row in rows
        if row.changed
        or (
            row.name is None
            and (row.kind != "packages" or not (row.problem or _is_node(row) in has))
        )
    ]


def _is_node(row: FoundRow) -> bool:
    return row.kind == "node_modules" or row.path.endswith("package-lock.json")


def _effect(row: FoundRow) -> str:
    if row.name:
        return "agrees to what is there now"
    return "makes an environment of it" if row.kind == "packages" else "makes it the project's"


def used(row: FoundRow) -> str:
    """Outcome of `nsm env use`."""
    example = f"nsm run -e {row.name} CODE"
    return f"{visible(row.path)} ({content(row)}) is {row.name} now: `{example}`"


def content(row: FoundRow) -> str:
    """Summary of one: ``Python 3.12.1, numpy, pandas and 14 more``."""
    if row.kind == "packages":
        name = row.path.rpartition("/")[2]
        kind = next((words for end, words in _LISTS.items() if name.endswith(end)), _LIST)
        if not row.package_count:
            return kind
        return f"{kind}, {row.package_count} package{'' if row.package_count == 1 else 's'}"
    kind = f"Python {row.version}".rstrip() if row.kind == "venv" else "Node.js packages"
    chosen = sum(package.chosen for package in row.packages)
    named = [package.name for package in row.packages[: min(NAMED, chosen or NAMED)]]
    more = row.package_count - len(named)
    words = ", ".join([visible(kind), *map(visible, named)])
    if not row.package_count:
        return words if row.problem else f"{words}, no packages"
    return f"{words} and {more} more" if more > 0 and named else words


def _state(row: FoundRow) -> str:
    if row.problem is not None:
        return f"unavailable: {row.problem}"
    if row.changed:
        return f"in use; changed since you agreed: {_command(row)}"
    return "in use" if row.name else f"not in use: {_command(row)}"


def _command(row: FoundRow) -> str:
    return f"`nsm env use {visible(shlex.quote(row.path))}`"
