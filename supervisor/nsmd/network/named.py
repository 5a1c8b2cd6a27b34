"""Connections of a session's programs to names, as its agent passes them on (`sandbox.names`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import trio

from nsm.wire.tuples import NamedTuple
from nsmd.fdstore.holder import receive_one
from nsmd.model.host_rules import AllowList, BadHostError, parse_host, parse_port
from nsmd.network.listener import never_linger

MAX_MESSAGE_BYTES = 512

MAX_KNOWN = 128
"""Names that are remembered for forks of the session; no agent has listeners for more."""

MAX_MESSAGES_S = 1000
"""Messages of one agent in a second; more wait."""


class NamedError(Exception):
    """The agent did what ours does not."""


class NamedMessage(NamedTuple):
    """Message of the agent about a name: it has an address now (`named`), it was not found
    (`refused`, port 0) or has no listener at a port, or a program has `connected` to it.
    """

    kind: str
    host: str
    port: int = 0
    connection: trio.SocketStream | None = None


def rules_for_agent(allowed: AllowList) -> list[tuple[str, bool, list[int]]]:
    """Return the patterns of a list that name hosts and ports: name, with subdomains, ports."""
    return [
        (rule.name, rule.subdomains, sorted(rule.ports))
        for rule in allowed.rules
        if rule.name is not None and rule.ports is not None
    ]


class NamedChannel:
    """Channel from the agent, owned from now on. A `NamedError` says that it is none."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            raise NamedError("is not a socket") from None
        found = self._socket.family, self._socket.type
        if found != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            self._socket.close()
            raise NamedError("is not a channel")
        self.ended = False
        self._left, self._next_s = MAX_MESSAGES_S, 0.0

    async def receive(self) -> NamedMessage:
        """Receive the next message; a `NamedError` also says that the agent has closed it."""
        if not self._left:
            await trio.sleep_until(self._next_s)
        if trio.current_time() >= self._next_s:
            self._left, self._next_s = MAX_MESSAGES_S, trio.current_time() + 1.0
        self._left -= 1
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with suppress(BlockingIOError):
                return self._read()

    def told(self) -> Iterator[NamedMessage]:
        """Return what the agent has told of names, before others receive it: a result that has come
        from it is about that, too. Connections stay where they are.
        """
        with suppress(NamedError, OSError):  # `receive` says it again
            for _ in range(MAX_MESSAGES_S):
                first = self._socket.recv(9, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                if first in (b"", b"connected"):
                    return
                yield self._read()

    def _read(self) -> NamedMessage:
        """Read a message that is there, or raise `BlockingIOError`."""
        try:
            message, descriptor = receive_one(self._socket, MAX_MESSAGE_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            raise NamedError(f"fails: {error.strerror}") from None
        if not message:
            self.ended = True
            raise NamedError("is closed")
        return _parse(message, descriptor)

    def close(self) -> None:
        """Close it; the agent makes another one for who asks next."""
        self._socket.close()


def _parse(message: bytes, descriptor: int | None) -> NamedMessage:
    passed = None if descriptor is None else _connection(descriptor)
    try:
        kind, name, *rest = message.decode("ascii").split(" ")
        host, port = parse_host(name), parse_port(*rest) if rest else 0
        known = {"named": (0, False), "refused": (len(rest), False), "connected": (1, True)}
        valid = isinstance(host, str) and known.get(kind) == (len(rest), passed is not None)
    except (BadHostError, TypeError, ValueError):
        kind, host, port, valid = "", "", 0, False
    if not valid:
        if passed is not None:
            passed.socket.close()
        raise NamedError("has a message in another form")
    return NamedMessage(kind, str(host), port, passed)


def _connection(descriptor: int) -> trio.SocketStream:
    try:
        passed = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise NamedError("has passed what is not a socket") from None
    never_linger(passed)
    expected = (
        (socket.SO_DOMAIN, (socket.AF_INET, socket.AF_INET6)),
        (socket.SO_TYPE, (socket.SOCK_STREAM,)),
        (socket.SO_PROTOCOL, (socket.IPPROTO_TCP,)),
        (socket.SO_ACCEPTCONN, (0,)),
    )
    if any(passed.getsockopt(socket.SOL_SOCKET, each) not in ok for each, ok in expected):
        passed.close()
        raise NamedError("has passed what is not a TCP connection")
    passed.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(passed))
