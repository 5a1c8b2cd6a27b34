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

from nsm.client.events import data_to
from nsm.client.steps import Async, AsyncPart, Blocking, BlockingPart, Calls, ask, method
from nsm.wire.environments import BuiltRow, env_forget, env_found, env_use
from nsm.wire.errors import BadProjectError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsm.client.builds import OnProgress
    from nsm.client.steps import Steps
    from nsm.wire.environments import FoundRow


class ProjectEnvironmentMethods(Calls):
    """Environments that belong to one project: that of the client."""

    _project: str | None

    @method
    def find(self) -> Steps[list[FoundRow]]:
        """Find environments and lists of packages by reading files, in use or not."""
        return (yield from ask(env_found(_named(self._project))))

    @method
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
    ) -> Steps[FoundRow]:
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
        call = env_use(
            _named(self._project),
            _linked(path),
            name or None,
            interpreter=interpreter or "",
            allow_builds=allow_builds,
            extras=tuple(extras),
            groups=tuple(groups),
            wait=wait,
        )
        hear = data_to(on_progress, BuiltRow, key="environment")
        return (yield from ask(call, hear, interruptible=wait))

    @method
    def forget(self, target: str) -> Steps[str]:
        """Forget that somebody agreed to one; returns its name. Sessions in it live on.

        Args:
            target: its path or name.
        """
        return (yield from ask(env_forget(_named(self._project), _linked(target))))


class ProjectEnvironments(ProjectEnvironmentMethods, BlockingPart):
    """``nsm.Client.project_environments``.

    Args:
        project: absolute path; None if the client has none, and nothing can be asked.
    """

    def __init__(self, client: Blocking, project: str | None) -> None:
        super().__init__(client)
        self._project = project


class AsyncProjectEnvironments(ProjectEnvironmentMethods, AsyncPart):
    """``nsm.AsyncClient.project_environments``."""

    def __init__(self, client: Async, project: str | None) -> None:
        super().__init__(client)
        self._project = project


def _named(project: str | None) -> str:
    if project is None:
        raise BadProjectError("This client has no project.", hint="Name one: `project=`.")
    return project


def _linked(path: str) -> str:
    """An absolute path without links on the way to its last name."""
    if not os.path.isabs(path):
        return path
    directory, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(directory), name)
