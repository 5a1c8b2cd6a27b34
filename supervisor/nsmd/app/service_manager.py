"""Exchange with a service manager: the descriptors that it passes, and messages to it.

It uses two small protocols of systemd, which other managers speak as well. By sd_listen_fds(3) the
manager passes the listening socket: the first client that connects starts the supervisor, and no
client waits for it to bind. By sd_notify(3) the supervisor says when it is ready. Neither needs a
library.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, MutableMapping
from itertools import zip_longest

from nsm.dataclass import dataclass, field
from nsmd.fdstore.store import KEPT_PREFIXES, Kept

log = logging.getLogger(__name__)

FIRST_FD = 3
"""SD_LISTEN_FDS_START: passed descriptors are numbered from here."""

LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ServiceManagerError(Exception):
    """A passed descriptor cannot be used; the message says why and what to change in the unit."""


@dataclass(frozen=True, slots=True)
class PassedDescriptors:
    """Descriptors that a service manager passed.

    Attributes:
        listener: a non-blocking socket that listens; None if there is none. The caller closes it.
    """

    listener: socket.socket | None = None
    kept: Kept = field(default_factory=dict[str, list[int]])


def take_passed(
    environment: MutableMapping[str, str], *, first_fd: int = FIRST_FD
) -> PassedDescriptors:
    """Take the listening socket that the service manager passed, if any, and the descriptors that
    it kept.

    The variables are removed, so that no program started later takes them for its own. No
    descriptor is inherited further.

    Raises:
        ServiceManagerError: apart from the kept descriptors, it passed something other than exactly
            one listening Unix stream socket with a path.
    """
    pid, _, count, names = (environment.pop(name, "") for name in LISTEN_VARIABLES)
    # If a shell or wrapper between the manager and us forked instead of replacing itself, it has
    # another pid: then the descriptors are not ours.
    if pid != str(os.getpid()) or count in ("", "0"):
        return PassedDescriptors()
    sockets: list[int] = []
    named: dict[int, str] = {}
    kept: dict[str, list[int]] = {}
    if count.isdigit():
        for fd, name in zip_longest(range(first_fd, first_fd + int(count)), names.split(":")):
            if fd is None:
                break
            if name and name.startswith(KEPT_PREFIXES):
                os.set_inheritable(fd, False)
                kept.setdefault(name, []).append(fd)
            else:
                sockets.append(fd)
                named |= {fd: name} if name else {}
        if not sockets:
            return PassedDescriptors(None, kept)
    serving = [fd for fd in sockets if len(sockets) > 1 and _serves(fd)]
    if len(serving) == 1 and len(named) == len(sockets):
        # A newer nsm kept the others: this one does not know their kind.
        for fd in set(sockets) - set(serving):
            os.set_inheritable(fd, False)
            kept.setdefault(named[fd], []).append(fd)
        sockets = serving
    if len(sockets) != 1:
        raise ServiceManagerError(
            f"The service manager passed {len(sockets) or count!r} sockets, nsm takes one. Leave "
            "one ListenStream= in nsm-supervisor.socket."
        )
    return PassedDescriptors(_listener(sockets[0]), kept)


def _serves(fd: int) -> bool:
    """Return whether a descriptor is a socket on which a supervisor can listen."""
    try:
        with socket.socket(fileno=os.dup(fd)) as passed:
            return _why_unusable(passed) is None
    except OSError:
        return False


def _listener(fd: int) -> socket.socket:
    """Check and return the passed socket.

    Raises:
        ServiceManagerError: it is no listening Unix stream socket with a path.
    """
    try:
        passed = socket.socket(fileno=fd)
    except OSError as error:
        raise ServiceManagerError(
            f"What the service manager passed as descriptor {fd} is not a socket "
            f"({error.strerror}). Start nsm-supervisor by its .socket unit, or without LISTEN_FDS."
        ) from error
    if reason := _why_unusable(passed):
        passed.close()
        raise ServiceManagerError(
            f"The socket that the service manager passed {reason}. nsm needs ListenStream= with an "
            "absolute path and Accept=no in nsm-supervisor.socket."
        )
    passed.set_inheritable(False)
    passed.setblocking(False)
    return passed


def notify(environment: Mapping[str, str], message: str) -> None:
    """Send the service manager a message, if it wants one; a failure is logged.

    Args:
        message: lines of assignments, such as ``READY=1`` (sd_notify(3)).
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return  # absent, or of a kind (vsock) that only works in virtual machines
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            # The manager may read it late; that must never block the event loop.
            notifier.setblocking(False)
            notifier.sendto(message.encode(), address)
    except OSError as error:
        log.warning("the message %r to the service manager failed: %s", message, error)


def _why_unusable(passed: socket.socket) -> str | None:
    if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
        return "is not a Unix stream socket"
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen"
    name = passed.getsockname()
    if not isinstance(name, str) or not os.path.isabs(name):
        return "has no path"
    return None
