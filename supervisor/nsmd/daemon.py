"""Puts the parts together and keeps them running until asked to end.

Lifetimes are nested nurseries, ended from the inside out: connections first (nobody asks any more),
then the pool, then the sessions, each killing its own jail, all at once, then the templates.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from nsm import paths
from nsm._version import __version__
from nsmd.artifacts.sources import Discovery
from nsmd.audit import Recorder, open_journal
from nsmd.boxes import Boxes
from nsmd.boxes import sort_out as boxes_left
from nsmd.bridge.bridge import Places, open_bridge
from nsmd.builds.workshop import open_workshop
from nsmd.catalog import Catalog, Rank, Source
from nsmd.cgroups import SessionKeeper, anchor, open_keeper
from nsmd.control.call import Services
from nsmd.descriptors import Shares
from nsmd.devshell.keeper import DevShells
from nsmd.draining import Draining, Work
from nsmd.endbook import EndBook
from nsmd.ending import Ending, How
from nsmd.events import Events
from nsmd.hostmemory import HostMemory
from nsmd.hostpaths import trusted_owners
from nsmd.http.port import NAME as PORT
from nsmd.http.port import HeldPort
from nsmd.jail import Launcher
from nsmd.jail.adopted import reap_child
from nsmd.keeping import SessionBook
from nsmd.limits import session_limits
from nsmd.listening import LOCK
from nsmd.mcp.render import LEFT_OUT_CHARS
from nsmd.nix.program import NixFinder
from nsmd.pressure import Pressure
from nsmd.project import Unreadable
from nsmd.provision import Provision
from nsmd.reception import Reception
from nsmd.reconfiguration import Load, Reconfiguration
from nsmd.registry import Registry
from nsmd.servicestatus import ServiceStatus
from nsmd.settings import Settings
from nsmd.signals import heed_signals
from nsmd.socketguard import SocketGuard
from nsmd.survival.store import DescriptorStore, Kept
from nsmd.survival.taking import Leaving
from nsmd.takeover import sort_out
from nsmd.telemetry import Surroundings, Telemetry
from nsmd.telemetry.scraping import serve_metrics
from nsmd.templates import TemplateLauncher
from nsmd.values import Enforcement, Environment, Sources
from nsmd.watching.keeper import open_keeper as open_watching

log = logging.getLogger(__name__)

END_DEADLINE_S = 10.0
"""For all jails to be gone at the end; killing a thousand takes half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What `main` found out before the event loop began.

    Attributes:
        listener: bound, listening, non-blocking.
        socket_path: where.
        home: the user's home directory.
        private: directories of our own that no jail ever shows.
        variables: of this process, which lead to the service manager.
        open_launcher: while its block lasts, what it gives starts jails; told what keeps their
            sessions to their limits.
        unreadable: why the jails' user cannot be shown a directory; None if it can.
        no_way: why that user cannot go to a file by its own path; None if it can.
        jail: facts about jails here, for `nsm status`.
        shares: how many descriptors there are, and what for.
        load_settings: reads `config.toml` again; blocks, as the next one.
        find_environments: looks at the host; blocks, so it is called in a thread.
        sources: of further environments, as the supervisor's own variables name them.
        sandbox_directory: of artifacts, where they name none.
        nix: finds nix when it is needed.
        built_directory: for what it builds.
        shell_directory: for what nix says of projects' shells.
        audit_path: of the audit's file.
        bridge: where its definitions are, and its own audit.
        metrics_path: of the Unix socket for metrics.
        announce: called once the socket answers.
        store: keeps sessions' descriptors, whatever becomes of this process.
        kept: what it, or the program that this process was before, had kept of earlier ones.
        leave: ends this process for `leave` and `reload`.
        inherited: process ids of children of the program that this process was before.
    """

    settings: Settings
    listener: socket.socket
    socket_path: str
    home: str
    private: Sequence[str]
    variables: Mapping[str, str]
    open_launcher: Callable[[Enforcement], AbstractAsyncContextManager[Launcher]]
    unreadable: Unreadable
    no_way: Unreadable
    jail: Mapping[str, Any]
    shares: Shares
    load_settings: Load
    find_environments: Callable[[Settings], Sequence[Environment]]
    sources: Sources
    sandbox_directory: str
    nix: NixFinder
    built_directory: str
    shell_directory: str
    audit_path: str
    bridge: Places
    metrics_path: str
    announce: Callable[[], None]
    store: DescriptorStore
    kept: Kept
    leave: Leaving
    inherited: Sequence[int] = ()


async def serve(setup: Setup) -> None:
    """Run the supervisor until SIGTERM, SIGINT or a `shutdown` operation."""
    # First of all: what is started stays in the group where the supervisor was then.
    async with open_keeper(
        session_limits(setup.settings), setup.variables, store=setup.store, kept=setup.kept
    ) as keeper:
        await _serve(setup, keeper)


async def _serve(setup: Setup, keeper: SessionKeeper) -> None:
    started_s = trio.current_time()
    ending = Ending()
    events = Events()
    environments = await trio.to_thread.run_sync(setup.find_environments, setup.settings)
    async with (
        open_journal(setup.audit_path, setup.settings.audit) as journal,
        setup.open_launcher(keeper.enforcement) as launcher,
        trio.open_nursery() as sessions,
        _open_shells(setup, environments) as shells,
    ):
        recorder = Recorder(journal)
        events.subscribe(recorder)
        catalog = Catalog(environments, shells)
        async with (
            trio.open_nursery() as upkeep,
            open_watching() as watching,
            open_workshop(
                setup.nix,
                catalog,
                setup.built_directory,
                defaults=setup.settings.defaults,
                configured=setup.settings.environments,
                owners=trusted_owners(),
                timeout_s=setup.settings.nix.build_timeout_seconds,
            ) as workshop,
            open_bridge(
                setup.bridge,
                watching,
                ending=ending,
                events=events,
                output_bytes=lambda: configuration.settings.mcp.max_result_chars - LEFT_OUT_CHARS,
            ) as bridge,
        ):
            discovery = Discovery(
                watching,
                catalog,
                setup.settings.defaults,
                owners=trusted_owners(),
                home=setup.home,
                no_way=setup.no_way,
            )
            await discovery.begin(setup.sources, setup.sandbox_directory)
            takeover = sort_out(setup.kept)
            for name in takeover.over:
                setup.store.drop(name)
            memory = HostMemory()
            registry = Registry(
                setup.settings,
                Provision(catalog, discovery=discovery, workshop=workshop, shells=shells),
                launcher,
                home=setup.home,
                private=setup.private,
                unreadable=setup.unreadable,
                sessions=sessions,
                upkeep=upkeep,
                shares=setup.shares,
                memory=memory,
                keeper=keeper,
                events=events,
                ending=ending,
                book=SessionBook(setup.store, takeover.specs),
                ends=EndBook(setup.store),
            )
            telemetry = Telemetry(
                registry,
                Surroundings(
                    connections=lambda: reception.connections,
                    max_connections=setup.shares.connections,
                    templates=_templates_of(launcher),
                    audit_lost=lambda: journal.dropped,
                    programs_running=lambda: len(bridge.unfinished()),
                    unaudited=lambda: bridge.audit_problem,
                    unkept=lambda: setup.store.problem,
                    ending=ending,
                    started_s=started_s,
                ),
            )
            draining = Draining(
                Work(events, (registry.unfinished, bridge.unfinished)),
                ending,
                upkeep,
                grace_s=setup.settings.defaults.interrupt_grace_seconds,
            )
            for pid in setup.inherited:
                upkeep.start_soon(reap_child, pid)
            boxes = Boxes(
                partial(registry.check_project, point=None, mode=None),
                gateway=registry.gateway,
                store=setup.store,
                events=events,
                most=setup.shares.boxes,
            )
            boxes.take_up(boxes_left(setup.kept))
            port = HeldPort(setup.store, setup.kept.get(PORT, ()))
            upkeep.start_soon(
                setup.store.run, partial(_everything_kept, registry, keeper, launcher, boxes, port)
            )
            await registry.take_up(takeover, setup.kept)
            pressure = Pressure(setup.settings.memory_pressure, memory, registry, registry.pool)
            registry.pool.on_pressure = pressure.look
            upkeep.start_soon(pressure.run)
            await workshop.begin(setup.sources.flakes, registry.artifacts_in_use)

            async def configure(settings: Settings, environments: Sequence[Environment]) -> None:
                registry.configure(settings)
                journal.configure(settings.audit)
                catalog.put(Source(rank=Rank.HOST), environments)
                await bridge.configure(settings.bridge)

            configuration = Reconfiguration(
                setup.settings,
                load=setup.load_settings,
                find_environments=setup.find_environments,
                apply=configure,
                events=events,
            )

            services = Services(
                registry=registry,
                workshop=workshop,
                socket_path=setup.socket_path,
                pid=os.getpid(),
                jail=setup.jail,
                limits=keeper.facts(),
                audit=journal.facts,
                cold_starts=launcher.reasons if isinstance(launcher, TemplateLauncher) else {},
                started_s=started_s,
                shutdown=partial(ending.ask, "end"),
                ending=ending,
                store=setup.store,
                successor=setup.leave.command,
                draining=draining,
                configuration=configuration,
                events=events,
                telemetry=telemetry,
                clients=lambda: reception.connections,
                max_file_bytes=setup.settings.session.max_file_mb << 20,
                boxes=boxes,
                http=lambda: reception.http.facts(),  # noqa: PLW0108 (there is none yet)
                bridge=bridge,
            )
            await bridge.configure(setup.settings.bridge)
            reception = Reception(services, setup.shares.connections, port)
            status = ServiceStatus(
                setup.variables,
                lambda: (
                    len(registry.live_sessions()),
                    len(registry.unfinished()),
                    reception.connections,
                ),
                draining.remaining_s,
            )
            async with trio.open_nursery() as connections:
                await connections.start(heed_signals, setup.store, ending, draining, configuration)
                # Before whatever clients do: they may have waited for this.
                recorder.say("supervisor_started", {"pid": os.getpid(), "version": __version__})
                guard = SocketGuard(
                    setup.listener,
                    setup.leave.lock,
                    os.path.join(paths.runtime_dir(), LOCK),
                    ours=setup.leave.own is not None,
                    look=setup.store.look,
                )
                connections.start_soon(guard.serve, reception.handle, connections)
                connections.start_soon(guard.watch)
                await connections.start(boxes.serve, reception.of_box)
                await connections.start(reception.http.serve)
                setup.announce()
                connections.start_soon(status.run, events)
                connections.start_soon(reception.load)
                connections.start_soon(
                    serve_metrics, setup.metrics_path, setup.settings.metrics.port, telemetry.text
                )
                log.info("listening on %s (pid %d)", setup.socket_path, os.getpid())
                how = await ending.wait()
                status.ends(how)
                await bridge.finish(_patience_s(how, configuration.settings, draining))
                how = ending.how or how  # it may be to end after all
                if how != "end":
                    setup.leave.hold_place()
                    registry.leave()
                    boxes.leave()
                recorder.say("supervisor_ended", {"pid": os.getpid(), "how": how})
                connections.cancel_scope.cancel()
            upkeep.cancel_scope.cancel()
        if how != "end":
            await journal.close()
            setup.leave(how)
        port.forget()
        registry.close()
        sessions.cancel_scope.deadline = trio.current_time() + END_DEADLINE_S
    log.info("ended")


def _patience_s(how: How, settings: Settings, draining: Draining) -> float:
    """For programs of the bridge, which cannot go on without this process as sessions do."""
    waited = draining.drain is not None and not draining.drain.active
    return 0.0 if how == "end" or waited else settings.drain.timeout_seconds


def _everything_kept(
    registry: Registry,
    keeper: SessionKeeper,
    launcher: Launcher,
    boxes: Boxes,
    port: HeldPort,
) -> Iterator[tuple[str, Sequence[int]]]:
    """See `nsmd.survival.store.Refill`."""
    yield from registry.everything_kept()
    yield from boxes.everything_kept()
    yield from port.everything_kept()
    if keeper.anchor is not None:
        yield anchor.NAME, keeper.anchor.descriptors()
    if isinstance(launcher, TemplateLauncher):
        yield from launcher.everything_kept()


def _templates_of(launcher: Launcher) -> Callable[[], int]:
    if not isinstance(launcher, TemplateLauncher):
        return lambda: 0
    return lambda: len(launcher.templates)


@asynccontextmanager
async def _open_shells(
    setup: Setup, environments: Sequence[Environment]
) -> AsyncGenerator[DevShells | None]:
    """The shells of projects, if they are wanted; leaving stops their evaluations."""
    configured = setup.settings.project
    if not configured.use_flake:
        yield None
        return
    bash = next((each for each in environments if each.name == "bash"), None)
    async with trio.open_nursery() as nursery:
        yield DevShells(
            configured.inherit_env.vars,
            lambda: bash,
            state=setup.shell_directory,
            nix=setup.nix,
            nursery=nursery,
        )
        nursery.cancel_scope.cancel()
