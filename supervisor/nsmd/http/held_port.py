"""The listening port, held from one supervisor to the next.

If another program could listen there while no supervisor does, the next client would show it the
token: a box with the host's network, or another user of the machine. So the socket is kept like
sessions, in the descriptor store, and connections that come meanwhile wait in it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

from nsm.http.listen_address import Port
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.listeners import tcp_listener

log = logging.getLogger(__name__)

NAME = "http-port"
"""Name in the store."""

BACKLOG = 128
"""Connections that the kernel holds while the supervisor is busy or away."""


class HeldPort:
    """Listening port, passed from one supervisor to the next.

    Args:
        kept: descriptors of an earlier supervisor; owned from now on.
    """

    def __init__(self, store: DescriptorStore, kept: Sequence[int] = ()) -> None:
        self._store = store
        self._earlier = list(_sockets(kept))
        self._kept = len(kept)
        self._held: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<HeldPort {self._held or 'of nothing'}>"

    def listen(self, port: Port) -> socket.socket:
        """Return a socket that listens there: that of the earlier supervisor, or a new one.

        Raises `OSError`.
        """
        self._held = next((each for each in self._earlier if _listens_at(each, port)), None)
        if self._held is None or self._kept > 1:
            # Not all kept sockets are wanted, and systemd would keep another one beside it.
            self._drop()
        try:
            if self._held is None:
                self._held = bound(port)
            self._store.keep(NAME, [self._held.fileno()])
            self._kept = 1
            return self._held.dup()
        except OSError:
            self.forget()
            raise

    def forget(self) -> None:
        """Release the port: nobody should listen any more."""
        self._drop()
        self.close()

    def close(self) -> None:
        """Close it, as the end of this process would: the kept copy stays."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        if self._held is not None:
            yield NAME, [self._held.fileno()]

    def _drop(self) -> None:
        """Remove the kept copies, and close all of the earlier supervisor's sockets that are not
        held.
        """
        if self._kept:
            self._store.drop(NAME)
            self._kept = 0
        for earlier in self._earlier:
            if earlier is not self._held:
                earlier.close()
        self._earlier = []


def _sockets(kept: Sequence[int]) -> Iterator[socket.socket]:
    """Yield the sockets among kept descriptors, and close anything else: that is no reason not to
    start.
    """
    for descriptor in kept:
        try:
            yield socket.socket(fileno=descriptor)
        except OSError as error:
            log.warning("what was kept as %s is no socket: %s", NAME, error.strerror)
            os.close(descriptor)


def bound(port: Port) -> socket.socket:
    """Make a socket that listens. Raises `OSError`."""
    return tcp_listener(port.host, port.number, BACKLOG)


def _listens_at(listener: socket.socket, port: Port) -> bool:
    """Return whether the listener is at the address where `bound` would listen."""
    with suppress(OSError):
        os.set_inheritable(listener.fileno(), False)
        listener.setblocking(False)
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        host, number = listener.getsockname()[:2]
        return host == port.host and port.number in (0, number)
    return False
