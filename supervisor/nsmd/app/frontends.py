"""Front ends: connections over the user's own socket or that of a box."""

from __future__ import annotations

import os
from functools import partial

import trio

from nsm import paths
from nsm.wire.operation import Right
from nsmd.boxes import ServeConnection
from nsmd.control.call import Services
from nsmd.control.server import Access, ControlServer
from nsmd.host.descriptors import Quota
from nsmd.http.held_port import HeldPort
from nsmd.http.service import HttpService
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.model.limits import ClientLimits

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
        http: serves clients over HTTP, if that is configured.
    """

    def __init__(self, services: Services, max_connections: int, port: HeldPort) -> None:
        self._services = services
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
        return ControlServer(access, self._services, self._attach, quotas).handle

    async def load(self) -> None:
        """Load the modules that take long to load, once everything else is up."""
        await self._endpoint.run()

    async def _loaded(self) -> object:
        """Wait until models can be served: a call that one repeats may belong to any session."""
        await self._services.run_service.session_manager.wait_found()
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
        services = self._services
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
