"""Choice of the launcher: by the environment's artifact, if it has one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from nsmd.jail.artifact import ArtifactLauncher
from nsmd.jail.interface import Jail, TemplateSpec
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.process import BwrapJail
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, SessionLimits


class LauncherRouter:
    """Launcher that passes each environment to the launcher for it.

    Args:
        bwrap: launcher for environments made of the host's programs.
        artifacts: launcher for those that Nix has built.
    """

    def __init__(self, bwrap: BwrapLauncher, artifacts: ArtifactLauncher) -> None:
        self._bwrap = bwrap
        self._artifacts = artifacts

    def __repr__(self) -> str:
        return f"<LauncherRouter {self._bwrap} {self._artifacts}>"

    @property
    def limits(self) -> SessionLimits:
        return self._bwrap.limits

    @property
    def system_calls(self) -> bytes | None:
        return self._bwrap.system_calls

    def policy(self, spec: JailSpec, *, forked: bool) -> Policy:
        return self._launcher(spec).policy(spec, forked=forked)

    async def prepare(self, spec: JailSpec) -> None:
        await self._launcher(spec).prepare(spec)

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        return await self._launcher(spec).launch(spec, group)

    async def launch_template(self, spec: TemplateSpec, system_calls: bytes) -> BwrapJail:
        launcher = self._bwrap if spec.artifact is None else self._artifacts
        return await launcher.launch_template(spec, system_calls)

    def _launcher(self, spec: JailSpec) -> BwrapLauncher | ArtifactLauncher:
        return self._bwrap if spec.environment.artifact is None else self._artifacts


@asynccontextmanager
async def open_router(bwrap: BwrapLauncher, home: str) -> AsyncGenerator[LauncherRouter]:
    """Open a launcher for all environments; leaving ends what it runs beside jails.

    Args:
        home: our directory for older artifacts (`ArtifactLauncher`).
    """
    async with trio.open_nursery() as nursery:
        yield LauncherRouter(bwrap, ArtifactLauncher(bwrap.user, home, bwrap.limits, nursery))
        nursery.cancel_scope.cancel()
