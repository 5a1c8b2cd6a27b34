"""The control server over socket pairs, and a client that speaks frame by frame."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from fakes import BASH, BROKEN, PYTHON, echo, launching, no_usage
from nsm.wire.messages import (
    CONNECTION_ID,
    Cancel,
    ClientConnection,
    Event,
    Failure,
    Hello,
    Request,
    Result,
)
from nsm.wire.operation import Right
from nsmd.audit import Journal
from nsmd.boxes import BoxManager
from nsmd.bridge.bridge import BridgePaths, BridgeService
from nsmd.bridge.ledger import Ledger
from nsmd.config.reload import Reconfiguration
from nsmd.control.call import ALL_RIGHTS, Services
from nsmd.control.server import Access, ControlServer
from nsmd.environments.builds.builder import Builder, open_builder
from nsmd.environments.catalog import Catalog
from nsmd.environments.nix.program import NixFinder
from nsmd.environments.project.environment_manager import ProjectEnvironmentManager
from nsmd.fdstore.store import NoStore
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import SourceWatcher
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import SessionManager
from nsmd.model.lifecycle import Shutdown
from nsmd.model.limits import ClientLimits
from nsmd.model.settings import Defaults, PoolSettings, SessionSettings, Settings
from nsmd.network.secrets.service import SecretService
from nsmd.ports.port_manager import PortManager
from nsmd.restart.drain import Draining
from nsmd.telemetry import Telemetry
from nsmd.telemetry.import_times import ImportTimes
from package_world import installation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fakes import Behaviour, FakeLauncher
    from nsmd.model.values import Environment

MAX_FILE_BYTES = 1024 * 1024

Answer = Result | Failure | Event | Hello


class Peer:
    """A client that speaks frame by frame."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self.connection = ClientConnection()
        self.events: list[Event] = []

    async def hello(self, *rights: Right, scope: str = "here") -> Hello:
        await self.send(Hello(name="test", program_version="0", scope=scope, rights=rights))
        answer = await self.next()
        assert isinstance(answer, Hello)
        return answer

    async def send(self, message: Hello | Request | Cancel) -> None:
        await self.stream.send_all(self.connection.send(message))

    async def start(self, op: str, **args: Any) -> int:
        id_ = self.connection.new_id()
        await self.send(Request(id_, op, args))
        return id_

    async def next(self) -> Answer:
        while True:
            message = self.connection.next_message()
            if message is not None:
                return message
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError
            self.connection.receive_data(data)

    async def answer(self, id_: int) -> dict[str, Any]:
        """The result of a request; its events are kept, its error is raised."""
        while True:
            message = await self.next()
            match message:
                case Event():
                    self.events.append(message)
                case Result(id=answered, result=result):
                    assert answered == id_
                    return result
                case Failure(id=answered, error=error):
                    assert answered in (id_, CONNECTION_ID)
                    raise error
                case _:
                    pytest.fail(f"unexpected {message!r}")

    async def next_result(self) -> dict[str, Any]:
        """The result of whichever request is answered next."""
        message = await self.next()
        assert isinstance(message, Result)
        return message.result

    async def next_event(self) -> dict[str, Any]:
        """Return the content of the next message, which must be an event."""
        message = await self.next()
        assert isinstance(message, Event)
        return message.data

    async def call(self, op: str, **args: Any) -> dict[str, Any]:
        return await self.answer(await self.start(op, **args))


