"""One build: of a flake, with Nix, or of packages, by the installer."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.decode import decode
from nsm.wire.errors import NixFailedError, NsmError, PackagesFailedError
from nsm.wire.tuples import NamedTuple
from nsmd.environments.artifacts.discovery import ArtifactError, read_artifact
from nsmd.environments.builds.build_files import BuildFiles
from nsmd.environments.builds.building import Attempt, Building, Built
from nsmd.environments.nix.program import Nix, NixFinder, flake_copy
from nsmd.host.command_monitor import CommandProgress
from nsmd.host.commands import OnProgress
from nsmd.model.packages import WantedPackages, local_directory, shown_reference
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Environment
from nsmd.packages.package_builds import Installed, PackageEnvironments
from nsmd.packages.store import CollectedEnvironments, EnvironmentStore

EXPECTED = (
    "Expected is what `lib.mkSandbox` of nsm's flake makes: a directory with metadata.json and "
    "bin/run. A plain package becomes one with `lib.mkSandbox { ...; packages = [ ... ]; }` "
    "(docs/how-to/nix.md)."
)


class NoSandboxError(NixFailedError):
    """Something was built in which code cannot run."""

    def __init__(self, reference: str, path: str, why: str) -> None:
        super().__init__(
            f"{shown_reference(reference)} yields no sandbox: {path}: {why}.",
            hint=EXPECTED,
            data={"path": path},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRun:
    """Builder of single environments, with what every build needs.

    Attributes:
        defaults: limits of environments that set none.
        timeout_s: time limit of one build by Nix, seconds.
    """

    finder: NixFinder
    installation: PackageEnvironments
    files: BuildFiles
    defaults: Defaults
    owners: Collection[int]
    timeout_s: float

    async def build(
        self,
        building: Building,
        attempt: Attempt,
        configured: Mapping[str, EnvironmentSettings],
    ) -> Built:
        """Build.

        Args:
            building: environment to build; only notified of changes in the attempt.

        Raises:
            NsmError: it cannot be built, or used; the log says so, too.
            OSError: our own directory cannot be used.
        """

        def on_progress(progress: CommandProgress, log_bytes: int) -> None:
            attempt.progress, attempt.log_bytes = progress, log_bytes
            building.notify()

        if building.packages is None:
            await self.finder.find()  # without Nix, the log of the last build stays
        log_fd = await trio.to_thread.run_sync(self.files.new_log, building.key)
        try:
            make = self._build_flake if building.packages is None else self._install
            made = await make(building, attempt, on_progress, log_fd)
            environment = await trio.to_thread.run_sync(
                self.environment_at, building, made.path, configured
            )
        except NsmError as error:
            # The lines after the first are the end of this very log.
            text = error.message.partition("\n")[0]
            with suppress(OSError):  # a full disk, which is not the error to report here
                os.write(log_fd, f"nsm: {text}\n".encode(errors="replace"))
            raise
        finally:
            os.close(log_fd)
        return Built(
            environment=environment,
            path=made.path,
            link=attempt.link,
            lock=made.lock,
            note="; ".join(filter(None, (made.note, _not_found(environment)))),
            built_s=time.time(),
        )

    async def _build_flake(
        self, building: Building, attempt: Attempt, on_progress: OnProgress, log_fd: int
    ) -> Installed:
        """Build a flake to a sandbox in Nix's store, kept by a garbage-collector root."""
        nix = await self.finder.find()
        attempt.link = await trio.to_thread.run_sync(self.files.fresh_link, building.key)
        arguments = ["build", "--json", "--out-link", self.files.link_path(attempt.link)]
        # Nobody expects background work to write into a user's directories.
        arguments.append("--no-write-lock-file")
        if attempt.refresh:
            arguments.append("--refresh")
        tree = self.files.tree(building.key)
        async with _flake(building, nix, tree) as (directory, reference):
            stdout = await nix.run(
                [*arguments, "--", reference],
                timeout_s=self.timeout_s,
                on_progress=on_progress,
                log_fd=log_fd,
                directory=directory,
                tree=tree,
            )
        return Installed(path=built_path(stdout, building.reference), lock="")

    async def _install(
        self, building: Building, attempt: Attempt, on_progress: OnProgress, log_fd: int
    ) -> Installed:
        """Make an environment from packages in the user's store, unless it is there."""
        try:
            return await self.installation.make(
                building.given_name,
                _packages(building),
                # Everybody's have theirs by name; projects may have the same names.
                owner=building.key if building.project else "",
                refresh=attempt.refresh,
                on_progress=on_progress,
                log_fd=log_fd,
            )
        except PackagesFailedError as error:
            if not building.project:
                raise
            # People know the file in their project, and not our copy of it.
            copy = os.path.dirname(_packages(building).file)
            message = error.message.replace(copy, os.path.dirname(building.reference))
            raise PackagesFailedError(message, hint=error.hint) from error

    def environment_at(
        self, building: Building, path: str, configured: Mapping[str, EnvironmentSettings]
    ) -> Environment:
        """Make the environment at a path in its store. Blocks.

        Raises:
            NsmError: it cannot be used.
        """
        settings = configured.get(building.given_name)
        if building.project and building.packages is not None:
            # As for everything that lies in a project, the limits are those of the preset,
            # and it gets no devices.
            preset = configured.get(building.packages.preset, EnvironmentSettings())
            settings = replace(preset, description=None, devices=())
        elif settings is not None:
            wanted = settings.flake if building.packages is None else settings.packages
            if wanted != (building.packages or building.reference):
                settings = None
        if building.packages is None:
            environment = self._sandbox(building, path, settings)
        else:
            environment = self.installation.environment(
                path,
                building.given_name,
                building.packages,
                self.defaults,
                settings or EnvironmentSettings(),
            )
        if building.preload is not None and not building.configured:
            environment = replace(environment, preload=_still_there(building.preload, environment))
        return environment

    def _sandbox(
        self, building: Building, path: str, settings: EnvironmentSettings | None
    ) -> Environment:
        """Make the environment of a build by Nix."""
        reference = building.reference
        try:
            found = read_artifact(
                path, self.defaults, self.owners, source=shown_reference(reference)
            )
        except ArtifactError as error:
            raise NoSandboxError(reference, path, str(error)) from None
        if building.given_name:
            found = replace(found, name=building.given_name)
        if settings is None:
            return found
        return replace(
            found,
            description=settings.description or found.description,
            timeout_s=settings.timeout_seconds or found.timeout_s,
            memory_mb=settings.memory_mb or found.memory_mb,
            cpu_weight=settings.cpu_weight or found.cpu_weight,
            preload=settings.preload or found.preload,
            network=settings.network_rule,
            secrets=settings.secrets,
            variables=tuple(settings.env.items()),
        )

    async def collect(self, staying: Iterable[Building], *, dry_run: bool) -> CollectedEnvironments:
        """Remove environments made from packages, as `EnvironmentStore.collect` does.

        Args:
            staying: those that are wanted or being built; those of live sessions stay, too.
        """
        kept, since_s = paths_in_use(self.files.in_use()), time.time()
        for building in staying:
            if building.built is not None:
                kept.add(building.built.path)
            if building.attempt is not None:
                # It knows what it has made or found, and nobody else does.
                since_s = min(since_s, building.attempt.since_s)
        store = EnvironmentStore(self.installation.store)
        return await trio.to_thread.run_sync(
            partial(store.collect, kept, since_s=since_s, dry_run=dry_run)
        )


