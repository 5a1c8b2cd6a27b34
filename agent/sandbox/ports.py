"""Connections to ports of the session's own loopback, made for a relay outside of the session."""

from __future__ import annotations

import errno
import select
import socket
import time

from sandbox.framing import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from sandbox.session import SharedSession


LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Servers that listen on "localhost" may have the second one only."""

MAX_CONNECTING = 512
"""Connections that may be under way at once; the relay asks for fewer."""

CONNECT_S = 10.0
"""Time for a program to accept a connection, or for the kernel to do that in its place."""

MAX_CHANNELS = 8
"""A relay whose ports were closed stays for its connections, and another one may follow it."""

REQUEST_BYTES = 10
"""A request of the relay: a number of its own (8 bytes) and the port (2)."""


class PortConnector:
    """Channels of relays, and the connections that are being made for them.

    A socket stays in the network namespace where it was made. So the relay gets sockets of this
    one, and this session none of the host's.
    """

    def __init__(self, session: SharedSession) -> None:
        self._session = session
        self._channels: list[socket.socket] = []
        self._connecting: dict[socket.socket, socket.socket] = {}

    def open(self, message: Mapping[str, Any]) -> None:
        """Make a channel for a new relay."""
        if not self._session.channel.passes_descriptors:
            raise RequestError("ports needs a channel that is a socket")
        if len(self._channels) >= MAX_CHANNELS:
            self._close(self._channels[0])
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise RequestError(f"cannot make a channel for ports: {error.strerror}") from None
        ours.setblocking(False)
        self._channels.append(ours)
        self._session.poller.watch(ours.fileno(), lambda _: self._receive(ours))
        answer = {"type": "ports", "id": message["id"]}
        why = "cannot make a channel for ports"
        self._session.send_descriptor(answer, theirs.detach(), why)

    def _close(self, channel: socket.socket) -> None:
        if channel not in self._channels:
            return
        self._channels.remove(channel)
        for connection in [each for each, its in self._connecting.items() if its is channel]:
            self._forget(connection)
            connection.close()
        self._session.poller.forget(channel.fileno())
        channel.close()

    def _receive(self, channel: socket.socket) -> None:
        for _ in range(MAX_CONNECTING):
            try:
                request = channel.recv(REQUEST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                request = b""
            if not request:  # the relay has ended
                self._close(channel)
                return
            number = int.from_bytes(request[:8], "big")
            port = int.from_bytes(request[8:], "big")
            self._connect(channel, number, port, iter(LOOPBACK), errno.ECONNREFUSED)
            if channel not in self._channels:
                return

    def _connect(
        self,
        channel: socket.socket,
        number: int,
        port: int,
        addresses: Iterator[tuple[int, str]],
        failed: int,
    ) -> None:
        """Begin a connection to the next address; after the last one, say why there is none."""
        if len(self._connecting) >= MAX_CONNECTING:
            self._answer(channel, number, errno.EAGAIN)
            return
        for family, address in addresses:
            try:
                connection = socket.socket(
                    family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
                )
            except OSError as error:
                failed = failed if error.errno == errno.EAFNOSUPPORT else error.errno or failed
                continue
            result = connection.connect_ex((address, port))
            if result == errno.EINPROGRESS:
                self._watch(channel, connection, number, port, addresses, failed)
                return
            if self._made(channel, connection, number, result):
                return
            failed = _worse(failed, result)
        self._answer(channel, number, failed)

    def _watch(
        self,
        channel: socket.socket,
        connection: socket.socket,
        number: int,
        port: int,
        addresses: Iterator[tuple[int, str]],
        failed: int,
    ) -> None:
        """Wait for the connection, within a time limit."""
        self._connecting[connection] = channel

        def settle(error: int) -> None:
            self._forget(connection)
            if not self._made(channel, connection, number, error):
                worst = _worse(failed, error or errno.ECONNREFUSED)
                self._connect(channel, number, port, addresses, worst)

        self._session.poller.watch(
            connection.fileno(),
            lambda _: settle(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
            select.POLLOUT,
        )
        self._session.poller.at(
            f"port {connection.fileno()}",
            time.monotonic() + CONNECT_S,
            lambda: settle(errno.ETIMEDOUT),
        )

    def _forget(self, connection: socket.socket) -> None:
        del self._connecting[connection]
        self._session.poller.forget(connection.fileno())
        self._session.poller.cancel(f"port {connection.fileno()}")

    def _made(
        self, channel: socket.socket, connection: socket.socket, number: int, error: int
    ) -> bool:
        """Pass a connection on if it is one, and close it here."""
        with connection:
            # Where nobody listens, a connection may meet itself, if its own port is that one.
            if error or connection.getsockname() == _peer(connection):
                return False
            self._answer(channel, number, 0, connection)
            return True

    def _answer(
        self,
        channel: socket.socket,
        number: int,
        error: int,
        connection: socket.socket | None = None,
    ) -> None:
        """Say how it went: the relay's number, and an error or 0 with the connection."""
        if channel not in self._channels:
            return
        passed = [] if connection is None else [connection.fileno()]
        try:
            socket.send_fds(channel, [_answer_of(number, error)], passed)
        except OSError as failure:
            # Too many descriptors may be in flight for one user (unix(7), ETOOMANYREFS).
            if passed and failure.errno == errno.ETOOMANYREFS:
                self._answer(channel, number, errno.ETOOMANYREFS)
            else:  # it does not read, or is gone
                self._close(channel)


def _answer_of(number: int, error: int) -> bytes:
    return number.to_bytes(8, "big") + error.to_bytes(4, "big")


def _peer(connection: socket.socket) -> object:
    try:
        return connection.getpeername()
    except OSError:  # it was closed already
        return None


def _worse(known: int, error: int) -> int:
    """The error to tell: that nobody listens at one address says less than any other error."""
    return known if error in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL) else error
