"""Resources that outlive every session: made before the first, ended after the last jail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from nsm.dataclass import dataclass, replace
from nsmd.app.crash_watch import CrashWatch
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that outlive every session.

    Attributes:
        started_s: on trio's clock.
        ending: says how the supervisor will end.
        crash_watch: leaves sessions to the next supervisor if a task fails.
        events: events, for all listeners.
        journal: file of the audit.
        recorder: writes events into that file.
        enforcer: enforces the limits of whole sessions.
        launcher: starts jails.
        sessions: nursery of the sessions' tasks.
        shells: development shells of projects; None if they are off.
        host: environments of the host's interpreters.
        project_environments: environments in projects that people agreed to use.
        catalog: environments to run code in.
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
