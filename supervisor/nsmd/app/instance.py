"""This supervisor's lock, its listening socket, and the descriptors that outlived an
earlier one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection
from contextlib import ExitStack

from nsm import paths
from nsm.dataclass import dataclass
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
        lock: descriptor.
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
