"""Environments that nsm builds, for programs: ``client.builds`` of either client.

Example::

    import nsm

    with nsm.Client() as client:
        row = client.builds.add_packages("science", pip=["numpy", "pandas>=2"])
        if row.state == "ready":
            print(client.run("import pandas", env=row.name).exit_code)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

from nsm.client.operations import check_names
from nsm.wire.answers import read
from nsm.wire.builds import BuiltRow, CollectReport, PreloadReport, RemoveReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Unpack

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.wire.messages import Event

    OnProgress: TypeAlias = Callable[[BuiltRow], object]
    OnText: TypeAlias = Callable[[str], object]


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


class Builds:
    """Operations on environments that nsm builds, with Nix or from packages. Blocks.

    A build belongs to the supervisor: it goes on when the call that asked for it ends early, by
    Ctrl-C (the row that is returned then is still ``building``) or with the connection.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(
        self,
        reference: str,
        *,
        name: str | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> BuiltRow:
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
        wire = self._client.call(
            "env_add",
            _add_arguments(reference, name, wait=wait),
            on_event=rows_to(on_progress),
            interruptible=wait,
        )
        return read(BuiltRow, wire, "environment")

    def add_packages(
        self,
        name: str,
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        **packages: Unpack[PackageArguments],
    ) -> BuiltRow:
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
        wire = self._client.call(
            "env_add",
            _package_arguments(name, packages, wait=wait),
            on_event=rows_to(on_progress),
            interruptible=wait,
        )
        return read(BuiltRow, wire, "environment")

    def update(
        self,
        targets: Iterable[str] = (),
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> list[BuiltRow]:
        """Have environments built again, from newer sources if there are some.

        Args:
            targets: names or references; none for all.
            wait, on_progress: as for `add`.
        """
        wire = self._client.call(
            "env_update",
            {"targets": list(targets), "wait": wait},
            on_event=rows_to(on_progress),
            interruptible=wait,
        )
        return _rows(wire)

    def list_all(self) -> list[BuiltRow]:
        """All that are built, by name."""
        return _rows(self._client.call("env_list"))

    def preload(self, name: str, modules: Iterable[str], *, remove: bool = False) -> PreloadReport:
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
        wire = self._client.call("env_preload", _preload_arguments(name, modules, remove=remove))
        return read(PreloadReport, wire)

    def remove(self, targets: Iterable[str]) -> RemoveReport:
        """Remove environments and cancel their builds. Their sessions continue."""
        return read(RemoveReport, self._client.call("env_remove", {"targets": list(targets)}))

    def gc(self, *, dry_run: bool = False) -> CollectReport:
        """Remove environments made from packages that neither the configuration, `add_packages`
        nor a session uses.

        Args:
            dry_run: only say which.
        """
        return read(CollectReport, self._client.call("env_gc", {"dry_run": dry_run}))

    def log(self, target: str, on_text: OnText, *, follow: bool = False) -> BuiltRow:
        """Read the log of an environment's last build.

        Args:
            on_text: called with each piece.
            follow: until the build has ended, or Ctrl-C.
        """
        wire = self._client.call(
            "env_log",
            {"target": target, "follow": follow},
            on_event=_text_to(on_text),
            interruptible=follow,
        )
        return read(BuiltRow, wire, "environment")


class AsyncBuilds:
    """The same on trio; `Builds` describes the methods. Cancelling a call leaves its build."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def add(
        self,
        reference: str,
        *,
        name: str | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> BuiltRow:
        """Add and build an environment, as `Builds.add`."""
        wire = await self._client.call(
            "env_add", _add_arguments(reference, name, wait=wait), on_event=rows_to(on_progress)
        )
        return read(BuiltRow, wire, "environment")

    async def add_packages(
        self,
        name: str,
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        **packages: Unpack[PackageArguments],
    ) -> BuiltRow:
        """Have an environment made from packages, as `Builds.add_packages`."""
        arguments = _package_arguments(name, packages, wait=wait)
        wire = await self._client.call("env_add", arguments, on_event=rows_to(on_progress))
        return read(BuiltRow, wire, "environment")

    async def update(
        self,
        targets: Iterable[str] = (),
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> list[BuiltRow]:
        """Build environments again, as `Builds.update`."""
        arguments = {"targets": list(targets), "wait": wait}
        return _rows(
            await self._client.call("env_update", arguments, on_event=rows_to(on_progress))
        )

    async def list_all(self) -> list[BuiltRow]:
        """List the environments, as `Builds.list_all`."""
        return _rows(await self._client.call("env_list"))

    async def preload(
        self, name: str, modules: Iterable[str], *, remove: bool = False
    ) -> PreloadReport:
        """Preload modules for new sessions, or stop that, as `Builds.preload`."""
        arguments = _preload_arguments(name, modules, remove=remove)
        return read(PreloadReport, await self._client.call("env_preload", arguments))

    async def remove(self, targets: Iterable[str]) -> RemoveReport:
        """Remove environments, as `Builds.remove`."""
        wire = await self._client.call("env_remove", {"targets": list(targets)})
        return read(RemoveReport, wire)

    async def gc(self, *, dry_run: bool = False) -> CollectReport:
        """Remove environments that nobody uses, as `Builds.gc`."""
        return read(CollectReport, await self._client.call("env_gc", {"dry_run": dry_run}))

    async def log(self, target: str, on_text: OnText, *, follow: bool = False) -> BuiltRow:
        """Read the log of a build, as `Builds.log`."""
        arguments = {"target": target, "follow": follow}
        wire = await self._client.call("env_log", arguments, on_event=_text_to(on_text))
        return read(BuiltRow, wire, "environment")


def _add_arguments(reference: str, name: str | None, *, wait: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"reference": reference, "wait": wait}
    return arguments if name is None else {**arguments, "name": name}


def _preload_arguments(name: str, modules: Iterable[str], *, remove: bool) -> dict[str, Any]:
    return {"target": name, "modules": list(modules), "remove": remove}


def _package_arguments(name: str, settings: PackageArguments, *, wait: bool) -> dict[str, Any]:
    check_names(settings, PackageArguments)
    given = cast("dict[str, Any]", settings).items()
    packages = {
        key: value if isinstance(value, str | bool) else list(value)
        for key, value in given
        if value
    }
    arguments: dict[str, Any] = {"name": name, "wait": wait}
    if devices := packages.pop("devices", None):
        arguments["devices"] = devices
    return {**arguments, "packages": packages}


def _rows(wire: dict[str, Any]) -> list[BuiltRow]:
    return read(list[BuiltRow], wire, "environments")


def rows_to(on_progress: OnProgress | None) -> Callable[[Event], None]:
    """Make a function that passes the rows of progress events on."""

    def on_event(event: Event) -> None:
        if on_progress is not None and event.event == "progress":
            on_progress(read(BuiltRow, event.data, "environment"))

    return on_event


def _text_to(on_text: OnText) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if event.event == "log":
            on_text(read(str, event.data, "text"))

    return on_event
