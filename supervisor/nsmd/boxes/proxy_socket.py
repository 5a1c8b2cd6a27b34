"""How a box passes the socket of its proxy: one connection, one descriptor, one line back.

Whoever starts in the box makes the socket in the box's own network and passes it out before it
becomes the agent, so that no process of ours has to stay there. Anybody in the box may connect,
too, at any time; what they can pass is served by the same list.
"""

from __future__ import annotations

import array
import os
import socket

import trio

from nsmd.network import Listener, ListenerError

TIMEOUT_S = 10.0
"""For the other side, which sends what it has at once."""

ACCEPTED = b"ok\n"

_INT = array.array("i").itemsize


async def receive(connection: trio.SocketStream) -> Listener | None:
    """The socket that comes on a connection, which is told where it is none; None then.

    Raises:
        trio.BrokenResourceError: the other side is gone.
    """
    with trio.move_on_after(TIMEOUT_S):
        try:
            descriptor = await _descriptor(connection.socket)
            if descriptor is None:
                raise ListenerError("did not come along")  # noqa: TRY301
            return Listener(descriptor)
        except ListenerError as error:
            await connection.send_all(f"The socket {error}.\n".encode())
        except OSError as error:
            raise trio.BrokenResourceError from error
    return None


async def _descriptor(connection: trio.socket.SocketType) -> int | None:
    # One may come; room for more would let somebody fill our table.
    _, ancillary, _, _ = await connection.recvmsg(
        1, socket.CMSG_SPACE(_INT), socket.MSG_CMSG_CLOEXEC
    )
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT])
    for extra in found[1:]:
        os.close(extra)
    return found[0] if found else None
