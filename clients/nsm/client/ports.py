"""Ports of sessions, for programs: ``client.ports`` of either client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.hosts import ports as far_ports
from nsm.wire.ports import port_close, port_open, ports

if TYPE_CHECKING:
    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.wire.ports import PortRow

UNIX = "unix:"


class Ports:
    """Ports of sessions that are open on the host. Blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def open(
        self, target: str, port: int, *, listen: str | None = None, public: bool = False
    ) -> PortRow:
        """Open a port of a live session on the host, until the session ends or it is closed.

        Every user of this machine, and every web page in a browser on it, can connect to a TCP
        port. A Unix socket is for its user alone.

        Args:
            target: id, name or ``scope/name`` of the session.
            port: port in the session; a program may listen there later.
            listen: ``HOST:PORT`` of the loopback, or ``unix:PATH``; port 0 is any free one. The
                default is ``127.0.0.1:0``.
            public: permit an address that other machines reach.

        Returns:
            The open port; its `address` says where to connect.

        Raises:
            BadRequestError: nobody can listen there.
        """
        if (far := self._client.far_socket) is not None:
            return self._client.carry_out(far_ports.open_port(far, target, port, _absolute(listen)))
        address = _absolute(listen) or ""
        return self._client.ask(port_open(target, port, listen=address, public=public))

    def close(self, target: str, port: int) -> None:
        """Close a port of a session. Connections that are open go on.

        Raises:
            BadRequestError: it is not open.
        """
        if (far := self._client.far_socket) is not None:
            self._client.carry_out(far_ports.close_port(far, target, port))
        else:
            self._client.ask(port_close(target, port))

    def list(self, target: str | None = None) -> list[PortRow]:
        """List the open ports of a session, or of all."""
        if (far := self._client.far_socket) is not None:
            return self._client.carry_out(far_ports.list_ports(far, target))
        return self._client.ask(ports(target))


class AsyncPorts:
    """The same, on trio."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def open(
        self, target: str, port: int, *, listen: str | None = None, public: bool = False
    ) -> PortRow:
        """Open a port of a session, as `Ports.open`."""
        if (far := self._client.far_socket) is not None:
            steps = far_ports.open_port(far, target, port, _absolute(listen))
            return await self._client.carry_out(steps)
        address = _absolute(listen) or ""
        return await self._client.ask(port_open(target, port, listen=address, public=public))

    async def close(self, target: str, port: int) -> None:
        """Close a port of a session, as `Ports.close`."""
        if (far := self._client.far_socket) is not None:
            await self._client.carry_out(far_ports.close_port(far, target, port))
        else:
            await self._client.ask(port_close(target, port))

    async def list(self, target: str | None = None) -> list[PortRow]:
        """List the open ports, as `Ports.list`."""
        if (far := self._client.far_socket) is not None:
            return await self._client.carry_out(far_ports.list_ports(far, target))
        return await self._client.ask(ports(target))


def _absolute(listen: str | None) -> str | None:
    """An address for the supervisor, which has another working directory."""
    if listen is None or not listen.startswith(UNIX) or listen == UNIX:
        return listen
    return UNIX + os.path.abspath(listen.removeprefix(UNIX))
