"""Calls of a project's shell, from its evaluation to its sessions, without jails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from fakes import CAPABILITIES, PYTHON, FakeAgent, FakeJail, FakeLauncher, launching, no_usage
from flake_world import BASH, QuickNix, World
from nsm.wire.errors import BadRequestError
from nsmd.environments import on_demand
from nsmd.environments.catalog import Catalog
from nsmd.environments.on_demand import EnvironmentPendingError, patiently
from nsmd.manager.run_service import RunService
from nsmd.model.limits import check_inherited
from nsmd.model.settings import PoolSettings, Settings
from nsmd.model.values import ClientIdentity, RunOutcome, RunRequest
from run_service_bench import open_run_service


async def able(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent that can set environments up, and answers with what it was told of that."""
    await agent.be_ready([*CAPABILITIES, "setup"])
    assert agent.hello is not None
    while True:
        frame = await agent.receive()
        if frame["type"] == "execute":
            setup = agent.hello.get("setup", {})
            names = [step["name"] for step in setup.get("steps", [])]
            await agent.answer(frame, stdout=f"{setup.get('interpreter')} {names}")


@asynccontextmanager
async def registry_of(
    world: World, *inherit: str, settings: Settings | None = None, launcher: FakeLauncher
) -> AsyncGenerator[RunService]:
    settings = settings or Settings(pool=PoolSettings(max_spares=0))
    async with (
        world.shells(*inherit) as shells,
        open_run_service(
            settings, Catalog([PYTHON, BASH], shells), launcher, measure=no_usage
        ) as run_service,
    ):
        yield run_service


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, QuickNix())


async def run(
    run_service: RunService, client: ClientIdentity, session: str | None = None
) -> RunOutcome:
    request = RunRequest(client=client, env="project", code="x", session=session)
    execution = await patiently(lambda: run_service.submit(request))
    return await execution.wait()


async def test_sessions_have_their_own_clients_values(world: World) -> None:
    world.has_shell()
    settings = Settings(pool=PoolSettings(min_spares=1))
    async with (
        launching(able) as launcher,
        registry_of(world, "TOKEN", settings=settings, launcher=launcher) as run_service,
    ):
        assert run_service.catalog.inherit == ("TOKEN",)
        one = world.client(inherited=(("TOKEN", "first hush"),))
        other = world.client(inherited=(("TOKEN", "second hush"),))
        for client, name in ((one, "a"), (one, "b"), (other, "c"), (other, "d")):
            await run(run_service, client, name)
        values = {
            session.name: session.spec.environment.variables
            for session in run_service.live_sessions()
        }
        assert values == {
            **dict.fromkeys("ab", (("TOKEN", "first hush"),)),
            **dict.fromkeys("cd", (("TOKEN", "second hush"),)),
        }
        for kind in run_service.session_manager.pool.kinds:
            spares = {s.spec.environment.variables for s in [*kind.ready, *kind.starting]}
            assert spares <= {kind.spec.environment.variables}
        told = repr(
            [
                *run_service.live_sessions(),
                *run_service.session_manager.pool.kinds,
                await run_service.describe(),
            ]
        )
        assert "hush" not in told


# Waiting, without anything to wait for.


async def test_waiting_can_be_cancelled(autojump_clock: MockClock) -> None:
    def submit() -> None:
        raise EnvironmentPendingError("project", "it takes its time", trio.Event())

    began = trio.current_time()
    with pytest.raises(EnvironmentPendingError):
        await patiently(submit, on_cancel=lambda cancel: cancel())
    assert trio.current_time() - began < on_demand.PATIENCE_S


@pytest.mark.parametrize("value", [3, None, "a\0b", "\ud800"])
def test_a_value_that_cannot_be_a_variable_is_refused(value: object) -> None:
    with pytest.raises(BadRequestError, match="value of A"):
        check_inherited(["A"], {"A": value})
