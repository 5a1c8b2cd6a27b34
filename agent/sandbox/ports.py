"""Connections to ports of the session's own loopback, made for a relay outside of the session."""

from __future__ import annotations

import errno
import select
import socket
import time

from sandbox.fields import is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from sandbox.agent import Agent


LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Servers that listen on "localhost" may have the second one only."""


MAX_CONNECTING = 64
"""Connections that may be under way at once; the relay asks for fewer."""


CONNECT_S = 10.0
"""Time for a program to accept a connection, or for the kernel to do that in its place."""


REQUEST_BYTES = 10
"""A request of the relay: a number of its own (8 bytes) and the port (2)."""


class PortConnector:
    """The relay's channel, and the connections that are being made for it.

    A socket stays in the network namespace where it was made. So the relay gets sockets of this
    one, and this session none of the host's.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._channel: socket.socket | None = None
        self._connecting: dict[socket.socket, int] = {}

    def open(self, message: Mapping[str, Any]) -> None:
        """Makes a channel for a new relay, in place of that of an earlier one."""
        request_id = message.get("id")
        if not is_id(request_id) or not self._agent.channel.passes_descriptors:
            self._agent.fail("ports needs an id, and a channel that is a socket", request_id)
            return
        self._close()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._agent.fail(f"cannot make a channel for ports: {error.strerror}", request_id)
            return
        ours.setblocking(False)
        self._channel = ours
        self._agent.poller.watch(ours.fileno(), lambda _: self._receive(ours))
        self._agent.channel.send({"type": "ports", "id": request_id}, theirs.detach())

    def _close(self) -> None:
        for connection in list(self._connecting):
            self._forget(connection)
            connection.close()
        if self._channel is not None:
            self._agent.poller.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _receive(self, channel: socket.socket) -> None:
        for _ in range(MAX_CONNECTING):
            try:
                request = channel.recv(REQUEST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                request = b""
            if not request:  # the relay has ended
                self._close()
                return
            number = int.from_bytes(request[:8], "big")
            port = int.from_bytes(request[8:], "big")
            self._connect(number, port, iter(LOOPBACK), errno.ECONNREFUSED)
            if self._channel is not channel:
                return

    def _connect(
        self, number: int, port: int, addresses: Iterator[tuple[int, str]], failed: int
    ) -> None:
        """Begins a connection to the next address; after the last one says why there is none."""
        if len(self._connecting) >= MAX_CONNECTING:
            self._answer(number, errno.EAGAIN)
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
                self._watch(connection, number, port, addresses)
                return
            if self._made(connection, number, result):
                return
            failed = _worse(failed, result)
        self._answer(number, failed)

    def _watch(
        self,
        connection: socket.socket,
        number: int,
        port: int,
        addresses: Iterator[tuple[int, str]],
    ) -> None:
        """Waits for the connection, within a time limit."""
        self._connecting[connection] = number

        def settle(error: int) -> None:
            self._forget(connection)
            if not self._made(connection, number, error):
                self._connect(number, port, addresses, error or errno.ECONNREFUSED)

        self._agent.poller.watch(
            connection.fileno(),
            lambda _: settle(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
            select.POLLOUT,
        )
        self._agent.poller.at(
            f"port {number}", time.monotonic() + CONNECT_S, lambda: settle(errno.ETIMEDOUT)
        )

    def _forget(self, connection: socket.socket) -> None:
        number = self._connecting.pop(connection)
        self._agent.poller.forget(connection.fileno())
        self._agent.poller.cancel(f"port {number}")

    def _made(self, connection: socket.socket, number: int, error: int) -> bool:
        """Passes a connection on if it is one, and closes it here."""
        with connection:
            # Where nobody listens, a connection may meet itself, if its own port is that one.
            if error or connection.getsockname() == _peer(connection):
                return False
            self._answer(number, 0, connection)
            return True

    def _answer(self, number: int, error: int, connection: socket.socket | None = None) -> None:
        """Says how it went: the relay's number, and an error or 0 with the connection."""
        if self._channel is None:
            return
        passed = [] if connection is None else [connection.fileno()]
        try:
            socket.send_fds(self._channel, [_answer_of(number, error)], passed)
        except OSError as failure:
            # Too many descriptors may be on their way for one user (unix(7), ETOOMANYREFS).
            if passed and failure.errno == errno.ETOOMANYREFS:
                self._answer(number, errno.ETOOMANYREFS)
            else:  # it does not read, or is gone
                self._close()


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
