"""Resources that outlive every session: made before the first, ended after the last jail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from nsm.dataclass import dataclass, replace
from nsmd.app.startup import Startup
from nsmd.audit import RECORDED, Journal, Recorder, open_journal
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank
from nsmd.environments.host_presets import HostEnvironments
from nsmd.environments.project.agreements import AgreementFile
from nsmd.environments.project.environment_manager import ProjectEnvironmentManager
from nsmd.jail import Launcher
from nsmd.jail.limits import LimitEnforcer
from nsmd.model.events import Events
from nsmd.model.shutdown import Shutdown
from nsmd.model.values import Environment

if TYPE_CHECKING:
    from nsmd.environments.devshell.project_shells import DevShells


class CrashWatch:
    """Watch that ends the process at once if one of its tasks fails, unless all is to end anyway.

    Otherwise trio would cancel all other tasks, and those of sessions, templates, boxes and ports
    would end what they own, instead of leaving it to the next supervisor.

    Args:
        ending: says how the supervisor is to end.
        crash: ends the process.
    """

    def __init__(self, ending: Shutdown, crash: Callable[[BaseException], NoReturn]) -> None:
        self._ending, self._crash = ending, crash
        self._tasks: set[trio.lowlevel.Task] = set()
        self._main: trio.lowlevel.Task | None = None
        self._over = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch one nursery of the supervisor's main task until `end`.

        When a nursery is cancelled, trio calls `abort` before it runs any of the tasks in it.
        """
        task = trio.lowlevel.current_task()
        nursery = task.parent_nursery
        assert nursery is not None, "never the first task"
        self._main = nursery.parent_task
        task_status.started()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._tasks.discard(task)
            if not self._over and self._ending.how != "end":
                self._crash(self._cause())
            return trio.lowlevel.Abort.SUCCEEDED

        if not self._over:
            self._tasks.add(task)
            await trio.lowlevel.wait_task_rescheduled(abort)

    def end(self) -> None:
        """Stop watching: what is cancelled from now on is to end."""
        self._over = True
        for task in self._tasks:
            trio.lowlevel.reschedule(task)
        self._tasks.clear()

    def _cause(self) -> BaseException:
        """Return what has failed. trio tells it only afterwards, with all that fails meanwhile."""
        nurseries = self._main.child_nurseries if self._main is not None else ()
        found = [each for one in nurseries for each in getattr(one, "_pending_excs", ())]
        return BaseExceptionGroup("tasks failed", found) if found else RuntimeError("cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that outlive every session.

    Attributes:
        started_s: on trio's clock.
        sessions: nursery of the sessions' tasks.
        shells: development shells of projects; None if they are off.
    """

    started_s: float
    ending: Shutdown
    crash_watch: CrashWatch
    events: Events
    journal: Journal
    recorder: Recorder
    enforcer: LimitEnforcer
    launcher: Launcher
    sessions: trio.Nursery
    shells: DevShells | None
    host: HostEnvironments
    project_environments: ProjectEnvironmentManager
    catalog: Catalog


@asynccontextmanager
async def open_resources(setup: Startup, enforcer: LimitEnforcer) -> AsyncGenerator[Resources]:
    """Open all resources. Leaving the block waits for the last session."""
    started_s = trio.current_time()
    audit = setup.settings.audit
    host = HostEnvironments(setup.find_environments, setup.settings)
    await host.begin()
    ending = Shutdown()
    crash_watch = CrashWatch(ending, lambda error: setup.leave.crash(setup.crashed(error)))
    async with (
        open_journal(setup.audit_path, max_mb=audit.max_mb, keep=audit.keep) as journal,
        setup.open_launcher(enforcer.enforcement) as launcher,
        trio.open_nursery() as sessions,
        _open_shells(setup, host) as shells,
        _open_project_environments(setup, host) as in_projects,
    ):
        await sessions.start(crash_watch.run)
        events, recorder = Events(), Recorder(journal, audit)
        events.subscribe(recorder, RECORDED)
        catalog = Catalog(
            host.found,
            *([] if shells is None else [shells]),
            in_projects,
            equip=setup.devices.equip,
        )

        def changed() -> None:
            catalog.put(EnvironmentSource(rank=Rank.HOST), host.found)
            _configure_project_environments(in_projects, setup, host)

        host.changed = changed
        yield Resources(
            started_s=started_s,
            ending=ending,
            crash_watch=crash_watch,
            events=events,
            journal=journal,
            recorder=recorder,
            enforcer=enforcer,
            launcher=launcher,
            sessions=sessions,
            shells=shells,
            host=host,
            project_environments=in_projects,
            catalog=catalog,
        )


@asynccontextmanager
async def _open_project_environments(
    setup: Startup, host: HostEnvironments
) -> AsyncGenerator[ProjectEnvironmentManager]:
    """Open the environments in projects; leaving stops the questions to their Pythons."""
    file = AgreementFile(setup.agreements_path)
    agreements = await trio.to_thread.run_sync(file.load)
    async with trio.open_nursery() as nursery:
        in_projects = ProjectEnvironmentManager(file, agreements, nursery)
        _configure_project_environments(in_projects, setup, host)
        yield in_projects
        nursery.cancel_scope.cancel()


def _configure_project_environments(
    in_projects: ProjectEnvironmentManager, setup: Startup, host: HostEnvironments
) -> None:
    """Have environments in projects run on the host's interpreters, as they are configured."""
    node = _without_devices(host.found, "node")
    in_projects.configure(partial(setup.find_python, settings=host.settings), node)


@asynccontextmanager
async def _open_shells(setup: Startup, host: HostEnvironments) -> AsyncGenerator[DevShells | None]:
    """Open the development shells of projects, if they are on; leaving stops their evaluations."""
    configured = setup.settings.project
    if not configured.use_flake:
        yield None
        return
    from nsmd.environments.devshell.project_shells import DevShells  # noqa: PLC0415  # off mostly

    async with trio.open_nursery() as nursery:
        yield DevShells(
            configured.inherit_env.vars,
            lambda: _without_devices(host.found, "bash"),
            state=setup.shell_directory,
            nix=setup.nix,
            nursery=nursery,
        )
        nursery.cancel_scope.cancel()


def _without_devices(environments: Sequence[Environment], name: str) -> Environment | None:
    """Find an environment for what lies in projects, which gets no devices."""
    found = next((each for each in environments if each.name == name), None)
    return None if found is None else replace(found, devices=())
