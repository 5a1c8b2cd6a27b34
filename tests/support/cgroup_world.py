"""A run service over real jails in the test's own process, and the enforcer that confines them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from nsmd.environments.catalog import Catalog
from nsmd.jail.templates import open_templates
from nsmd.model.settings import Defaults, PoolSettings, Settings
from nsmd.model.values import ClientIdentity, RunOutcome, RunRequest, SessionLimits
from realjail import environments, new_launcher
from run_service_bench import open_run_service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsmd.jail.limits import Confinement, LimitEnforcer
    from nsmd.manager.run_service import RunService
    from nsmd.sessions.session import Session

MEMORY_MB = 64
PROCESSES = 40
DEFAULTS = Defaults(memory_mb=MEMORY_MB, processes=PROCESSES, workspace_mb=8, tmp_mb=4, shm_mb=4)
ALL_FILES_MB = DEFAULTS.workspace_mb + DEFAULTS.tmp_mb + DEFAULTS.shm_mb


class World:
    """Runs code in sessions by name."""

    def __init__(self, run_service: RunService, enforcer: LimitEnforcer) -> None:
        self.run_service = run_service
        self.enforcer = enforcer

    async def run(
        self, session: str, code: str, *, env: str = "python", timeout_s: float = 20.0
    ) -> RunOutcome:
        """Run code to its end."""
        request = RunRequest(
            client=ClientIdentity(name="test", scope="test"),
            env=env,
            code=code,
            session=session,
            timeout_s=timeout_s,
        )
        return await self.run_service.submit(request).wait()

    def session(self, name: str) -> Session:
        return self.run_service.find(f"test/{name}")

    def confinement(self, name: str) -> Confinement:
        found = self.session(name).confinement
        assert found is not None
        return found


@asynccontextmanager
async def open_world(
    enforcer: LimitEnforcer, *, forked: bool = True, weights: dict[str, int] | None = None
) -> AsyncGenerator[World]:
    """Small sessions of Python (and of environments named in `weights`), gone with the block."""
    settings = Settings(defaults=DEFAULTS, pool=PoolSettings(max_spares=0))
    python = replace(environments()["python"], memory_mb=MEMORY_MB)
    found = [python] + [
        replace(python, name=name, cpu_weight=weight) for name, weight in (weights or {}).items()
    ]
    async with (
        trio.open_nursery() as tasks,
        open_templates(new_launcher(limits_for(enforcer)), enabled=forked) as launcher,
    ):
        tasks.start_soon(enforcer.watchdog.run)
        async with open_run_service(
            settings, Catalog(found), launcher, enforcer=enforcer
        ) as run_service:
            yield World(run_service, enforcer)
        tasks.cancel_scope.cancel()


def limits_for(enforcer: LimitEnforcer) -> SessionLimits:
    return SessionLimits(processes=PROCESSES, enforcement=enforcer.enforcement)
