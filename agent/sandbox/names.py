"""Allowed hosts by name, for programs that know no proxy: a resolver, and listeners.

A name of the list gets an address of a range that the session's loopback has, and a listener for
each of its ports there. Their connections go to the supervisor with the name and port, as sockets:
its proxy decides on them as on any request. Nothing that is looked up leaves the session.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import re
import select
import socket
import struct
import time
from functools import partial

from sandbox.framing import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sandbox.session import SharedSession

RESOLVER = ("198.18.0.1", 53)

RANGE = {socket.AF_INET: "198.18.", socket.AF_INET6: "fd6e:736d::"}
"""Beginnings of addresses for names: of networks for tests (RFC 2544), and of a site's own."""

FIRST, COUNT = 256, 65536 - 512
"""Numbers of addresses."""

MAX_LISTENERS = 128
"""Listeners at once; those of the name that was looked up longest ago make room."""

MAX_PORTS = 8
"""Ports of one name that have listeners; the lowest ones."""

MAX_PACKETS = 64
"""Questions that are answered before anything else has its turn."""

TTL_S = 10
"""Time for programs to keep an address: its name may have to make room."""

PAUSE_S = 0.2
"""Pause of all listeners if a connection cannot be accepted: descriptors are short."""

IPV6_FREEBIND = 78

SEND_BYTES = 4096
"""Bytes of connections that wait for the supervisor; others wait in the kernel's queues."""

_NUMBER = rb"(?:[0-9]+|0x[0-9a-f]*)\Z"
_LABEL = rb"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rb"(?:%b\.)*(?!%b)%b" % (_LABEL, _NUMBER, _LABEL))
"""A name of `nsmd.model.host_rules`, which takes what ends in a number for an address."""

_A, _AAAA, _INTERNET = 1, 28, 1
_KINDS = {_A: socket.AF_INET, _AAAA: socket.AF_INET6}
_FOUND, _MALFORMED, _UNKNOWN = 0, 1, 3


