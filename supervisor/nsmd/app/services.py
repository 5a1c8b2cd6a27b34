"""Services for requests and the front ends that receive them: made together, and ended together
once no client is connected.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm import paths
from nsm.wire.operation import Right
from nsmd.app.resources import Resources
from nsmd.app.startup import Startup
from nsmd.boxes import BoxManager, ServeConnection
from nsmd.bridge.bridge import BridgeService, open_bridge
from nsmd.config.reload import Reconfiguration
from nsmd.control.call import Services
from nsmd.control.ops.supervisor import reload_once_answered
from nsmd.control.server import Access, ControlServer
from nsmd.environments.artifacts.sources import ArtifactDiscovery
from nsmd.environments.builds.builder import Builder, open_builder
from nsmd.environments.provider import Provider
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.host.descriptors import Quota
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import SourceWatcher as Watching
from nsmd.host.source_watcher import open_source_watcher as open_watching
from nsmd.http.held_port import NAME as PORT
from nsmd.http.held_port import HeldPort
from nsmd.http.service import HttpService
from nsmd.jail.limits.systemd import STORED_NAME as SCOPE
from nsmd.jail.process import reap_child
from nsmd.jail.templates import TemplateLauncher
from nsmd.manager.automatic_saves import AutomaticSaves, writing_to
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import SessionManager
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.model.limits import ClientLimits
from nsmd.model.settings import Settings, configured_secrets
from nsmd.model.values import Environment
from nsmd.network.secrets.service import SecretService
from nsmd.pool.host_memory import HostMemory
from nsmd.pool.memory_pressure import Pressure
from nsmd.ports.port_manager import PortManager
from nsmd.restart.drain import Draining, Work
from nsmd.restart.ended_sessions import EndedSessionFiles
from nsmd.restart.kept_sessions import LoadedState, SessionStore, sort_out
from nsmd.telemetry import Surroundings, Telemetry
from nsmd.telemetry.import_times import open_import_times

BOX_CONNECTIONS = 32
"""Largest number of connections at once from the programs in one box."""


class FrontEnds:
    """Front ends for connections over the user's own socket or that of a box.

    Args:
        services: services that requests use.
        max_connections: largest number at once. Boxes get at most half of them, so that their code
            keeps nobody else out.
        port: for clients over HTTP.

    Attributes:
        services: services that requests use.
        http: serves clients over HTTP, if that is configured.
    """

    def __init__(self, services: Services, max_connections: int, port: HeldPort) -> None:
        self.services, self.port = services, port
        self._endpoint = EndpointLoader()
        self._everyone = Quota(max_connections, "The supervisor has")
        self._in_boxes = Quota(max_connections // 2, "All boxes together have")
        self._server = ControlServer(
            Access(uid=os.geteuid()), services, self._attach, (self._everyone,)
        )
        settings, run_service = services.configuration.settings, services.run_service
        self.http = HttpService(
            settings,
            paths.http_token_path(),
            runner=run_service,
            programs=services.bridge,
            check=partial(run_service.check_project, point=None, mode=None),
            loaded=self._loaded,
            ending=lambda: services.ending.how is not None,
            events=services.events,
            traffic=services.telemetry.traffic["http"],
            port=port,
        )

    @property
    def connections(self) -> int:
        """Number of connections, those from boxes included."""
        return self._everyone.taken

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection over the user's own socket."""
        await self._server.handle(stream)

    def of_box(self, client_limits: ClientLimits) -> ServeConnection:
        """Return the server for a box's socket; its programs may run code within those limits."""
        rights: set[Right] = {"run"}
        if client_limits.programs:
            rights.add("bridge")
        access = Access(uid=os.geteuid(), rights=frozenset(rights), client_limits=client_limits)
        quotas = Quota(BOX_CONNECTIONS, "The box has"), self._in_boxes, self._everyone
        return ControlServer(access, self.services, self._attach, quotas).handle

    async def load(self) -> None:
        """Load the modules that take long to load, once everything else is up."""
        await self._endpoint.run()

    async def _loaded(self) -> object:
        """Wait until models can be served: a call that one repeats may belong to any session."""
        await self.services.run_service.session_manager.wait_found()
        return await self._endpoint.serve()

    async def _attach(
        self,
        stream: trio.abc.HalfCloseableStream,
        first_bytes: bytes,
        *,
        peer: tuple[int, int],
        client_limits: ClientLimits | None,
        confined: bool,
    ) -> None:
        services = self.services
        await services.run_service.session_manager.wait_found()
        await serve_attachment(
            stream,
            first_bytes,
            services.run_service,
            endpoint=self._endpoint,
            programs=services.bridge,
            ending=lambda: services.ending.how == "end",
            max_result_chars=services.configuration.settings.mcp.max_result_chars,
            client_limits=client_limits,
            confined=confined,
            peer=peer,
        )


