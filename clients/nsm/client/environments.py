"""Environments, for programs: ``client.builds`` and ``client.project_environments``.

Example::

    import nsm

    with nsm.Client(project="/home/me/web") as client:
        row = client.builds.add_packages("science", pip=["numpy", "pandas>=2"])
        if row.state == "ready":
            print(client.run("import pandas", env=row.name).exit_code)
        found = client.project_environments.use("uv.lock")
        if found.build is not None and found.build.state == "ready":
            print(client.run("import flask", env=found.name).exit_code)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

from nsm.client.events import data_to
from nsm.client.places import check_names
from nsm.client.steps import Async, AsyncPart, Blocking, BlockingPart, Calls, ask, method
from nsm.wire import environments as wire
from nsm.wire.environments import BuiltRow, PackageRequest, env_forget, env_found, env_use
from nsm.wire.errors import BadProjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from nsm.client.steps import Steps
    from nsm.wire.environments import CollectReport, PreloadReport, RemoveReport

    OnProgress: TypeAlias = Callable[[BuiltRow], object]
    OnText: TypeAlias = Callable[[str], object]
    from nsm.wire.environments import FoundRow


class PackageArguments(TypedDict, total=False):
    """Packages of an environment; `Builds.add_packages` describes them."""

    pip: Iterable[str]
    requirements: str | None
    project: str | None
    npm: Iterable[str]
    package_lock: str | None
    image: str | None
    language: str | None
    root: str | None
    interpreter: str | None
    allow_builds: bool
    preload: Iterable[str]
    devices: Iterable[str]


class BuildMethods(Calls):
    """Operations on environments that nsm builds, with Nix or from packages.

    A build belongs to the supervisor: it goes on when the call that asked for it ends early, by
    Ctrl-C (the row that is returned then is still ``building``), with the connection, or because
    it was cancelled.
    """

    @method
    def add(
        self,
        reference: str,
        *,
        name: str | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Steps[BuiltRow]:
        """Have an environment built, and kept from then on.

        Args:
            reference: to a flake that yields a sandbox (`lib.mkSandbox`), with an absolute path
                where it has one: ``github:OWNER/REPO#NAME``.
            name: for it; None for its own.
            wait: until it is built, or has failed.
            on_progress: called while it is.

        Returns:
            Facts about it; `state` says whether it can be used.

        Raises:
            BadRequestError: the reference or the name cannot be meant.
            OverloadedError: too many builds wait.
        """
        call = wire.env_add(reference, name or "", wait=wait)
        hear = data_to(on_progress, BuiltRow, key="environment")
        return (yield from ask(call, hear, interruptible=wait))

    @method
    def add_packages(
        self,
        name: str,
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        **packages: Unpack[PackageArguments],
    ) -> Steps[BuiltRow]:
        """Make an environment from Python or Node packages or from a container image, and keep it;
        an existing one of that name is made from these instead.

        Args:
            name: its name.
            pip: requirements, such as ``pandas>=2``.
            requirements: absolute path of a requirements file.
            project: absolute path of a pyproject.toml, whose dependencies are wanted.
            npm: packages of npm, such as ``zod@^4``.
            package_lock: absolute path of a package-lock.json.
            image: a container image in place of packages: ``docker://NAME``,
                ``oci:/DIRECTORY:TAG``, ``oci-archive:/FILE:TAG`` or ``docker-archive:/FILE``.
            language: interpreter of the image: ``python``, ``bash`` or ``node``; None for the first
                of these that it has.
            root: ``overlay`` lets sessions change the image's files, each in an overlay of its own.
            interpreter: absolute path of its Python or Node; None for the one of the preset.
            allow_builds: build packages that are not ready to use.
            preload: modules that its sessions find imported.
            devices: GPUs of the host that its sessions may use: ``nvidia``, ``nvidia:NUMBER``,
                ``amd`` or ``dri``.
            wait, on_progress: as for `add`.

        Raises:
            BadRequestError: packages or name are invalid.
            OverloadedError: too many builds wait.
        """
        check_names(packages, PackageArguments)
        given: dict[str, Any] = {
            key: value if isinstance(value, str | bool) else tuple(value)
            for key, value in cast("dict[str, Any]", packages).items()
            if value
        }
        devices = given.pop("devices", ())
        call = wire.env_add(name=name, packages=PackageRequest(**given), devices=devices, wait=wait)
        hear = data_to(on_progress, BuiltRow, key="environment")
        return (yield from ask(call, hear, interruptible=wait))

    @method
    def update(
        self,
        targets: Iterable[str] = (),
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Steps[list[BuiltRow]]:
        """Have environments built again, from newer sources if there are some.

        Args:
            targets: names or references; none for all.
            wait, on_progress: as for `add`.
        """
        call = wire.env_update(tuple(targets), wait=wait)
        hear = data_to(on_progress, BuiltRow, key="environment")
        return (yield from ask(call, hear, interruptible=wait))

    @method
    def list_all(self) -> Steps[list[BuiltRow]]:
        """All that are built, by name."""
        return (yield from ask(wire.env_list()))

    @method
    def preload(
        self, name: str, modules: Iterable[str], *, remove: bool = False
    ) -> Steps[PreloadReport]:
        """Preload modules for new sessions of an environment, or stop that; live sessions stay as
        they are.

        Args:
            name: of an environment that `add` or `add_packages` made.
            modules: modules of Python; those that cannot be preloaded are left out.
            remove: stop preloading them.

        Raises:
            BadRequestError: a file that nsm does not write has to name them (see the hint), or a
                module breaks the template.
            UnknownEnvironmentError: there is none of that name, or it cannot be used.
        """
        return (yield from ask(wire.env_preload(name, tuple(modules), remove=remove)))

    @method
    def remove(self, targets: Iterable[str]) -> Steps[RemoveReport]:
        """Remove environments and cancel their builds. Their sessions continue."""
        return (yield from ask(wire.env_remove(tuple(targets))))

    @method
    def gc(self, *, dry_run: bool = False) -> Steps[CollectReport]:
        """Remove environments made from packages that neither the configuration, `add_packages`
        nor a session uses.

        Args:
            dry_run: only say which.
        """
        return (yield from ask(wire.env_gc(dry_run=dry_run)))

    @method
    def log(self, target: str, on_text: OnText, *, follow: bool = False) -> Steps[BuiltRow]:
        """Read the log of an environment's last build.

        Args:
            on_text: called with each piece.
            follow: until the build has ended, or Ctrl-C.
        """
        hear = data_to(on_text, str, event="log", key="text")
        return (yield from ask(wire.env_log(target, follow=follow), hear, interruptible=follow))


class Builds(BuildMethods, BlockingPart):
    """``nsm.Client.builds``."""


class AsyncBuilds(BuildMethods, AsyncPart):
    """``nsm.AsyncClient.builds``."""


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