class Bench:
    def __init__(
        self,
        run_service: RunService,
        builder: Builder,
        launcher: FakeLauncher,
        nursery: trio.Nursery,
        ending: Shutdown,
    ) -> None:
        self.run_service = run_service
        self.builder = builder
        self.launcher = launcher
        self.project_environments = ProjectEnvironmentManager("/nowhere/x", [], nursery)
        self.uid = os.getuid()
        self.attached: list[bytes] = []
        self.scopes: list[tuple[str | None, bool]] = []
        self.ends: list[socket.socket] = []
        self._nursery = nursery
        self.wanted: tuple[Settings | None, list[str]] = (Settings(), [])
        self.configuration = Reconfiguration(
            Settings(),
            load=lambda: self.wanted,
            find_environments=lambda _: [PYTHON, BASH, BROKEN],
            apply=self._apply,
            events=run_service.events,
        )
        self.ending = ending
        self.draining = Draining(run_service.events, run_service.unfinished, ending, nursery)
        self.telemetry = Telemetry(run_service)
        self.import_times = ImportTimes("/nowhere/imports.json")
        self.boxes = BoxManager(
            partial(run_service.check_project, point=None, mode=None),
            gateway=run_service.session_manager.gateway,
            store=NoStore(),
            events=run_service.events,
        )
        self.ports = PortManager(store=NoStore(), events=run_service.events)
        self.bridge = BridgeService(
            BridgePaths(definitions="/nowhere/tools", ledger="/nowhere/audit.log", variables={}),
            SourceWatcher(nursery),
            Ledger(Journal("/nowhere/audit.log", max_mb=1, keep=None)),
            nursery,
            ending=ending,
            events=run_service.events,
            output_bytes=lambda: 40_000,
        )
        self.server = self.make_server(ALL_RIGHTS, os.getuid())

    async def _apply(self, settings: Settings, _environments: Sequence[Environment]) -> None:
        self.run_service.configure(settings)

    def make_server(
        self,
        rights: frozenset[Right],
        uid: int,
        scope: str | None = None,
        programs: tuple[str, ...] = (),
    ) -> ControlServer:
        self.services = Services(
            limits={"memory": "watchdog", "processes": "rlimit", "cpu": "none", "why": "a test"},
            run_service=self.run_service,
            builder=self.builder,
            project_environments=self.project_environments,
            socket_path="/run/nsm/control.sock",
            pid=7,
            jail={"kind": "fake"},
            import_times=self.import_times,
            started_s=trio.current_time(),
            save_all=trio.lowlevel.checkpoint,
            ending=self.ending,
            draining=self.draining,
            clients=lambda: self.server.connections,
            max_file_bytes=MAX_FILE_BYTES,
            configuration=self.configuration,
            boxes=self.boxes,
            ports=self.ports,
            secrets=SecretService(store=NoStore(), events=self.run_service.events),
            bridge=self.bridge,
            events=self.run_service.events,
            telemetry=self.telemetry,
        )
        client_limits = None if scope is None else ClientLimits(scope=scope, programs=programs)
        access = Access(uid=uid, rights=rights, client_limits=client_limits)
        return ControlServer(access, self.services, self._attach)

    def raw(self, server: ControlServer | None = None) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.ends.append(ours)
        theirs.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        self._nursery.start_soon((server or self.server).handle, stream)
        return ours

    async def connect(self, server: ControlServer | None = None) -> Peer:
        peer = Peer(self.raw(server))
        await peer.hello()
        return peer

    async def _attach(
        self,
        stream: trio.abc.HalfCloseableStream,
        first_bytes: bytes,
        *,
        peer: tuple[int, int],
        client_limits: ClientLimits | None,
        confined: bool,
    ) -> None:
        self.attached.append(first_bytes)
        self.scopes.append((None if client_limits is None else client_limits.scope, confined))
        del peer


@asynccontextmanager
async def bench(
    behave: Behaviour = echo,
    *,
    idle_timeout_s: float = 86400,
    max_spares: int = 0,
    search_path: str = "",
    directory: str = "",
) -> AsyncGenerator[Bench]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as own:
        place = directory or f"{own}/environments"
        async with _bench(behave, idle_timeout_s, max_spares, search_path, place) as it:
            yield it


@asynccontextmanager
async def _bench(
    behave: Behaviour, idle_timeout_s: float, max_spares: int, search_path: str, directory: str
) -> AsyncGenerator[Bench]:
    catalog = Catalog([PYTHON, BASH, BROKEN])
    ending = Shutdown()
    async with (
        launching(behave) as launcher,
        trio.open_nursery() as sessions,
        trio.open_nursery() as nursery,
        open_builder(
            NixFinder(search_path, {}, "/nonexistent"),
            installation(Path(directory).parent),
            catalog,
            directory,
            defaults=Defaults(),
            configured={},
            owners=trusted_owners(),
            timeout_s=60,
        ) as builder,
    ):
        settings = Settings(
            pool=PoolSettings(max_spares=max_spares),
            session=SessionSettings(idle_timeout_seconds=idle_timeout_s),
        )
        session_manager = SessionManager(settings, launcher, sessions=sessions, upkeep=nursery)
        run_service = RunService(
            settings, catalog, session_manager, home="/home/user", measure=no_usage, ending=ending
        )
        it = Bench(run_service, builder, launcher, nursery, ending)
        yield it
        session_manager.close()
        nursery.cancel_scope.cancel()
        for end in it.ends:
            end.close()
