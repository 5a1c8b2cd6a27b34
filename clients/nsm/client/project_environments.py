"""Environments that belong to projects: ``client.project_environments`` of either client.

Example::

    import nsm

    with nsm.Client(project="/home/me/web") as client:
        row = client.project_environments.use("uv.lock")
        if row.build is not None and row.build.state == "ready":
            print(client.run("import flask", env=row.name).exit_code)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.client.builds import rows_to
from nsm.wire.answers import read
from nsm.wire.errors import BadProjectError
from nsm.wire.project_environments import FoundRow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.client.builds import OnProgress


class ProjectEnvironments:
    """Environments that belong to one project. Blocks.

    Args:
        project: absolute path; None if the client has none, and nothing can be asked.
    """

    def __init__(self, client: Client, project: str | None) -> None:
        self._client = client
        self._project = project

    def find(self) -> list[FoundRow]:
        """Find environments and lists of packages by reading files, in use or not."""
        wire = self._client.call("env_found", {"project": _named(self._project)})
        return read(list[FoundRow], wire, "found")

    def use(
        self,
        path: str,
        *,
        name: str | None = None,
        interpreter: str | None = None,
        allow_builds: bool = False,
        extras: Iterable[str] = (),
        groups: Iterable[str] = (),
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> FoundRow:
        """Agree to use one, as it is now, for all clients of the project.

        An environment is made from a list of packages, such as `uv.lock`, in the background. It
        goes on being made if the call ends early.

        Args:
            path: of its directory, or of a list of packages; absolute or relative to the project.
            name: for it; None for one that is made from the path.
            interpreter: of a list: absolute path of its Python; None for the one of the preset.
            allow_builds: of a list: build packages that have no wheel.
            extras, groups: of a project's lock: extras, and groups of dependencies, besides what
                its own tool installs.
            wait: until it is built, or has failed.
            on_progress: called while it is.

        Returns:
            Facts about it. Of a list, `build` says whether it can be used.

        Raises:
            BadRequestError: there is none, or the name cannot be used.
            EnvironmentUnavailableError: it cannot be used here.
        """
        arguments = _use_arguments(
            self._project, path, name, interpreter, allow_builds, extras, groups, wait
        )
        wire = self._client.call(
            "env_use", arguments, on_event=rows_to(on_progress), interruptible=wait
        )
        return read(FoundRow, wire, "found")

    def forget(self, target: str) -> str:
        """Forget that somebody agreed to one; returns its name. Sessions in it live on.

        Args:
            target: its path or name.
        """
        wire = self._client.call("env_forget", _forget_arguments(self._project, target))
        return read(str, wire, "name")


class AsyncProjectEnvironments:
    """The same on trio; `ProjectEnvironments` describes the methods."""

    def __init__(self, client: AsyncClient, project: str | None) -> None:
        self._client = client
        self._project = project

    async def find(self) -> list[FoundRow]:
        """Find environments and lists of packages, as `ProjectEnvironments.find`."""
        wire = await self._client.call("env_found", {"project": _named(self._project)})
        return read(list[FoundRow], wire, "found")

    async def use(
        self,
        path: str,
        *,
        name: str | None = None,
        interpreter: str | None = None,
        allow_builds: bool = False,
        extras: Iterable[str] = (),
        groups: Iterable[str] = (),
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> FoundRow:
        """Agree to use one, as `ProjectEnvironments.use`."""
        arguments = _use_arguments(
            self._project, path, name, interpreter, allow_builds, extras, groups, wait
        )
        wire = await self._client.call("env_use", arguments, on_event=rows_to(on_progress))
        return read(FoundRow, wire, "found")

    async def forget(self, target: str) -> str:
        """Forget that somebody agreed to one, as `ProjectEnvironments.forget`."""
        wire = await self._client.call("env_forget", _forget_arguments(self._project, target))
        return read(str, wire, "name")


def _named(project: str | None) -> str:
    if project is None:
        raise BadProjectError("This client has no project.", hint="Name one: `project=`.")
    return project


def _use_arguments(
    project: str | None,
    path: str,
    name: str | None,
    interpreter: str | None,
    allow_builds: bool,  # as `use` has it
    extras: Iterable[str],
    groups: Iterable[str],
    wait: bool,
) -> dict[str, Any]:
    given = {
        "name": name,
        "interpreter": interpreter,
        "allow_builds": allow_builds,
        "extras": list(extras),
        "groups": list(groups),
        "wait": wait,
    }
    chosen = {key: value for key, value in given.items() if value}
    return {"project": _named(project), "path": _linked(path), **chosen}


def _forget_arguments(project: str | None, target: str) -> dict[str, Any]:
    return {"project": _named(project), "target": _linked(target)}


def _linked(path: str) -> str:
    """An absolute path without links on the way to its last name."""
    if not os.path.isabs(path):
        return path
    directory, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(directory), name)
