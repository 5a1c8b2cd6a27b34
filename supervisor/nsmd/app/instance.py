"""Lock of this supervisor, its listening socket, and the descriptors that outlived an earlier one.

Answers of a supervisor that cannot start, while systemd listens for it: clients learn the
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
from collections.abc import Collection
from contextlib import ExitStack, suppress

from nsm import paths
from nsm.dataclass import dataclass
from nsm.wire.connection import ServerConnection, sniff
from nsm.wire.errors import NsmError, StartFailedError
from nsm.wire.messages import CONNECTION_ID, Failure
from nsmd.app import service_manager
from nsmd.fdstore.handover import HandedOver, take_over
from nsmd.fdstore.store import Kept
from nsmd.host.listeners import (
    BACKLOG,
    LOCK,
    Identity,
    check_passed,
    check_way,
    hold_lock,
    identity_of,
    listening_socket,
    removed_at_the_end,
)
from nsmd.host.paths import trusted_owners

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The lock, the socket and the descriptors of this supervisor.

    Attributes:
        own: identity of the socket's file, if this supervisor removes it at the end.
        kept: descriptors that the service manager kept for an earlier supervisor.
        handed: descriptors from the program that this process was before a reload; else None.
    """

    listener: socket.socket
    own: Identity | None
    lock: int
    kept: Kept
    handed: HandedOver | None


def open_instance(stack: ExitStack) -> Instance:
    """Take the lock, and get a socket: from the program before a reload, from the service manager
    (which keeps it for the next supervisor), or a new one.

    Raises:
        PlaceError, ServiceManagerError: no socket can be had.
    """
    runtime = paths.ensure_runtime_dir()
    handed = take_over(os.environ)
    lock = stack.enter_context(
        hold_lock(os.path.join(runtime, LOCK), handed.lock if handed else None)
    )
    passed = service_manager.take_passed(os.environ)
    expected = paths.socket_path()
    owners = trusted_owners()
    check_way(os.path.dirname(expected), owners)
    own = None
    if handed is not None:
        listener, own = socket.socket(fileno=handed.listener), handed.own
        listener.setblocking(False)
        stack.enter_context(listener)
        stack.enter_context(removed_at_the_end(listener.getsockname(), own))
    elif passed.listener is not None:
        listener = stack.enter_context(passed.listener)
        _check_passed(listener, expected, owners)
    else:
        listener = stack.enter_context(listening_socket(expected))
        own = identity_of(expected)
    return Instance(listener=listener, own=own, lock=lock, kept=passed.kept, handed=handed)


def _check_passed(listener: socket.socket, expected: str, owners: Collection[int]) -> None:
    """Check that only the owner can reach a passed socket.

    Raises:
        PlaceError: others may reach it.
    """
    path = listener.getsockname()
    check_passed(path, owners)
    listener.listen(BACKLOG)  # again: this only sets how many may wait
    if path != expected:
        log.warning(
            "listening on %s as the service manager says; clients look for %s, unless NSM_SOCKET "
            "says otherwise",
            path,
            expected,
        )


WORDS_TIMEOUT_S = 1.0
"""Time for clients to say which protocol they speak. They do so at once."""

_CHUNK_BYTES = 65536

LAST_GOOD = "config.last.toml"
"""Name, in the state directory, of the last configuration with which a supervisor started."""


def refuse_waiting(listener: socket.socket, why: str) -> int:
    """Answer all waiting clients, each in its own protocol.

    Args:
        listener: listening, non-blocking; the caller closes it.

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
