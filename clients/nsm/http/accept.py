"""New connections of a listening socket, even while there are no descriptors for them."""

from __future__ import annotations

import errno
import logging
import socket

import trio

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause after a connection could not be accepted because descriptors ran out."""

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept(listener: socket.socket) -> trio.SocketStream:
    """Wait for the next connection, even while there are no descriptors for it.

    Args:
        listener: non-blocking.
    """
    waiting = trio.socket.from_stdlib_socket(listener)
    while True:
        try:
            accepted, _ = await waiting.accept()
            return trio.SocketStream(accepted)
        except OSError as error:
            if error.errno in _SHORT_OF:
                log.warning("a client over HTTP has to wait: %s", error.strerror)
                await trio.sleep(PAUSE_S)