@asynccontextmanager
async def open_services(setup: Startup, resources: Resources) -> AsyncGenerator[FrontEnds]:
    """Open the services, so that clients can be served while the block lasts.

    Before the block begins, the supervisor takes over what an earlier one has left, and applies the
    configuration. After the block, nothing is searched for, built or kept ready any more, and no
    bridge program runs. Sessions belong to the resources, and continue.
    """
    async with (
        trio.open_nursery() as upkeep,
        open_watching() as watching,
        open_builder(
            setup.nix,
            setup.installation,
            resources.catalog,
            setup.built_directory,
            defaults=setup.settings.defaults,
            configured=setup.settings.environments,
            owners=trusted_owners(),
            timeout_s=setup.settings.nix.build_timeout_seconds,
        ) as builder,
        open_import_times(setup.imports_path, resources.events) as import_times,
        open_bridge(
            setup.bridge,
            watching,
            ending=resources.ending,
            events=resources.events,
            output_bytes=lambda: 4 * configuration.settings.mcp.max_result_chars,
        ) as bridge,
    ):
        provider = await _provide(setup, resources, watching, builder)
        setup.devices.changed = resources.catalog.equip_again
        setup.devices.watch(watching)
        left_alone = LeftAlone(setup.store, setup.kept)
        loaded_state = sort_out(setup.kept, left_alone)
        memory = HostMemory()
        session_manager = _session_manager(setup, resources, loaded_state, memory, upkeep)
        run_service = _run_service(setup, resources, provider, session_manager)
        ports = PortManager(store=setup.store, events=resources.events, most=setup.shares.ports)
        ports.configure(setup.settings.ports)
        telemetry = _telemetry(setup, resources, run_service, bridge, ports, lambda: frontends)
        boxes = _boxes(setup, resources, run_service)
        secrets = _secrets(setup, resources, session_manager)
        port = HeldPort(setup.store, setup.kept.get(PORT, ()))
        everything = partial(
            _everything_kept, left_alone, session_manager, resources, boxes, ports, secrets, port
        )
        boxes.take_up(setup.kept, left_alone)
        ports.take_up(setup.kept, left_alone)
        secrets.take_up(setup.kept, left_alone)
        upkeep.start_soon(setup.store.run, everything)
        _take_up_sessions(setup, loaded_state, session_manager, upkeep)
        forking = _forking(resources)
        if forking is not None:
            forking.on_change(session_manager.template_changed)
            session_manager.catch_up = forking.catch_up
        _relieve_pressure(setup, memory, run_service, upkeep)
        agreed = resources.project_environments.build_with(builder)
        await builder.begin(setup.sources.flakes, session_manager.environments_in_use, agreed)
        configuration = _configuration(
            setup, resources, run_service, bridge, ports, secrets, builder
        )
        saves = AutomaticSaves(
            resources.events,
            lambda: configuration.settings.session,
            run_service.identified,
            run_service.live_sessions,
            writing_to(setup.socket_path),
        )
        upkeep.start_soon(saves.run)
        services = Services(
            run_service=run_service,
            builder=builder,
            project_environments=resources.project_environments,
            socket_path=setup.socket_path,
            pid=os.getpid(),
            jail=setup.jail,
            limits=resources.enforcer.facts(),
            audit=resources.recorder.facts,
            forking=forking,
            import_times=import_times,
            started_s=resources.started_s,
            save_all=saves.save_all,
            shutdown=partial(resources.ending.ask, "end"),
            ending=resources.ending,
            store=setup.store,
            left_alone=left_alone,
            everything_kept=everything,
            silent=setup.silent,
            successor=setup.leave.command,
            draining=_draining(setup, resources, run_service, bridge, upkeep),
            configuration=configuration,
            events=resources.events,
            telemetry=telemetry,
            clients=lambda: frontends.connections,
            max_file_bytes=setup.settings.session.max_file_mb << 20,
            boxes=boxes,
            ports=ports,
            secrets=secrets,
            http=lambda: frontends.http.facts(),  # noqa: PLW0108 (there is none yet)
            bridge=bridge,
        )
        if setup.silent is not None:
            upkeep.start_soon(reload_once_answered, services, setup.silent)
        await bridge.configure(setup.settings.bridge)
        frontends = FrontEnds(services, setup.shares.connections, port)
        yield frontends
        upkeep.cancel_scope.cancel()


async def _provide(
    setup: Startup, resources: Resources, watching: Watching, builder: Builder
) -> Provider:
    """Collect the environments, including those from the file system."""
    discovery = ArtifactDiscovery(
        watching,
        resources.catalog,
        setup.settings.defaults,
        owners=trusted_owners(),
        home=setup.home,
        no_way=setup.no_way,
    )
    await discovery.begin(setup.sources, setup.sandbox_directory)
    return Provider(
        resources.catalog,
        discovery=discovery,
        builder=builder,
        shells=resources.shells,
        project_environments=resources.project_environments,
        devices=setup.devices,
        host=resources.host,
    )


def _session_manager(
    setup: Startup,
    resources: Resources,
    loaded_state: LoadedState,
    memory: HostMemory,
    upkeep: trio.Nursery,
) -> SessionManager:
    return SessionManager(
        setup.settings,
        resources.launcher,
        sessions=resources.sessions,
        upkeep=upkeep,
        memory=memory,
        shares=setup.shares,
        enforcer=resources.enforcer,
        events=resources.events,
        session_store=SessionStore(
            setup.store, loaded_state.specs, pinned=bool(loaded_state.unread)
        ),
        ended_files=EndedSessionFiles(setup.ends_directory),
    )


