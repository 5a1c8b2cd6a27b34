"""Environments that Nix builds from flakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import trio

from nsm.dataclass import replace
from nsmd.environments.builds.build_directory import BuildDirectory
from nsmd.environments.builds.build_state import Attempt, Building, StoredBuild
from nsmd.environments.builds.output import built_path, sandbox
from nsmd.environments.commands.runner import OnProgress
from nsmd.environments.nix.flake_copy import flake_copy
from nsmd.environments.nix.program import Nix, NixFinder
from nsmd.model.flakes import local_directory
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Environment


class NixBuilds:
    """Builds by Nix: each is a sandbox in its store, and a garbage-collector root.

    Args:
        finder: finds Nix.
        directory: has the roots.
        defaults: limits of environments that set none.
        owners: users whose programs may be run.
        timeout_s: time limit of one build, seconds.
    """

    first_phase = "evaluating"

    def __init__(
        self,
        finder: NixFinder,
        directory: BuildDirectory,
        *,
        defaults: Defaults,
        owners: Collection[int],
        timeout_s: float,
    ) -> None:
        self._finder = finder
        self._directory = directory
        self._defaults = defaults
        self._owners = owners
        self._timeout_s = timeout_s

    async def check(self) -> None:
        """Check that there is a Nix.

        Raises:
            NixUnavailableError: there is none that works.
        """
        await self._finder.find()

    async def build(
        self, building: Building, attempt: Attempt, on_progress: OnProgress, log_fd: int
    ) -> StoredBuild:
        """Build a flake.

        Raises:
            NsmError, OSError: it cannot be built.
        """
        nix = await self._finder.find()
        attempt.link = await trio.to_thread.run_sync(self._directory.roots.fresh, building.key)
        arguments = ["build", "--json", "--out-link", self._directory.roots.path(attempt.link)]
        # Nobody expects background work to write into a user's directories.
        arguments.append("--no-write-lock-file")
        if attempt.refresh:
            arguments.append("--refresh")
        async with self._flake(building, nix) as (directory, reference):
            stdout = await nix.run(
                [*arguments, "--", reference],
                timeout_s=self._timeout_s,
                on_progress=on_progress,
                log_fd=log_fd,
                directory=directory,
                tree=self._directory.tree(building.key),
            )
        return StoredBuild(path=built_path(stdout, building.reference), link=attempt.link)

    @asynccontextmanager
    async def _flake(self, building: Building, nix: Nix) -> AsyncGenerator[tuple[str, str]]:
        """Give the directory in which Nix is to run, and the reference from there."""
        local = local_directory(building.reference)
        if local is None:
            yield "/", building.reference
            return
        _, number, attribute = building.reference.partition("#")
        tree = self._directory.tree(building.key)
        async with flake_copy(local, tree, nix.variables) as (directory, flake):
            yield directory, f"{flake}{number}{attribute}"

    def look(
        self, building: Building, path: str, settings: EnvironmentSettings | None
    ) -> Environment:
        """Make the environment of a build. Blocks.

        Raises:
            NoSandboxError: it cannot be used.
        """
        found = sandbox(
            path, building.reference, self._defaults, self._owners, name=building.given_name
        )
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
