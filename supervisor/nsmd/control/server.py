"""The control socket: checks who connects, and serves each connection by its protocol.

Each connection is one task with a nursery of its own. A request that raises is answered with
`internal`; a connection that raises ends alone. Both are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import ForbiddenError, OverloadedError
from nsm.wire.messages import sniff
from nsm.wire.operation import Right
from nsmd.control.call import ALL_RIGHTS, Services
from nsmd.control.connection import (
    CHUNK_BYTES,
    HELLO_TIMEOUT_S,
    farewell,
    peer_of,
    serve_connection,
)
from nsmd.control.outgoing import CountedStream
from nsmd.host import logs
from nsmd.host.descriptors import MAX_CONNECTIONS, Quota, draw
from nsmd.model.limits import ClientLimits

log = logging.getLogger(__name__)


class ServeAttachment(Protocol):
    """Server of a connection that begins as an MCP attachment."""

    async def __call__(
        self,
        stream: trio.abc.HalfCloseableStream,
        first_bytes: bytes,
        *,
        peer: tuple[int, int],
        client_limits: ClientLimits | None,
        confined: bool,
    ) -> None:
        """Serve it until it is gone.

        Args:
            confined: it may only run code, within those limits.
        """
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """Rights of a listener's clients: who may connect, and which operations they may use.

    Attributes:
        uid: the only user, besides root, who may connect.

    Raises:
        ValueError: connections that may only run code could choose the scope of the sessions.
    """

    uid: int
    rights: frozenset[Right] = ALL_RIGHTS
    client_limits: ClientLimits | None = None

    def __post_init__(self) -> None:
        if self.confined and self.client_limits is None:
            raise ValueError("a listener whose clients may only run code needs a boundary")

    @property
    def confined(self) -> bool:
        """True if connections know and reach nothing beyond their scope."""
        return not self.rights & {"read", "manage"}


class ControlServer:
    """Server of one listening socket.

    Args:
        quotas: limits of connections at once, for this socket alone and together with others.
            Further ones get an error and are closed.
    """

    def __init__(
        self,
        access: Access,
        services: Services,
        serve_attachment: ServeAttachment,
        quotas: Sequence[Quota] = (),
    ) -> None:
        self._access = access
        self._services = services
        self._serve_attachment = serve_attachment
        self._quotas = quotas or (Quota(MAX_CONNECTIONS, "The supervisor has"),)

    @property
    def connections(self) -> int:
        """Number of connected clients, including those of other sockets with the same
        first quota.
        """
        return self._quotas[0].taken

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection from accept to close; raises only cancellation."""
        # If there are too many connections for the first quota, the next quotas are not asked.
        drawn, full = draw(self._quotas)
        if self._access.client_limits is not None:
            logs.about(box=self._access.client_limits.scope)
        try:
            async with stream:
                await self._admit(stream, full)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a client went away")
        except Exception:  # the fault of one connection must not end the others
            log.exception("a connection failed")
        finally:
            for quota in drawn:
                quota.taken -= 1

    async def _admit(self, stream: trio.SocketStream, full: Quota | None) -> None:
        peer = _, uid = peer_of(stream.socket.fileno())
        if uid not in (self._access.uid, 0):
            log.warning("refused a connection of uid %d", uid)
            await farewell(stream, ForbiddenError("This supervisor belongs to another user."))
            return
        if full is not None:
            await farewell(
                stream,
                OverloadedError(
                    f"{full.whose} {full.most} connections already.",
                    hint="Close some clients and try again.",
                ),
            )
            return
        first = b""
        with trio.move_on_after(HELLO_TIMEOUT_S):
            first = await stream.receive_some(CHUNK_BYTES)
        if not first:
            return
        access = self._access
        if sniff(first) == "attachment" and "run" in access.rights:
            await self._attach(stream, first, peer)
        else:
            await serve_connection(
                stream, first, access.rights, self._services, client_limits=access.client_limits
            )

    async def _attach(self, stream: trio.SocketStream, first: bytes, peer: tuple[int, int]) -> None:
        access, services = self._access, self._services
        counted = CountedStream(stream, services.telemetry.traffic["mcp"], len(first))
        services.events.publish("client_came", protocol="mcp")
        try:
            await self._serve_attachment(
                counted,
                first,
                peer=peer,
                client_limits=access.client_limits,
                confined=access.confined,
            )
        finally:
            services.events.publish("client_left", protocol="mcp")
