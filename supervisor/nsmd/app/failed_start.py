"""A supervisor that cannot start, where systemd listens for it: who waits is told why.

A connection that nobody takes would have systemd start the next supervisor at once, which fails as
this one does. And where sessions wait for a supervisor, a mistake in `config.toml` must not be
their end: what held last holds on until it is mended.
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
"""For clients to say which protocol they speak: they do at once."""

_CHUNK_BYTES = 65536

LAST_GOOD = "config.last.toml"
"""Name, in the state directory, of the configuration that a supervisor has started with last."""


def refuse_waiting(listener: socket.socket, why: str) -> int:
    """Answer everybody who waits there, each in their own protocol.

    Args:
        listener: listening, non-blocking; the caller's.
        why: for people: what is wrong, and what to do.

    Returns:
        How many there were.
    """
    error = StartFailedError(
        f"The supervisor cannot start: {why}", hint="Mend that; the next call starts it again."
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
    from nsmd.mcp.attach import refused  # noqa: PLC0415  # rarely needed

    with connection, suppress(OSError):
        first = connection.recv(_CHUNK_BYTES)
        if first and sniff(first) == "attachment":
            connection.send(refused(error))
        elif first:
            connection.send(ServerConnection().send(Failure(CONNECTION_ID, error)))
        with suppress(BlockingIOError):
            while connection.recv(_CHUNK_BYTES):  # what is not read would be an error over there
                pass


def remember_config(path: str, state: str) -> None:
    """A supervisor starts with this configuration.

    Args:
        path: of the file, which may not exist: then there is none.
        state: our directory for such things; where it cannot be written, nothing is kept.
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
    """Where that configuration is; nothing is there if there was none."""
    return os.path.join(state, LAST_GOOD)