def _run_service(
    setup: Startup, resources: Resources, provider: Provider, session_manager: SessionManager
) -> RunService:
    return RunService(
        setup.settings,
        provider,
        session_manager,
        home=setup.home,
        private=setup.private,
        unreadable=setup.unreadable,
        ending=resources.ending,
    )


def _boxes(setup: Startup, resources: Resources, run_service: RunService) -> BoxManager:
    return BoxManager(
        partial(run_service.check_project, point=None, mode=None),
        gateway=run_service.session_manager.gateway,
        store=setup.store,
        events=resources.events,
        most=setup.shares.boxes,
        enforcer=resources.enforcer,
    )


def _secrets(
    setup: Startup, resources: Resources, session_manager: SessionManager
) -> SecretService:
    secrets = SecretService(store=setup.store, events=resources.events, most=setup.shares.grants)
    secrets.configure(configured_secrets(setup.settings))
    session_manager.secrets = session_manager.gateway.secrets = secrets
    return secrets


def _draining(
    setup: Startup,
    resources: Resources,
    run_service: RunService,
    bridge: BridgeService,
    upkeep: trio.Nursery,
) -> Draining:
    return Draining(
        Work(resources.events, (run_service.unfinished, bridge.unfinished)),
        resources.ending,
        upkeep,
        grace_s=setup.settings.defaults.interrupt_grace_seconds,
    )


def _forking(resources: Resources) -> TemplateLauncher | None:
    """Return the launcher if it forks templates."""
    launcher = resources.launcher
    return launcher if isinstance(launcher, TemplateLauncher) else None


def _telemetry(
    setup: Startup,
    resources: Resources,
    run_service: RunService,
    bridge: BridgeService,
    ports: PortManager,
    frontends: Callable[[], FrontEnds],
) -> Telemetry:
    forking = _forking(resources)
    return Telemetry(
        run_service,
        Surroundings(
            connections=lambda: frontends().connections,
            max_connections=setup.shares.connections,
            templates=lambda: [t.forker_pid for t in forking.templates] if forking else [],
            audit_lost=lambda: resources.journal.dropped,
            programs_running=lambda: bridge.calls,
            ports=ports.traffic,
            unaudited=lambda: bridge.audit_problem,
            unkept=lambda: setup.store.problem or (setup.silent.problem if setup.silent else ""),
            ending=resources.ending,
            started_s=resources.started_s,
        ),
    )


def _take_up_sessions(
    setup: Startup,
    loaded_state: LoadedState,
    session_manager: SessionManager,
    upkeep: trio.Nursery,
) -> None:
    """Take over the sessions that an earlier supervisor has left, and drop what is over."""
    for name in loaded_state.over:
        setup.store.drop(name)
    for pid in setup.inherited:
        upkeep.start_soon(reap_child, pid)
    session_manager.take_up(loaded_state, setup.silent)


def _relieve_pressure(
    setup: Startup, memory: HostMemory, run_service: RunService, upkeep: trio.Nursery
) -> None:
    """End spares and idle sessions while the host runs short of memory."""
    pool = run_service.session_manager.pool
    pressure = Pressure(
        setup.settings.memory_pressure, memory, pool, run_service.events, run_service.live_sessions
    )
    pool.on_pressure = pressure.look
    upkeep.start_soon(pressure.run)


def _configuration(
    setup: Startup,
    resources: Resources,
    run_service: RunService,
    bridge: BridgeService,
    ports: PortManager,
    secrets: SecretService,
    builder: Builder,
) -> Reconfiguration:
    """Apply changed settings to the parts that use them."""

    async def apply(settings: Settings, environments: Sequence[Environment]) -> None:
        run_service.configure(settings)
        resources.recorder.configure(settings.audit)
        resources.host.put(settings, environments)
        await bridge.configure(settings.bridge)
        ports.configure(settings.ports)
        secrets.configure(configured_secrets(settings))
        builder.configure(settings.environments)

    return Reconfiguration(
        setup.settings,
        load=setup.load_settings,
        find_environments=setup.find_environments,
        apply=apply,
        events=resources.events,
        path=setup.config_path,
        look_again=builder.look_again,
    )


def _everything_kept(
    left_alone: LeftAlone,
    session_manager: SessionManager,
    resources: Resources,
    boxes: BoxManager,
    ports: PortManager,
    secrets: SecretService,
    port: HeldPort,
) -> Iterator[tuple[str, Sequence[int]]]:
    yield from left_alone.everything_kept()
    yield from session_manager.everything_kept()
    yield from boxes.everything_kept()
    yield from ports.everything_kept()
    yield from secrets.everything_kept()
    yield from port.everything_kept()
    if resources.enforcer.anchor is not None:
        yield SCOPE, resources.enforcer.anchor.descriptors()
    if isinstance(resources.launcher, TemplateLauncher):
        yield from resources.launcher.everything_kept()
