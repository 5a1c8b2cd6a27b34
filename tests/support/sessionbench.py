"""One session against a scripted agent."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio

from fakes import FakeJail, FakeLauncher, Watcher, echo, launching, spec
from nsmd.host.event_loop import Timers
from nsmd.model.lifecycle import SessionState
from nsmd.model.values import ClientIdentity, Output, RunRequest, SessionLimits, Tenancy
from nsmd.network.gateway import Gateway
from nsmd.sessions.execution import Execution, Origin
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fakes import Behaviour
    from nsmd.jail import Launcher
    from nsmd.manager.session_manager import SessionManager

TENANCY = Tenancy(name="a", scope="s", client="test", idle_timeout_s=100, max_lifetime_s=1000)


class Bench:
    """One session and what is needed to use it."""

    def __init__(
        self,
        launcher: FakeLauncher,
        limits: SessionLimits,
        nursery: trio.Nursery,
        *,
        launching: Launcher | None = None,
    ) -> None:
        self.launcher = launcher
        self.timers = Timers()
        nursery.start_soon(self.timers.run)
        self.watcher = Watcher()
        self.session = Session(
            "00000001",
            spec(),
            launcher=launching or launcher,
            limits=limits,
            manager=cast("SessionManager", self.watcher),
            start_limiter=trio.CapacityLimiter(1),
            transcripts=TranscriptStore(),
            gateway=Gateway(),
            timers=self.timers,
            nursery=nursery,
        )
        self._count = 0

    @property
    def jail(self) -> FakeJail:
        return self.launcher.jails[0]

    def submit(
        self,
        code: str,
        *,
        timeout_s: float = 30,
        one_shot: bool = False,
        output: list[Output] | None = None,
        stdin: bool = False,
        resumes: bool = False,
    ) -> Execution:
        self._count += 1
        client = ClientIdentity(name="test", scope="s", resumes=resumes)
        execution = Execution(
            f"e{self._count}",
            RunRequest(client=client, env="python", code=code, session="a", stdin=stdin),
            Origin(
                env="python",
                created=False,
                replaced=None,
                timeout_s=timeout_s,
                clamped_from_s=None,
                one_shot=one_shot,
            ),
            self.session,
            output.append if output is not None else None,
            lambda _: None,
        )
        self.session.submit(execution)
        return execution


@asynccontextmanager
async def bench(
    behave: Behaviour = echo,
    *,
    limits: SessionLimits | None = None,
    tenancy: Tenancy | None = TENANCY,
) -> AsyncGenerator[Bench]:
    async with launching(behave) as launcher, trio.open_nursery() as nursery:
        it = Bench(launcher, limits or SessionLimits(), nursery)
        if tenancy is not None:
            it.session.claim(tenancy)
        nursery.start_soon(it.session.run)
        yield it
        nursery.cancel_scope.cancel()
    assert all(jail.released for jail in launcher.jails)
    assert it.session.state is SessionState.ENDED
