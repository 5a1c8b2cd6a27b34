"""What clients' requests work on, and who receives them: made together, and ended together when
nobody is connected any more."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from nsmd.app.frontends import FrontEnds
from nsmd.app.resources import Resources
from nsmd.app.startup import Startup
from nsmd.boxes import Boxes
from nsmd.boxes import sort_out as boxes_left
from nsmd.bridge.bridge import Bridge, open_bridge
from nsmd.config.reload import Reconfiguration
from nsmd.control.call import Services
from nsmd.environments.artifacts.sources import Discovery
from nsmd.environments.builds.builder import Builder, open_builder
from nsmd.environments.catalog import Rank, Source
from nsmd.environments.provider import Provider
from nsmd.fdstore.holder_store import SilentHolder
from nsmd.fdstore.store import DescriptorStore, Refill
from nsmd.host.paths import trusted_owners
from nsmd.host.watching.source_watcher import SourceWatcher as Watching
from nsmd.host.watching.source_watcher import open_source_watcher as open_watching
from nsmd.http.held_port import NAME as PORT
from nsmd.http.held_port import HeldPort
from nsmd.jail import Launcher
from nsmd.jail.adopted import reap_child
from nsmd.jail.cgroups import session_scope
from nsmd.jail.templates import TemplateLauncher
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import SessionManager
from nsmd.mcp.render import LEFT_OUT_CHARS
from nsmd.model.settings import Settings
from nsmd.model.shutdown import Shutdown
from nsmd.model.values import Environment
from nsmd.pool.host_memory import HostMemory
from nsmd.pool.memory_pressure import Pressure
from nsmd.restart.drain import Draining, Work
from nsmd.restart.ended_sessions import EndedSessionFiles, drop_earlier
from nsmd.restart.load import Takeover, sort_out
from nsmd.restart.session_store import SessionStore
from nsmd.telemetry import Surroundings, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class AppServices:
    """See the module.

    Attributes:
        services: what requests work on.
        reception: serves whoever connects.
        port: where clients over HTTP do.
    """

    services: Services
    reception: FrontEnds
    port: HeldPort


@asynccontextmanager
async def open_services(setup: Startup, ground: Resources) -> AsyncGenerator[AppServices]:
    """While the block lasts, clients can be served; then nothing new is looked for, built or kept
    ready, and no program of the bridge runs any more. Sessions are the ground's, and stay.

    What an earlier supervisor has left is taken up, and the configuration applied, before the
    block begins.
    """
    async with (
        trio.open_nursery() as upkeep,
        open_watching() as watching,
        open_builder(
            setup.nix,
            ground.catalog,
            setup.built_directory,
            defaults=setup.settings.defaults,
            configured=setup.settings.environments,
            owners=trusted_owners(),
            timeout_s=setup.settings.nix.build_timeout_seconds,
        ) as workshop,
        open_bridge(
            setup.bridge,
            watching,
            ending=ground.ending,
            events=ground.events,
            output_bytes=lambda: configuration.settings.mcp.max_result_chars - LEFT_OUT_CHARS,
        ) as bridge,
    ):
        provision = await _provide(setup, ground, watching, workshop)
        takeover = sort_out(setup.kept)
        for name in takeover.over:
            setup.store.drop(name)
        memory = HostMemory()
        fleet = _fleet(setup, ground, takeover, memory, upkeep)
        registry = RunService(
            setup.settings,
            provision,
            fleet,
            home=setup.home,
            private=setup.private,
            unreadable=setup.unreadable,
            ending=ground.ending,
        )
        telemetry = Telemetry(
            registry,
            Surroundings(
                connections=lambda: reception.connections,
                max_connections=setup.shares.connections,
                templates=_templates_of(ground.launcher),
                audit_lost=lambda: ground.journal.dropped,
                programs_running=lambda: bridge.calls,
                unaudited=lambda: bridge.audit_problem,
                unkept=lambda: setup.store.problem,
                ending=ground.ending,
                started_s=ground.started_s,
            ),
        )
        boxes = Boxes(
            partial(registry.check_project, point=None, mode=None),
            gateway=fleet.gateway,
            store=setup.store,
            events=ground.events,
            most=setup.shares.boxes,
        )
        boxes.take_up(boxes_left(setup.kept))
        port = HeldPort(setup.store, setup.kept.get(PORT, ()))
        for pid in setup.inherited:
            upkeep.start_soon(reap_child, pid)
        everything = partial(_everything_kept, fleet, ground, boxes, port)
        upkeep.start_soon(_keep, setup.store, everything, ground.ending)
        drop_earlier(setup.store, setup.kept)
        await fleet.take_up(takeover, all_seen=not isinstance(setup.store, SilentHolder))
        if isinstance(ground.launcher, TemplateLauncher):
            ground.launcher.tell(fleet.template_changed)
            fleet.catch_up = ground.launcher.catch_up
        pressure = Pressure(setup.settings.memory_pressure, memory, registry, fleet.pool)
        fleet.pool.on_pressure = pressure.look
        upkeep.start_soon(pressure.run)
        await workshop.begin(setup.sources.flakes, fleet.artifacts_in_use)
        configuration = _configuration(setup, ground, registry, bridge)
        services = Services(
            registry=registry,
            workshop=workshop,
            socket_path=setup.socket_path,
            pid=os.getpid(),
            jail=setup.jail,
            limits=ground.keeper.facts(),
            audit=ground.journal.facts,
            cold_starts=_cold_starts_of(ground.launcher),
            unloaded=_unloaded_of(ground.launcher),
            try_preloading=_try_preloading_of(ground.launcher),
            started_s=ground.started_s,
            shutdown=partial(ground.ending.ask, "end"),
            ending=ground.ending,
            store=setup.store,
            successor=setup.leave.command,
            draining=Draining(
                Work(ground.events, (registry.unfinished, bridge.unfinished)),
                ground.ending,
                upkeep,
                grace_s=setup.settings.defaults.interrupt_grace_seconds,
            ),
            configuration=configuration,
            events=ground.events,
            telemetry=telemetry,
            clients=lambda: reception.connections,
            max_file_bytes=setup.settings.session.max_file_mb << 20,
            boxes=boxes,
            http=lambda: reception.http.facts(),  # noqa: PLW0108 (there is none yet)
            bridge=bridge,
        )
        await bridge.configure(setup.settings.bridge)
        reception = FrontEnds(services, setup.shares.connections, port)
        yield AppServices(services=services, reception=reception, port=port)
        upkeep.cancel_scope.cancel()


async def _provide(
    setup: Startup, ground: Resources, watching: Watching, workshop: Builder
) -> Provider:
    """What there is to run in, what lies in the file system included."""
    discovery = Discovery(
        watching,
        ground.catalog,
        setup.settings.defaults,
        owners=trusted_owners(),
        home=setup.home,
        no_way=setup.no_way,
    )
    await discovery.begin(setup.sources, setup.sandbox_directory)
    return Provider(ground.catalog, discovery=discovery, workshop=workshop, shells=ground.shells)


def _fleet(
    setup: Startup, ground: Resources, takeover: Takeover, memory: HostMemory, upkeep: trio.Nursery
) -> SessionManager:
    return SessionManager(
        setup.settings,
        ground.launcher,
        sessions=ground.sessions,
        upkeep=upkeep,
        memory=memory,
        shares=setup.shares,
        keeper=ground.keeper,
        events=ground.events,
        book=SessionStore(setup.store, takeover.specs),
        ends=EndedSessionFiles(setup.ends_directory),
    )


def _configuration(
    setup: Startup, ground: Resources, registry: RunService, bridge: Bridge
) -> Reconfiguration:
    """Has other settings hold where they are used."""

    async def apply(settings: Settings, environments: Sequence[Environment]) -> None:
        registry.configure(settings)
        ground.journal.configure(settings.audit)
        ground.catalog.put(Source(rank=Rank.HOST), environments)
        await bridge.configure(settings.bridge)

    return Reconfiguration(
        setup.settings,
        load=setup.load_settings,
        find_environments=setup.find_environments,
        apply=apply,
        events=ground.events,
    )


async def _keep(store: DescriptorStore, refill: Refill, ending: Shutdown) -> None:
    """Keep everything; become the next program where that is what it takes."""
    await store.run(refill)
    ending.ask("reload")


def _everything_kept(
    fleet: SessionManager, ground: Resources, boxes: Boxes, port: HeldPort
) -> Iterator[tuple[str, Sequence[int]]]:
    """See `nsmd.fdstore.store.Refill`."""
    yield from fleet.everything_kept()
    yield from boxes.everything_kept()
    yield from port.everything_kept()
    if ground.keeper.anchor is not None:
        yield session_scope.NAME, ground.keeper.anchor.descriptors()
    if isinstance(ground.launcher, TemplateLauncher):
        yield from ground.launcher.everything_kept()


def _templates_of(launcher: Launcher) -> Callable[[], int]:
    if not isinstance(launcher, TemplateLauncher):
        return lambda: 0
    return lambda: len(launcher.templates)


def _unloaded_of(launcher: Launcher) -> Mapping[str, Sequence[str]]:
    return launcher.unloaded if isinstance(launcher, TemplateLauncher) else {}


def _try_preloading_of(launcher: Launcher) -> Callable[[Environment], Awaitable[None]] | None:
    return launcher.try_preloading if isinstance(launcher, TemplateLauncher) else None


def _cold_starts_of(launcher: Launcher) -> Mapping[str, str]:
    return launcher.reasons if isinstance(launcher, TemplateLauncher) else {}
