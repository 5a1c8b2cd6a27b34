"""Environments that lie in a project, as the operations `env_found` and `env_use` answer."""

from typing import NamedTuple

from nsm.wire.builds import BuiltRow
from nsm.wire.operation import operation


class FoundPackage(NamedTuple):
    """A package that is installed.

    Attributes:
        version: empty if unknown.
        chosen: somebody asked for it by name; other packages need it if this is false.
    """

    name: str
    version: str
    chosen: bool


class FoundRow(NamedTuple):
    """One environment that lies in a project.

    Attributes:
        path: of its directory, relative to the project; of a list of packages, its file.
        kind: ``venv``, ``node_modules``, or ``packages`` for a list of packages.
        version: of its Python; empty if unknown.
        packages: those that somebody asked for first, at most 256.
        package_count: number of all packages; 0 if unknown.
        name: to run code in it; None if nobody has agreed to use it.
        changed: its packages have changed since somebody agreed. If it was made from a list of
            packages, it goes on as it was then.
        problem: why it cannot be used, for people; None if it can, as far as known.
        build: of a list in use: how far its environment is; else None.
    """

    path: str
    kind: str
    version: str
    packages: tuple[FoundPackage, ...]
    package_count: int
    name: str | None
    changed: bool
    problem: str | None
    build: BuiltRow | None = None


@operation("manage", key="found", recorded=None)
def env_found(project: str) -> list[FoundRow]: ...
@operation("manage", key="found", recorded=("project", "path", "name"))
def env_use(
    project: str,
    path: str,
    name: str | None = None,
    *,
    interpreter: str = "",
    allow_builds: bool = False,
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    wait: bool = False,
) -> FoundRow: ...
@operation("manage", key="name", recorded=("project", "target"))
def env_forget(project: str, target: str) -> str: ...
