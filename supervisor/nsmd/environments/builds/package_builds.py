"""Environments that the installer makes from packages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial

import trio

from nsm.wire.errors import PackagesFailedError
from nsmd.environments.builds.build_state import Attempt, Building, StoredBuild
from nsmd.environments.commands.runner import OnProgress
from nsmd.environments.packages.installer_run import InstallerRun
from nsmd.environments.packages.store import CollectedEnvironments, EnvironmentStore
from nsmd.model.packages import WantedPackages
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Environment


class PackageBuilds:
    """Builds from packages: each is an environment in the user's store.

    Args:
        installation: makes them.
        defaults: limits of environments that set none.
    """

    first_phase = "resolving"

    def __init__(self, installation: InstallerRun, *, defaults: Defaults) -> None:
        self._installation = installation
        self._defaults = defaults

    async def check(self) -> None:
        """Do nothing: what is missing depends on the packages, and the installer says it."""

    async def build(
        self, building: Building, attempt: Attempt, on_progress: OnProgress, log_fd: int
    ) -> StoredBuild:
        """Make an environment, unless it is there.

        Raises:
            PackagesFailedError, OSError: it cannot be made.
        """
        try:
            made = await self._installation.make(
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
        return StoredBuild(path=made.path, lock=made.lock, note=made.note)

    def look(
        self, building: Building, path: str, settings: EnvironmentSettings | None
    ) -> Environment:
        """Describe an environment of the store. Blocks.

        Raises:
            PackagesFailedError: there is no complete one.
        """
        return self._installation.environment(
            path,
            building.given_name,
            _packages(building),
            self._defaults,
            settings or EnvironmentSettings(),
        )

    async def collect(
        self, staying: Iterable[Building], in_use: Iterable[Environment], *, dry_run: bool
    ) -> CollectedEnvironments:
        """Remove environments, as `EnvironmentStore.collect` does.

        Args:
            staying: those that are wanted or being built.
            in_use: environments of live sessions.
        """
        kept, since_s = paths_in_use(in_use), time.time()
        for building in staying:
            if building.built is not None:
                kept.add(building.built.stored.path)
            if building.attempt is not None:
                # It knows what it has made or found, and nobody else does.
                since_s = min(since_s, building.attempt.since_s)
        store = EnvironmentStore(self._installation.store)
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


def _packages(building: Building) -> WantedPackages:
    assert building.packages is not None
    return building.packages
