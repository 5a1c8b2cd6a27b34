"""Answers of a supervisor that cannot start, while systemd listens for it: clients learn the
reason.

If nobody accepted a connection, systemd would start the next supervisor at once, which would fail
in the same way. And if sessions wait for a supervisor, a mistake in `config.toml` must not end
them: the last valid configuration applies until the file is corrected.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import socket
import time
from contextlib import suppress

from nsm.wire.connection import ServerConnection, sniff
from nsm.wire.errors import NsmError, StartFailedError
from nsm.wire.messages import CONNECTION_ID, Failure

log = logging.getLogger(__name__)

WORDS_TIMEOUT_S = 1.0
"""Time for clients to say which protocol they speak. They do so at once."""

_CHUNK_BYTES = 65536

LAST_GOOD = "config.last.toml"
"""Name, in the state directory, of the last configuration with which a supervisor started."""


def refuse_waiting(listener: socket.socket, why: str) -> int:
    """Answer all waiting clients, each in its own protocol.

    Args:
        listener: listening, non-blocking; the caller closes it.
        why: what is wrong and what to do, for people.

    Returns:
        How many there were.
    """
    error = StartFailedError(
        f"The supervisor cannot start: {why}", hint="Correct that; the next call starts it again."
    )
    count = 0
    with selectors.DefaultSelector() as waiting:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            connection.setblocking(False)
            waiting.register(connection, selectors.EVENT_READ)
            count += 1
        deadline = time.monotonic() + WORDS_TIMEOUT_S
        while waiting.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                _refuse(key.fileobj, error)
        for key in list(waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return count


def _refuse(connection: socket.socket, error: NsmError) -> None:
    from nsmd.mcp.attachment import refused  # noqa: PLC0415  # rarely needed

    with connection, suppress(OSError):
        first = connection.recv(_CHUNK_BYTES)
        if first and sniff(first) == "attachment":
            connection.send(refused(error))
        elif first:
            connection.send(ServerConnection().send(Failure(CONNECTION_ID, error)))
        with suppress(BlockingIOError):
            # the peer would see an error if something stayed unread
            while connection.recv(_CHUNK_BYTES):
                pass


def remember_config(path: str, state: str) -> None:
    """Remember that a supervisor starts with this configuration.

    Args:
        path: path of the file. If it does not exist, none is remembered.
        state: state directory. If it cannot be written, nothing is remembered.
    """
    kept = os.path.join(state, LAST_GOOD)
    with suppress(OSError):
        if not os.path.exists(path):
            os.unlink(kept)
            return
        os.makedirs(state, mode=0o700, exist_ok=True)
        shutil.copyfile(path, f"{kept}.new")
        os.replace(f"{kept}.new", kept)


def last_good(state: str) -> str:
    """Path of the remembered configuration; there may be no such file."""
    return os.path.join(state, LAST_GOOD)
