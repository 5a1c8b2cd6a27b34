"""Whoever connects, over the user's own socket or that of a box, is served here."""

from __future__ import annotations

import os

import trio

from nsmd.boundary import Boundary
from nsmd.boxes import Serve
from nsmd.control.call import Right, Services
from nsmd.control.server import Access, ControlServer
from nsmd.mcp.attachment import serve_attachment
from nsmd.mcp.load import EndpointLoader

BOX_CONNECTIONS = 32
"""Of the programs in one box, at once."""


class Reception:
    """See the module.

    Args:
        services: what clients' requests work on.
        max_connections: over the user's own socket, at once.
    """

    def __init__(self, services: Services, max_connections: int) -> None:
        self._services = services
        self._endpoint = EndpointLoader()
        self._server = ControlServer(
            Access(uid=os.geteuid()), services, self._attach, max_connections=max_connections
        )

    @property
    def connections(self) -> int:
        """How many there are over the user's own socket."""
        return self._server.connections

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one of them."""
        await self._server.handle(stream)

    def of_box(self, boundary: Boundary) -> Serve:
        """What serves the socket of a box, whose programs may run code within that boundary."""
        rights: set[Right] = {"run"}
        if boundary.programs:
            rights.add("bridge")
        access = Access(uid=os.geteuid(), rights=frozenset(rights), boundary=boundary)
        return ControlServer(access, self._services, self._attach, BOX_CONNECTIONS).handle

    async def load(self) -> None:
        """Load what takes long to load, once everything else is there."""
        await self._endpoint.run()

    async def _attach(
        self,
        stream: trio.abc.HalfCloseableStream,
        first_bytes: bytes,
        *,
        peer: tuple[int, int],
        boundary: Boundary | None,
        confined: bool,
    ) -> None:
        services = self._services
        await serve_attachment(
            stream,
            first_bytes,
            services.registry,
            endpoint=self._endpoint,
            ending=lambda: services.ending.how == "end",
            max_result_chars=services.configuration.settings.mcp.max_result_chars,
            boundary=boundary,
            confined=confined,
            peer=peer,
        )
