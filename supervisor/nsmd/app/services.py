"""All services, each opened after those that it needs, and the front ends for clients."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm import paths
from nsm.dataclass import replace
from nsm.wire.operation import Right
from nsmd.app.startup import Startup
from nsmd.audit import Recorder
from nsmd.boxes import BoxManager, ServeConnection
from nsmd.bridge.bridge import BridgePaths, open_bridge
from nsmd.config.reload import Reconfiguration
from nsmd.control.call import Services
from nsmd.control.ops.supervisor import reload_once_answered
from nsmd.control.server import Access, ControlServer
from nsmd.environments.artifacts.discovery import ArtifactDiscovery
from nsmd.environments.builds.builder import Builder, open_builder
from nsmd.environments.catalog import Catalog, EnvironmentSource, ProjectSource, Rank
from nsmd.environments.devices.equipment import DeviceFinder
from nsmd.environments.devices.nodes import device_host
from nsmd.environments.host_presets import HostEnvironments, find_environments, find_python_in
from nsmd.environments.nix.program import NixFinder
from nsmd.environments.on_demand import EnvironmentSearch
from nsmd.environments.project.agreements import load_agreements
from nsmd.environments.project.environment_manager import ProjectEnvironmentManager
from nsmd.fdstore.store import Refill
from nsmd.host.descriptors import Quota
from nsmd.host.locales import passed_on
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import SourceWatcher, open_source_watcher
from nsmd.http.service import HTTP_PORT, HeldPort, HttpService
from nsmd.jail import Launcher
from nsmd.jail.limits import LimitEnforcer
from nsmd.jail.process import reap_child
from nsmd.jail.templates import TemplateLauncher
from nsmd.manager.automatic_saves import AutomaticSaves, writing_to
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import SessionManager
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.model.events import Events
from nsmd.model.lifecycle import Shutdown
from nsmd.model.limits import ClientLimits
from nsmd.model.settings import Settings, configured_secrets
from nsmd.model.values import Environment
from nsmd.network.secrets.service import SecretService
from nsmd.network.trust import added_certificates
from nsmd.network.upstream import Upstream, find_upstream
from nsmd.packages.package_builds import PackageEnvironments
from nsmd.pool.memory import HostMemory, Pressure
from nsmd.ports.port_manager import PortManager
from nsmd.restart.drain import Draining
from nsmd.restart.ended_sessions import EndedSessionFiles
from nsmd.restart.kept_sessions import SessionStore, load_sessions
from nsmd.telemetry import Surroundings, Telemetry
from nsmd.telemetry.import_times import open_import_times

BOX_CONNECTIONS = 32
"""Largest number of connections at once from the programs in one box."""


class FrontEnds:
    """Front ends for connections over the user's own socket or that of a box.

    Args:
        everyone: counts all connections, those from boxes included. Boxes get at most half of them,
            so that their code keeps nobody else out.
        http: serves clients over HTTP, if that is configured; at `port`.
    """

    def __init__(
        self,
        services: Services,
        everyone: Quota,
        endpoint: EndpointLoader,
        http: HttpService,
        port: HeldPort,
    ) -> None:
        self.services, self.http, self.port = services, http, port
        self.endpoint = endpoint
        self._everyone = everyone
        self._in_boxes = Quota(everyone.most // 2, "All boxes together have")
        access = Access(uid=os.geteuid())
        self.handle = ControlServer(access, services, self._attach, (everyone,)).handle

    def of_box(self, client_limits: ClientLimits) -> ServeConnection:
        """Return the server for a box's socket; its programs may run code within those limits."""
        rights: set[Right] = {"run"}
        if client_limits.programs:
            rights.add("bridge")
        access = Access(uid=os.geteuid(), rights=frozenset(rights), client_limits=client_limits)
        quotas = Quota(BOX_CONNECTIONS, "The box has"), self._in_boxes, self._everyone
        return ControlServer(access, self.services, self._attach, quotas).handle

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
            endpoint=self.endpoint,
            programs=services.bridge,
            ending=lambda: services.ending.how == "end",
            max_result_chars=services.configuration.settings.mcp.max_result_chars,
            client_limits=client_limits,
            confined=confined,
            peer=peer,
        )


