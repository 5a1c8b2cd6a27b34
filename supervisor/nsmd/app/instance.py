"""The supervisor's place in the file system, and what was given to it there: its lock, the socket
that listens, and descriptors that outlived an earlier supervisor."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

from nsm import paths
from nsmd.app import service_manager
from nsmd.fdstore.handover import HandedOver, take_over
from nsmd.fdstore.store import Kept
from nsmd.host.paths import trusted_owners
from nsmd.host.unix_listener import (
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Instance: the lock, the socket and the descriptors of this supervisor.

    Attributes:
        own: tells the socket's file, if it is to be removed at the end.
        lock: descriptor.
        kept: by the service manager, for an earlier supervisor.
        handed: by the program that this process was before; None where it was none.
    """

    listener: socket.socket
    own: Identity | None
    lock: int
    kept: Kept
    handed: HandedOver | None


def open_instance(stack: ExitStack) -> Instance:
    """The lock, and a socket: of the program before this one, of the service manager, which keeps
    it for the next supervisor, or one of our own.

    Raises:
        PlaceError, ServiceManagerError: there can be none.
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
    """
    Raises:
        PlaceError: others may reach it.
    """
    path = listener.getsockname()
    check_passed(path, owners)
    listener.listen(BACKLOG)  # again, which only sets how many may wait
    if path != expected:
        log.warning(
            "listening on %s as the service manager says; clients look for %s, unless NSM_SOCKET "
            "says otherwise",
            path,
            expected,
        )