class NamedHosts:
    """Resolver and listeners of one session, and the channel to its supervisor."""

    def __init__(self, session: SharedSession) -> None:
        self._session = session
        self._rules: Sequence[tuple[str, bool, Sequence[int]]] = ()
        self._channel: socket.socket | None = None
        self._waiting: tuple[bytes, socket.socket] | None = None
        self._listeners: dict[str, list[socket.socket]] = {}  # the latest last
        self._numbers: dict[int, str] = {}
        try:
            self._resolver = socket.socket(
                socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            self._resolver.bind(RESOLVER)
        except OSError as error:  # where the loopback has no such address
            raise RequestError(f"cannot resolve names: {error.strerror}") from None
        session.poller.watch(self._resolver.fileno(), lambda _: self._answer())

    def open(self, message: Mapping[str, Any]) -> None:
        """Make a channel for a new supervisor, which also knows names that have had addresses."""
        self.change(message)
        for name in message.get("known", ())[:MAX_LISTENERS]:
            if ports := self._ports_of(name):
                self._listen(name, ports)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise RequestError(f"cannot make a channel for names: {error.strerror}") from None
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        ours.setblocking(False)
        self._close_channel()
        self._channel = ours
        self._session.poller.watch(ours.fileno(), self._on_channel, 0)
        answer = {"type": "names", "id": message["id"]}
        self._session.send_descriptor(answer, theirs.detach(), "cannot pass connections")
        for name in self._listeners:
            self._tell(b"named " + name.encode())
        self._pass_on()

    def change(self, message: Mapping[str, Any]) -> None:
        """Take another list of hosts; the supervisor ends connections that it allows no more."""
        rules: Sequence[Any] | None = message.get("rules")
        if not isinstance(rules, list):
            raise RequestError("names needs rules: [[name, with subdomains, [port, ...]], ...]")
        before = {name: self._ports_of(name) for name in self._listeners}
        self._rules = [(name, bool(below), ports) for name, below, ports in rules]
        for name, ports in before.items():
            if ports != (now := self._ports_of(name)):
                self._forget(name)
                if now:
                    self._listen(name, now)

    # Names.

    def _ports_of(self, name: str) -> Sequence[int]:
        found = {
            port
            for known, below, ports in self._rules
            if (name.endswith("." + known) if below else name == known)
            for port in ports
        }
        return sorted(found)[:MAX_PORTS]

    def _answer(self) -> None:
        for _ in range(MAX_PACKETS):
            try:
                packet, asker = self._resolver.recvfrom(512)
                if reply := self._reply(packet):
                    self._resolver.sendto(reply, asker)
            except OSError:  # nothing more, or the asker is gone
                return

    def _reply(self, packet: bytes) -> bytes:
        """Make the answer to a question (RFC 1035, 4); none to what is an answer itself."""
        if len(packet) < 12 or packet[2] & 0x80:
            return b""
        labels: list[bytes] = []
        place = 12
        while size := packet[place] if place < len(packet) else 0:
            labels.append(packet[place + 1 : place + 1 + size])
            place += 1 + size
        question = packet[12 : place + 5]
        asked_once = packet[2] & 0x78 == 0 and packet[4:6] == b"\0\1"
        name = b".".join(labels).lower()
        if not asked_once or len(question) != place - 7 or len(name) > 253:
            return _header(packet, _MALFORMED, 0, 0)
        kind, its_class = question[-3], int.from_bytes(question[-2:], "big")
        ports: Sequence[int] = ()
        if _NAME.fullmatch(name) and its_class == _INTERNET:
            ports = self._ports_of(name.decode())
            if not ports and kind == _A and question[-4] == 0:
                self._tell(b"refused " + name)
        if not ports:
            return _header(packet, _UNKNOWN, 1, 0) + question
        family = _KINDS.get(kind) if question[-4] == 0 else None
        address = self._listen(name.decode(), ports).get(family) if family else None
        if address is None:
            return _header(packet, _FOUND, 1, 0) + question
        record = b"\xc0\x0c" + question[-4:] + TTL_S.to_bytes(4, "big")
        record += len(address).to_bytes(2, "big") + address
        return _header(packet, _FOUND, 1, 1) + question + record

    # Listeners.

    def _listen(self, name: str, ports: Sequence[int]) -> dict[int, bytes]:
        """Have a listener for each port of a name, where there are none. Returns its addresses."""
        known = self._listeners.pop(name, None)
        if known is None:
            room = MAX_LISTENERS - 2 * len(ports)
            # One without any counts, too: a server of the session may have its ports everywhere.
            while sum(len(each) or 1 for each in self._listeners.values()) > room:
                self._forget(next(iter(self._listeners)))
            known = list[socket.socket]()
            # The same in a fork, and after a restart, unless two names want one address.
            number = FIRST + binascii.crc32(name.encode()) % COUNT
            while number in self._numbers:
                number = FIRST + (number - FIRST + 1) % COUNT
            self._numbers[number] = name
            for port in ports:
                made = [each for each in (_listener(of, number, port) for of in RANGE) if each]
                if not made:  # a server of the session has it
                    self._tell(f"refused {name} {port}".encode())
                for listener in made:
                    handler = partial(self._accept, listener, f"connected {name} {port}".encode())
                    self._session.poller.watch(listener.fileno(), handler, self._events)
                known += made
            self._tell(b"named " + name.encode())
        self._listeners[name] = known
        return {each.family: socket.inet_pton(each.family, each.getsockname()[0]) for each in known}

    def _forget(self, name: str) -> None:
        for listener in self._listeners.pop(name):
            self._session.poller.forget(listener.fileno())
            listener.close()
        self._numbers = {key: value for key, value in self._numbers.items() if value != name}

    # Connections.

    @property
    def _events(self) -> int:
        """Events that listeners wait for: none while no more connections can be passed on."""
        return 0 if self._waiting or self._channel is None else select.POLLIN

    def _listen_for(self, events: int) -> None:
        for known in self._listeners.values():
            for listener in known:
                self._session.poller.change(listener.fileno(), events)

    def _pause(self) -> None:
        self._listen_for(0)
        self._session.poller.at("names", time.monotonic() + PAUSE_S, self._pass_on)

    def _accept(self, listener: socket.socket, text: bytes, _: int) -> None:
        if self._waiting or self._channel is None:
            return  # since this turn began
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # descriptors are short
            self._pause()
            return
        self._waiting = (text, connection)
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on the connection that waits, as soon as there is room for it."""
        if self._channel is not None and self._waiting is not None:
            text, connection = self._waiting
            try:
                socket.send_fds(self._channel, [text], [connection.fileno()])
            except BlockingIOError:
                self._session.poller.change(self._channel.fileno(), select.POLLOUT)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # of the user, in flight
                    self._close_channel()
                self._pause()
                return
            else:
                connection.close()
                self._waiting = None
                self._session.poller.change(self._channel.fileno(), 0)
        self._listen_for(self._events)

    def _on_channel(self, events: int) -> None:
        if events & (select.POLLHUP | select.POLLERR):
            self._close_channel()
        self._pass_on()

    def _tell(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # it has enough of them
            if self._channel is not None:
                self._channel.send(text)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._session.poller.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None


def _header(packet: bytes, code: int, questions: int, answers: int) -> bytes:
    flags = bytes((0x80 | packet[2] & 0x79, 0x80 | code))
    return packet[:2] + flags + struct.pack(">4H", questions, answers, 0, 0)


def _listener(family: socket.AddressFamily, number: int, port: int) -> socket.socket | None:
    """A listener at the address of that number; None where there can be none."""
    place = f"{RANGE[family]}{number:x}"
    if family == socket.AF_INET:
        place = f"{RANGE[family]}{number >> 8}.{number & 255}"
    try:
        listener = socket.socket(
            family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
    except OSError:
        return None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it may have been there
        if family == socket.AF_INET6:  # the range is routed, and no address of it is configured
            listener.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
        listener.bind((place, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        return None
    return listener