@asynccontextmanager
async def open_services(
    start: Startup,
    enforcer: LimitEnforcer,
    launcher: Launcher,
    sessions: trio.Nursery,
    *,
    events: Events,
    recorder: Recorder,
    ending: Shutdown,
) -> AsyncGenerator[FrontEnds]:
    """Open the services, so that clients can be served while the block lasts.

    Before the block begins, the supervisor takes over what an earlier one has left, and applies the
    configuration. After the block, nothing is searched for, built or kept ready any more, and no
    bridge program runs. Sessions belong to the caller's nursery, and continue.
    """
    settings, store, shares = start.settings, start.store, start.shares
    started_s = trio.current_time()
    upstream = find_upstream(settings.network, os.environ, paths.home())
    async with (
        trio.open_nursery() as upkeep,
        open_source_watcher() as watching,
        _open_environments(start, upstream, watching, upkeep) as (
            catalog,
            search,
            builder,
            host,
            in_projects,
        ),
        open_import_times(os.path.join(paths.state_dir(), "imports.json"), events) as import_times,
        open_bridge(
            BridgePaths(
                definitions=paths.tools_dir(),
                ledger=paths.bridge_audit_path(),
                variables=os.environ,
            ),
            watching,
            ending=ending,
            events=events,
            output_bytes=lambda: 4 * configuration.settings.mcp.max_result_chars,
        ) as bridge,
    ):
        entries = start.entries
        loaded_state = load_sessions(entries)
        memory = HostMemory()
        session_manager = SessionManager(
            settings,
            launcher,
            sessions=sessions,
            upkeep=upkeep,
            memory=memory,
            shares=shares,
            enforcer=enforcer,
            events=events,
            session_store=SessionStore(store, loaded_state.specs, pinned=bool(loaded_state.unread)),
            ended_files=EndedSessionFiles(os.path.join(paths.runtime_dir(), "sessions")),
        )
        run_service = RunService(
            settings,
            catalog,
            session_manager,
            home=paths.home(),
            search=search,
            private=(paths.runtime_dir(), paths.state_dir(), paths.data_dir(), paths.config_dir()),
            unreadable=start.jails.user.why_unreadable,
            ending=ending,
        )
        check_project = partial(run_service.check_project, point=None, mode=None)
        ports = PortManager(store=store, events=events, most=shares.ports)
        boxes = BoxManager(
            check_project,
            gateway=session_manager.gateway,
            store=store,
            events=events,
            most=shares.boxes,
            enforcer=enforcer,
        )
        secrets = SecretService(store=store, events=events, most=shares.grants)
        session_manager.secrets = session_manager.gateway.secrets = secrets
        session_manager.gateway.upstream = upstream
        session_manager.gateway.certificates = await trio.to_thread.run_sync(
            added_certificates, os.environ
        )
        port = HeldPort(store, entries.kept.get(HTTP_PORT, ()))
        for keeper in (boxes, ports, secrets):
            keeper.take_up(entries)
        parts: list[Refill] = [
            each.everything_kept
            for each in (entries, session_manager, boxes, ports, secrets, port, enforcer)
        ]
        forking = launcher if isinstance(launcher, TemplateLauncher) else None
        if forking is not None:
            parts.append(forking.everything_kept)
            forking.on_change(session_manager.template_changed)
            session_manager.catch_up = forking.catch_up

        def everything_kept() -> Iterator[tuple[str, Sequence[int]]]:
            for part in parts:
                yield from part()

        upkeep.start_soon(store.run, everything_kept)
        for pid in start.inherited:
            upkeep.start_soon(reap_child, pid)
        session_manager.take_up(loaded_state, start.silent)
        pressure = Pressure(
            settings.memory_pressure,
            memory,
            session_manager.pool,
            events,
            run_service.live_sessions,
        )
        session_manager.pool.on_pressure = pressure.reclaim
        upkeep.start_soon(pressure.run)

        async def apply(settings: Settings, environments: Sequence[Environment]) -> None:
            run_service.configure(settings)
            recorder.configure(settings.audit)
            host.put(settings, environments)
            await configure_services(settings)
            builder.configure(settings.environments)

        async def configure_services(settings: Settings) -> None:
            await bridge.configure(settings.bridge)
            ports.configure(settings.ports)
            secrets.configure(configured_secrets(settings))

        configuration = Reconfiguration(
            settings,
            load=start.load_settings,
            find_environments=host.find,
            apply=apply,
            events=events,
            path=start.config_path,
            look_again=builder.look_again,
        )
        everyone = Quota(shares.connections, "The supervisor has")
        telemetry = Telemetry(
            run_service,
            Surroundings(
                connections=lambda: everyone.taken,
                max_connections=shares.connections,
                templates=lambda: [t.forker_pid for t in forking.templates] if forking else [],
                audit_lost=lambda: recorder.journal.dropped,
                programs_running=lambda: bridge.calls,
                ports=ports.traffic,
                unaudited=lambda: bridge.audit_problem,
                unkept=lambda: store.problem or (start.silent.problem if start.silent else ""),
                ending=ending,
                started_s=started_s,
            ),
        )
        endpoint = EndpointLoader()

        async def endpoint_loaded() -> object:
            # A call that a client repeats may belong to any session.
            await session_manager.wait_found()
            return await endpoint.serve()

        http = HttpService(
            settings,
            paths.http_token_path(),
            runner=run_service,
            programs=bridge,
            check=check_project,
            loaded=endpoint_loaded,
            ending=lambda: ending.how is not None,
            events=events,
            traffic=telemetry.traffic["http"],
            port=port,
        )
        saves = AutomaticSaves(
            events,
            lambda: configuration.settings.session,
            run_service.identified,
            run_service.live_sessions,
            writing_to(start.listener.getsockname()),
        )
        upkeep.start_soon(saves.run)
        services = Services(
            run_service=run_service,
            builder=builder,
            project_environments=in_projects,
            socket_path=start.listener.getsockname(),
            pid=os.getpid(),
            jail={"kind": "bubblewrap", "uid": start.jails.user.uid},
            limits=enforcer.facts(),
            audit=recorder.facts,
            forking=forking,
            import_times=import_times,
            started_s=started_s,
            save_all=saves.save_all,
            ending=ending,
            store=store,
            entries=entries,
            everything_kept=everything_kept,
            silent=start.silent,
            successor=start.leave.command,
            draining=Draining(
                events,
                lambda: [*run_service.unfinished(), *bridge.unfinished()],
                ending,
                upkeep,
                grace_s=settings.defaults.interrupt_grace_seconds,
            ),
            configuration=configuration,
            events=events,
            telemetry=telemetry,
            clients=lambda: everyone.taken,
            max_file_bytes=settings.session.max_file_mb << 20,
            boxes=boxes,
            ports=ports,
            secrets=secrets,
            http=http.facts,
            bridge=bridge,
        )
        if start.silent is not None:
            upkeep.start_soon(reload_once_answered, services, start.silent)
        # Not before: sessions that are taken up say so meanwhile, and who counts, lists and saves
        # must hear it.
        agreed = in_projects.build_with(builder)
        await builder.begin(start.sources.flakes, session_manager.environments_in_use, agreed)
        await configure_services(settings)
        yield FrontEnds(services, everyone, endpoint, http, port)
        upkeep.cancel_scope.cancel()


