"""The connection that a socket of a host belongs to."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nsm.hosts.address import RemoteHost
from nsm.hosts.place import FACTS
from nsm.hosts.ssh import SshConnection
from nsm.wire.decode import decode
from nsm.wire.errors import HostError, HostUnreachableError

if TYPE_CHECKING:
    from collections.abc import Generator


def host_of(path: str) -> RemoteHost:
    """The host that a socket leads to.

    Raises:
        HostError: nobody can tell.
    """
    place = os.path.join(os.path.dirname(path), FACTS)
    try:
        with open(place, encoding="utf-8") as file:
            return decode(RemoteHost, json.load(file))
    except (OSError, ValueError) as error:
        raise HostError(
            f"{place} cannot be read: {error}", hint="Remove it and try again."
        ) from error


def connection_of(path: str) -> SshConnection:
    """The connection to the host that a socket leads to; it need not be up.

    Raises:
        HostError: nobody can tell which host that is.
    """
    return SshConnection(host_of(path), os.path.dirname(path))


def remote_socket(path: str) -> str:
    """The path there of the socket that one of ours leads to.

    Raises:
        HostUnreachableError: it leads nowhere.
    """
    try:
        with open(forwarded_file(path), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise HostUnreachableError(
            "there is no connection to the host", hint="Try again."
        ) from None


def read_facts(path: str) -> dict[str, Any] | None:
    """Facts that the host of a socket last told of itself; None if it never did."""
    try:
        with open(facts_file(path), encoding="utf-8") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return None


def facts_file(path: str) -> str:
    """The file that has these facts."""
    return f"{path}.facts"


def forwarded_file(path: str) -> str:
    """The file that has the path there of the socket that one of ours leads to."""
    return f"{path}.there"


@contextmanager
def locked(path: str, name: str = "start.lock") -> Generator[None]:
    """Keep other programs from changing the connection that a socket belongs to, or what `name` is
    for.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(os.path.join(os.path.dirname(path), name), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
