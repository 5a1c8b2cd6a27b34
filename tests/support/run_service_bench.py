"""A run service over jails of any kind, one over fake jails, and two clients."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from fakes import BASH, BROKEN, PYTHON, FakeLauncher, echo, launching, no_usage
from nsmd.environments.catalog import Catalog
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import SessionManager
from nsmd.model.settings import PoolSettings, Settings
from nsmd.model.values import ClientIdentity, RunOutcome, RunRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fakes import Behaviour
    from nsmd.jail import Launcher
    from nsmd.manager.session_index import Measure
    from nsmd.restart.ended_sessions import EndedSessionFiles

ALICE = ClientIdentity(name="editor", scope="alice")
BOB = ClientIdentity(name="editor", scope="bob")


@asynccontextmanager
async def open_run_service(
    settings: Settings,
    catalog: Catalog,
    launcher: Launcher,
    *,
    measure: Measure | None = None,
    **more: Any,
) -> AsyncGenerator[RunService]:
    """A run service whose sessions end with the block.

    Args:
        more: arguments of the session manager.
    """
    async with trio.open_nursery() as sessions:
        async with trio.open_nursery() as upkeep:
            session_manager = SessionManager(
                settings, launcher, sessions=sessions, upkeep=upkeep, **more
            )
            yield RunService(settings, catalog, session_manager, home="/home/user", measure=measure)
            upkeep.cancel_scope.cancel()
        session_manager.close()


@dataclasses.dataclass
class Bench:
    run_service: RunService
    launcher: FakeLauncher

    @property
    def session_manager(self) -> SessionManager:
        return self.run_service.session_manager

    async def run(
        self,
        code: str = "x",
        *,
        session: str | None = "a",
        env: str = "python",
        client: ClientIdentity = ALICE,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        again: bool = False,
    ) -> RunOutcome:
        request = RunRequest(
            client=client,
            env=env,
            code=code,
            session=session,
            timeout_s=timeout_s,
            execution_id=execution_id,
            again=again,
        )
        return await self.run_service.submit(request).wait()


@asynccontextmanager
async def bench(
    settings: Settings | None = None,
    behave: Behaviour = echo,
    ended_files: EndedSessionFiles | None = None,
) -> AsyncGenerator[Bench]:
    settings = settings or Settings(pool=PoolSettings(min_spares=1))
    catalog = Catalog([PYTHON, BASH, BROKEN])
    async with launching(behave) as launcher:
        async with open_run_service(
            settings, catalog, launcher, measure=no_usage, ended_files=ended_files
        ) as run_service:
            yield Bench(run_service, launcher)
        assert all(jail.released for jail in launcher.jails)