@asynccontextmanager
async def _open_environments(
    start: Startup, upstream: Upstream, watching: SourceWatcher, upkeep: trio.Nursery
) -> AsyncGenerator[
    tuple[Catalog, EnvironmentSearch, Builder, HostEnvironments, ProjectEnvironmentManager]
]:
    """Find the environments of the host, of configured directories and of agreed projects, and
    open the builder of the others.
    """
    settings, user, state = start.settings, start.jails.user, paths.state_dir()
    variables = passed_on(os.environ)
    nix = NixFinder(start.search_path, upstream.variables(os.environ), paths.home())
    devices = DeviceFinder(device_host(user))
    find = partial(
        find_environments,
        search_path=start.search_path,
        unreadable=user.why_unreadable,
        variables=variables,
    )
    host = HostEnvironments(find, settings)
    await host.begin()

    def without_devices(name: str) -> Environment | None:
        """Find an environment for what lies in projects, which gets no devices."""
        found = next((each for each in host.found if each.name == name), None)
        return None if found is None else replace(found, devices=())

    def configure_projects() -> None:
        find_python = partial(
            find_python_in,
            settings=host.settings,
            search_path=start.search_path,
            unreadable=user.why_unreadable,
            variables=variables,
        )
        in_projects.configure(find_python, without_devices("node"))

    own: list[ProjectSource] = []
    if settings.project.use_flake:
        from nsmd.environments.devshell.project_shells import DevShells  # noqa: PLC0415  # off mostly

        own.append(
            DevShells(
                settings.project.inherit_env.vars,
                lambda: without_devices("bash"),
                state=os.path.join(state, "devshells"),
                nix=nix,
                nursery=upkeep,
            )
        )
    agreed_path = os.path.join(state, "project-environments.json")
    agreements = await trio.to_thread.run_sync(load_agreements, agreed_path)
    in_projects = ProjectEnvironmentManager(agreed_path, agreements, upkeep)
    configure_projects()
    catalog = Catalog(host.found, *own, in_projects, equip=devices.equip)

    def host_changed() -> None:
        catalog.put(EnvironmentSource(rank=Rank.HOST), host.found)
        configure_projects()

    host.changed = host_changed
    async with open_builder(
        nix,
        _installation(start, upstream),
        catalog,
        os.path.join(state, "environments"),
        defaults=settings.defaults,
        configured=settings.environments,
        owners=trusted_owners(),
        timeout_s=settings.nix.build_timeout_seconds,
    ) as builder:
        discovery = ArtifactDiscovery(
            watching,
            catalog,
            settings.defaults,
            owners=trusted_owners(),
            home=paths.home(),
            no_way=user.why_no_way,
        )
        await discovery.begin(start.sources, os.path.join(paths.config_dir(), "sandboxes"))
        devices.changed = catalog.equip_again
        devices.watch(watching)
        search = EnvironmentSearch(
            (host.search_again, discovery.search_again, devices.search_again),
            (discovery.opened, builder.opened),
        )
        yield catalog, search, builder, host, in_projects


def _installation(start: Startup, upstream: Upstream) -> PackageEnvironments:
    return PackageEnvironments(
        store=os.path.join(paths.data_dir(), "envs"),
        lock_directories=(
            os.path.join(paths.config_dir(), "locks"),
            os.path.join(paths.data_dir(), "locks"),
        ),
        search_path=start.search_path,
        home=paths.home(),
        launcher=start.jails,
        variables=os.environ,
        hosts=start.settings.packages.hosts,
        timeout_s=start.settings.packages.build_timeout_seconds,
        upstream=upstream,
    )
