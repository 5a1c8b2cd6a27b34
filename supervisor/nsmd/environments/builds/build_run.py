"""One build, by the method of its kind: with Nix, or from packages."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import trio

from nsm.dataclass import replace
from nsm.wire.errors import NsmError
from nsmd.environments.builds.build_directory import BuildDirectory
from nsmd.environments.builds.build_state import Attempt, Building, Built, StoredBuild
from nsmd.environments.builds.nix_builds import NixBuilds
from nsmd.environments.builds.package_builds import PackageBuilds
from nsmd.environments.commands.progress import CommandProgress
from nsmd.environments.commands.runner import OnProgress
from nsmd.model.settings import EnvironmentSettings
from nsmd.model.values import Environment


class BuildMethod(Protocol):
    """A way to build environments.

    Attributes:
        first_phase: phase in which its builds begin.
    """

    @property
    def first_phase(self) -> str: ...

    async def check(self) -> None:
        """Check that something can be built at all; if not, the last build's log stays.

        Raises:
            NsmError: it cannot.
        """

    async def build(
        self, building: Building, attempt: Attempt, on_progress: OnProgress, log_fd: int
    ) -> StoredBuild:
        """Build.

        Args:
            on_progress, log_fd: as for `run_monitored`.

        Raises:
            NsmError, OSError: it fails.
        """
        ...

    def look(
        self, building: Building, path: str, settings: EnvironmentSettings | None
    ) -> Environment:
        """Make the environment of a build. Blocks.

        Args:
            path: path in its store.
            settings: its entry in config.toml; None if it has none.

        Raises:
            NsmError: it cannot be used.
        """
        ...


class BuildRun:
    """Builder of single environments.

    Args:
        nix: builds flakes.
        packages: builds from packages.
        directory: has the logs.
        configured: environments of config.toml, by name.
    """

    def __init__(
        self,
        nix: NixBuilds,
        packages: PackageBuilds,
        directory: BuildDirectory,
        configured: Mapping[str, EnvironmentSettings],
    ) -> None:
        self.packages = packages
        self.configured = configured
        self._nix = nix
        self._directory = directory

    def _method(self, building: Building) -> BuildMethod:
        return self._nix if building.packages is None else self.packages

    def begun(self, building: Building, *, refresh: bool) -> Attempt:
        """Make the record of a build that begins.

        Args:
            refresh: look for newer versions.
        """
        phase = self._method(building).first_phase
        return Attempt(refresh=refresh, progress=CommandProgress(phase=phase))

    async def build(self, building: Building, attempt: Attempt) -> Built:
        """Build.

        Args:
            building: environment to build; only notified of changes in the attempt.
            attempt: gets the progress.

        Raises:
            NsmError: it cannot be built, or used; the log says so, too.
            OSError: our own directory cannot be used.
        """

        def on_progress(progress: CommandProgress, log_bytes: int) -> None:
            attempt.progress, attempt.log_bytes = progress, log_bytes
            building.note()

        method = self._method(building)
        await method.check()
        log_fd = await trio.to_thread.run_sync(self._directory.new_log, building.key)
        try:
            stored = await method.build(building, attempt, on_progress, log_fd)
            environment = await trio.to_thread.run_sync(self.look, building, stored.path)
        except NsmError as error:
            # The lines after the first are the end of this very log.
            text = error.message.partition("\n")[0]
            with suppress(OSError):  # a full disk, which is not the error to report here
                os.write(log_fd, f"nsm: {text}\n".encode(errors="replace"))
            raise
        finally:
            os.close(log_fd)
        return Built(environment=environment, stored=stored, built_s=time.time())

    def look(self, building: Building, path: str) -> Environment:
        """Make the environment at a store path. Blocks.

        Raises:
            NsmError: it cannot be used.
        """
        settings = self.configured.get(building.given_name)
        if building.project and building.packages is not None:
            # As for everything that lies in a project, the limits are those of the preset,
            # and it gets no devices.
            preset = self.configured.get(building.packages.preset, EnvironmentSettings())
            settings = replace(preset, description=None, devices=())
        elif settings is not None:
            wanted = settings.flake if building.packages is None else settings.packages
            if wanted != (building.packages or building.reference):
                settings = None
        environment = self._method(building).look(building, path, settings)
        if building.preload is not None and not building.configured:
            environment = replace(environment, preload=_still_there(building.preload, environment))
        return environment


def _still_there(modules: tuple[str, ...], environment: Environment) -> tuple[str, ...]:
    """Leave out modules that the environment had, and has no more, since its packages changed."""
    known = {*environment.packages, *sys.stdlib_module_names}
    if not environment.packages:
        return modules
    return tuple(
        module
        for module in modules
        if module in environment.preload or module.partition(".")[0] in known
    )
