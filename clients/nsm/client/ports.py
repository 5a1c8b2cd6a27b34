"""Ports of sessions, for programs: ``client.ports`` of either client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask, method
from nsm.hosts import ports as far_ports
from nsm.wire.host import port_close, port_open, ports

if TYPE_CHECKING:
    from nsm.client.api import ClientMethods
    from nsm.client.steps import Steps
    from nsm.wire.host import PortRow

UNIX = "unix:"


class PortMethods(Calls):
    """Ports of sessions that are open on the host."""

    _client: ClientMethods

    @method
    def open(
        self, target: str, port: int, *, listen: str | None = None, public: bool = False
    ) -> Steps[PortRow]:
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
        listen = _absolute(listen)
        if (far := self._client.far_socket) is not None:
            return (yield from far_ports.open_port(far, target, port, listen))
        return (yield from ask(port_open(target, port, listen=listen or "", public=public)))

    @method
    def close(self, target: str, port: int) -> Steps[None]:
        """Close a port of a session. Connections that are open go on.

        Raises:
            BadRequestError: it is not open.
        """
        if (far := self._client.far_socket) is not None:
            yield from far_ports.close_port(far, target, port)
        else:
            yield from ask(port_close(target, port))

    @method
    def list(self, target: str | None = None) -> Steps[list[PortRow]]:
        """List the open ports of a session, or of all."""
        if (far := self._client.far_socket) is not None:
            return (yield from far_ports.list_ports(far, target))
        return (yield from ask(ports(target)))


class Ports(PortMethods, BlockingPart):
    """``nsm.Client.ports``."""


class AsyncPorts(PortMethods, AsyncPart):
    """``nsm.AsyncClient.ports``."""


def _absolute(listen: str | None) -> str | None:
    """An address for the supervisor, which has another working directory."""
    if listen is None or not listen.startswith(UNIX) or listen == UNIX:
        return listen
    return UNIX + os.path.abspath(listen.removeprefix(UNIX))
