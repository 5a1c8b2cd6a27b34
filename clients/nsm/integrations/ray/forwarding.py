# pyright: basic, reportMissingImports=false
"""Sockets on this machine that lead to supervisors of other nodes, through calls of their actors.

So all of nsm's clients work with a session of another node, and no node opens a port.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from nsm.integrations.ray.calls import asked
from nsm.integrations.ray.node import READ_BYTES
from nsm.wire.errors import NsmError, SessionEndedError
from nsm.wire.messages import CONNECTION_ID, Failure, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lost(node_id: str) -> SessionEndedError:
    """The error of calls in sessions of a node that has gone."""
    return SessionEndedError(
        f"the node {node_id[:12]} of the Ray cluster has gone, and this session with it",
        hint="Make another sandbox, or restore a save of this one.",
        data={"node": node_id, "lost": True},
    )


class ForwardedSocket:
    """A socket that leads to the supervisor of one node.

    Once the node has gone, a client that connects is told so.

    Args:
        actor: handle of the node's `NodeActor`.
        path: of the socket, in a directory of mode 0700.
        on_lost: called if a connection finds that the actor has gone.
    """

    def __init__(self, actor: Any, node_id: str, path: str, on_lost: Callable[[], object]) -> None:
        self.path = path
        self._actor = actor
        self._node_id = node_id
        self._on_lost = on_lost
        self._lost = False
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        os.chmod(self.path, 0o600)

    def lose(self) -> None:
        """End all connections: the node has gone."""
        self._lost = True
        for writer in self._connections:
            writer.close()

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        self._server.close()
        self.lose()
        await asyncio.sleep(0)
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            if self._lost:
                await self._refuse(reader, writer, lost(self._node_id))
                return
            try:
                tunnel = await asked(self._actor.open_tunnel.remote())
            except ActorUnavailableError:
                await asked(self._actor.ready.remote())
                return  # it is there: the client connects again
            down = asyncio.create_task(self._pass_down(tunnel, writer))
            try:
                while data := await reader.read(READ_BYTES):
                    # One after the other: Ray may begin the calls of an actor in another order.
                    await self._actor.send.remote(tunnel, data)
            finally:
                await self._actor.close_tunnel.remote(tunnel)
                await down
        except NsmError as error:  # the supervisor cannot be started
            await self._refuse(reader, writer, error)
        except ActorDiedError:
            self._on_lost()
            await self._refuse(reader, writer, lost(self._node_id))
        except (RayError, ConnectionError, KeyError):
            pass  # the client sees the end of its connection, and connects again
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _pass_down(self, tunnel: int, writer: asyncio.StreamWriter) -> None:
        with suppress(RayError, ConnectionError, KeyError):
            while data := await self._actor.receive.remote(tunnel):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, error: NsmError
    ) -> None:
        """Answer a client's first message by an error."""
        with suppress(ConnectionError):
            protocol = ServerConnection()
            while protocol.next_message() is None:
                data = await reader.read(READ_BYTES)
                if not data:
                    return
                protocol.receive_data(data)
            writer.write(protocol.send(Failure(id=CONNECTION_ID, error=error)))
            await writer.drain()