def paths_in_use(environments: Iterable[Environment]) -> set[str]:
    """Paths in the store of what live sessions show."""
    paths: set[str] = set()
    for each in environments:
        paths |= {bind.source for bind in each.binds}
        if each.image is not None:
            paths.add(os.path.dirname(each.image.directory))
    return paths


class _NixBuild(NamedTuple):
    """One derivation that `nix build --json` names."""

    outputs: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it


def built_path(stdout: bytes, reference: str) -> str:
    """Read the store path of the single result from `nix build --json`.

    Raises:
        NoSandboxError: Nix built nothing, or printed something else.
    """
    paths: list[str] = []
    with suppress(ValueError, RecursionError):
        for built in decode(list[_NixBuild], json.loads(stdout)):
            path = built.outputs.get("out", next(iter(built.outputs.values()), None))
            if isinstance(path, str) and path.startswith("/") and path.isprintable():
                paths.append(path)
    if len(paths) != 1:
        why = f"nix names {len(paths)} things that it built, not one ({stdout[:200]!r})"
        raise NoSandboxError(reference, "nix build", why)
    return paths[0]


@asynccontextmanager
async def _flake(building: Building, nix: Nix, tree: str) -> AsyncGenerator[tuple[str, str]]:
    """Give the directory in which Nix is to run, and the reference from there."""
    local = local_directory(building.reference)
    if local is None:
        yield "/", building.reference
        return
    _, number, attribute = building.reference.partition("#")
    async with flake_copy(local, tree, nix.variables) as (directory, flake):
        yield directory, f"{flake}{number}{attribute}"


def _still_there(modules: tuple[str, ...], environment: Environment) -> tuple[str, ...]:
    """Leave out modules that the environment had, and has no more, since its packages changed."""
    return tuple(
        module
        for module in modules
        if module in environment.preload or _may_have(environment, module)
    )


def _not_found(environment: Environment) -> str:
    """A sentence about modules to preload that no package has; empty if all may be there."""
    names = ", ".join(each for each in environment.preload if not _may_have(environment, each))
    return f"none of its packages seems to have what it should preload: {names}" if names else ""


def _may_have(environment: Environment, module: str) -> bool:
    """Return whether an environment may have a module; one without known packages may have any, and
    names that begin with an underscore are not among the known ones.
    """
    top, known = module.partition(".")[0], environment.packages
    return not known or top in known or top in sys.stdlib_module_names or top.startswith("_")


def _packages(building: Building) -> WantedPackages:
    assert building.packages is not None
    return building.packages
