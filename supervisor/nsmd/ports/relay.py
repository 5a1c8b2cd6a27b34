"""A program that passes bytes between connections on the host and ports of one session.

There is one for each session with open ports, so that no session is in the way of another. It
outlives the supervisor. It ends with its session, and when no port is open and no connection is
left. It is small: standard library only.

Descriptor 0 is connected to the supervisor. Messages are packets (unix(7), SOCK_SEQPACKET) of
words, some with a descriptor:

``counts``          a memory file (`nsmd.ports.relayed`) for the counts of each port
``agent``           a channel to the session's agent (docs/contributing/agent-protocol.md, `ports`)
``open SLOT PORT``  a listening socket; its connections go to that port of the session. A
                    supervisor that takes over repeats this for each port
``close SLOT``      accept no more; open connections go on

It sends ``wrong TEXT`` if the agent passed anything else than a connection to the port.

What comes out of the session is untrusted.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import select
import socket
import time
from collections import deque

from nsmd.fdstore.holder import receive_one
from nsmd.host.rights import give_up_rights
from nsmd.ports.relayed import (
    FAILED,
    FILE_BYTES,
    FULL,
    NOWAIT,
    OPEN,
    PIECE_BYTES,
    REFUSED,
    SLOTS,
    TOTAL,
    AgentPassingError,
    PortCounts,
    RelayedConnection,
    RelayedEnd,
    RelayedPort,
    adopt,
    check_connection,
)

TYPE_CHECKING = False  # `typing` is large
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CONNECTIONS = 1000
"""Connections of one session at once; more wait in the backlogs."""

PORT_ASKED = 8
"""Connections of one port that the agent is asked for at once: a program that accepts none is in
the way of its own port only.
"""

MAX_ASKED = 256
"""The same for all ports together."""

ANSWER_S = 20.0
"""Time for the agent to answer: it gives up after half of that, unless it is stopped."""

DRAIN_S = 2.0
"""Time for bytes that are on their way when the session ends. No program is left to send more."""

ACCEPT_AT_ONCE = 64
RESERVED = 32
"""Descriptors that are no connections."""

EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


class PortRelay:
    """All ports of one session, with a connection to the supervisor."""

    def __init__(self, control: socket.socket, most: int) -> None:
        self.control: socket.socket | None = control
        self.agent: socket.socket | None = None
        self.most = most
        self.poll = select.epoll()
        self.poll.register(control, select.EPOLLIN)
        self.ports: dict[int, RelayedPort] = {}
        self.listeners: dict[int, RelayedPort] = {}
        self.connections: set[RelayedConnection] = set()
        self.ends: dict[int, RelayedEnd] = {}
        self.turns: deque[RelayedPort] = deque()
        self.asked: dict[int, RelayedConnection] = {}
        self.last = 0
        self.busy: deque[RelayedConnection] = deque()
        self.counts = memoryview(bytearray(FILE_BYTES))
        self.buffer = memoryview(bytearray(PIECE_BYTES))
        self.accepting = True
        self.began = False
        self.over_s = 0.0

    def run(self) -> None:
        """Run until nothing is left to do."""
        while not self.finished():
            for fd, events in self.poll.poll(self.patience_s()):
                if (end := self.ends.get(fd)) is not None:
                    end.readable |= bool(events & ~select.EPOLLOUT)
                    end.writable |= bool(events & ~select.EPOLLIN)
                    end.hung |= bool(events & ~(select.EPOLLIN | select.EPOLLOUT))
                    self.enqueue(end.connection)
                elif (port := self.listeners.get(fd)) is not None:
                    self.accept(port)
                elif self.agent is not None and fd == self.agent.fileno():
                    self.receive_answers()
                elif self.control is not None and fd == self.control.fileno():
                    self.receive_orders()
            for _ in range(len(self.busy)):
                self.move_bytes(self.busy.popleft())
            self.give_up_late()
            self.ask()

    def finished(self) -> bool:
        """Return whether this process can end."""
        if self.connections or self.ports or not self.began:
            return bool(self.over_s) and time.monotonic() >= self.over_s
        return True

    def patience_s(self) -> float | None:
        """Seconds until something is due; None if nothing is."""
        if self.busy:
            return 0.0
        due_s = [self.over_s] if self.over_s else []
        if self.asked:
            due_s.append(next(iter(self.asked.values())).asked_s + ANSWER_S)
        return max(0.0, min(due_s) - time.monotonic()) + 0.001 if due_s else None

    # The supervisor.

    def receive_orders(self) -> None:
        """Carry out the messages that have come."""
        while self.control is not None:
            try:
                message, descriptor = receive_one(self.control)
            except BlockingIOError:
                return
            except OSError:
                message, descriptor = b"", None
            if not message:
                # The supervisor wants nothing more, or has left nobody who could close the ports:
                # they end, and what is under way may finish.
                self.poll.unregister(self.control)
                self.control.close()
                self.control = None
                self.close_all()
                return
            self.carry_out(message.decode("ascii", "replace").split(), descriptor)

    def carry_out(self, words: list[str], descriptor: int | None) -> None:
        """Carry out one message."""
        word = words[0] if words else ""
        if word == "counts" and descriptor is not None:
            self.counts = memoryview(mmap.mmap(descriptor, FILE_BYTES))
        elif word == "agent" and descriptor is not None:
            self.forget_agent()
            self.agent = socket.socket(fileno=descriptor)
            self.poll.register(self.agent, select.EPOLLIN)
            return
        elif word == "open" and descriptor is not None:
            self.open(int(words[1]), int(words[2]), socket.socket(fileno=descriptor))
            return
        elif word == "close":
            self.close(int(words[1]))
        if descriptor is not None:
            os.close(descriptor)

    def open(self, slot: int, number: int, listener: socket.socket) -> None:
        self.began = True
        known = self.ports.get(slot)
        if known is not None and os.path.sameopenfile(known.listener.fileno(), listener.fileno()):
            listener.close()  # its connections stay counted
            return
        self.close(slot)
        port = RelayedPort(number, listener, PortCounts(self.counts, slot))
        self.ports[slot] = port
        self.listeners[listener.fileno()] = port
        if self.accepting:
            self.poll.register(listener, select.EPOLLIN)
        else:
            port.counts.add(FULL, 1)

    def close(self, slot: int) -> None:
        port = self.ports.pop(slot, None)
        if port is not None:
            del self.listeners[port.listener.fileno()]
            if self.accepting:
                self.poll.unregister(port.listener)
            port.listener.close()
            port.counts.leave()

    def close_all(self) -> None:
        self.began = True
        for slot in list(self.ports):
            self.close(slot)

    # The agent.

    def ask(self) -> None:
        """Ask the agent for connections."""
        while self.agent is not None and self.turns and len(self.asked) < MAX_ASKED:
            port = self.turns[0]
            self.last += 1
            request = self.last.to_bytes(8, "big") + port.number.to_bytes(2, "big")
            try:
                self.agent.send(request, NOWAIT)
            except BlockingIOError:
                return  # it is stopped; an answer, or time, leads here again
            except OSError:
                self.session_over()
                return
            del self.turns[0]
            connection = port.waiting.popleft()
            connection.asked_s = time.monotonic()
            self.asked[self.last] = connection
            port.asked += 1
            self.line_up(port)

    def line_up(self, port: RelayedPort) -> None:
        """Give a port a turn to ask, behind the others, if it has need and room for one."""
        if port.waiting and port.asked < PORT_ASKED and port not in self.turns:
            self.turns.append(port)

    def take_asked(self, number: int) -> RelayedConnection | None:
        """Return the connection that was asked for under a number; None if it was given up."""
        connection = self.asked.pop(number, None)
        if connection is not None:
            connection.port.asked -= 1
            self.line_up(connection.port)
        return connection

    def give_up_late(self) -> None:
        """End connections for which there was no answer in time."""
        while self.asked:
            number, connection = next(iter(self.asked.items()))
            if time.monotonic() < connection.asked_s + ANSWER_S:
                return
            self.take_asked(number)
            self.abort(connection, FAILED)

    def receive_answers(self) -> None:
        """Take answers of the agent."""
        try:
            for _ in range(MAX_ASKED):
                if self.agent is None:
                    return
                message, descriptor = receive_one(self.agent)
                if not message and descriptor is None:
                    self.session_over()
                    return
                self.take_answer(message, descriptor)
        except BlockingIOError:
            return
        except AgentPassingError as error:
            self.report(f"wrong {error}")
            self.session_over()
        except OSError:
            self.session_over()

    def take_answer(self, message: bytes, descriptor: int | None) -> None:
        """Take one answer; an `AgentPassingError` if our agent does not answer so."""
        inside = adopt(descriptor)
        if len(message) != 12:
            raise AgentPassingError("an answer about a port has the wrong length")
        connection = self.take_asked(int.from_bytes(message[:8], "big"))
        error = int.from_bytes(message[8:], "big")
        if connection is None:
            if inside is not None:
                inside.close()
            return
        if error:
            self.abort(connection, REFUSED if error == errno.ECONNREFUSED else FAILED)
            return
        try:
            self.begin(connection, check_connection(inside, connection.port.number))
        except AgentPassingError:
            self.abort(connection, FAILED)
            raise
        except OSError:  # it has ended meanwhile
            self.abort(connection, FAILED)

    def forget_agent(self) -> None:
        if self.agent is not None:
            self.poll.unregister(self.agent)
            self.agent.close()
            self.agent = None

    def session_over(self) -> None:
        """The agent is gone, and with it its session."""
        self.forget_agent()
        self.close_all()
        self.over_s = time.monotonic() + DRAIN_S
        self.turns.clear()
        self.asked.clear()
        for connection in [each for each in self.connections if each.inside is None]:
            connection.port.waiting.clear()
            self.abort(connection, FAILED)

    def report(self, text: str) -> None:
        if self.control is not None:
            try:
                self.control.send(text.encode(), NOWAIT)
            except OSError:
                return

    # Connections.

    def accept(self, port: RelayedPort) -> None:
        """Accept what has come, as long as there is room."""
        for _ in range(ACCEPT_AT_ONCE):
            if len(self.connections) >= self.most:
                self.set_accepting(accepting=False)
                return
            try:
                host, _ = port.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    if self.connections:
                        self.set_accepting(accepting=False)
                    else:
                        time.sleep(0.1)  # nothing of ours could end and make room
                    return
                continue  # it has ended already (accept(2))
            connection = RelayedConnection(host, port)
            self.connections.add(connection)
            port.counts.add(OPEN, 1)
            port.counts.add(TOTAL, 1)
            port.waiting.append(connection)
            self.line_up(port)

    def set_accepting(self, *, accepting: bool) -> None:
        """Stop accepting, or begin again."""
        if accepting is self.accepting:
            return
        self.accepting = accepting
        change: Callable[..., None] = self.poll.register if accepting else self.poll.unregister
        for port in self.ports.values():
            change(port.listener)
            port.counts.add(FULL, -1 if accepting else 1)

    def begin(self, connection: RelayedConnection, inside: socket.socket) -> None:
        """Join both ends; an `OSError` if one has ended."""
        connection.join(inside)
        for end in connection.ends:
            self.poll.register(end.socket, EVENTS)
            self.ends[end.socket.fileno()] = end
        self.enqueue(connection)

    def enqueue(self, connection: RelayedConnection) -> None:
        if not connection.queued:
            connection.queued = True
            self.busy.append(connection)

    def move_bytes(self, connection: RelayedConnection) -> None:
        """Give a connection its turn."""
        connection.queued = False
        if connection not in self.connections:
            return
        try:
            more = connection.move(self.buffer)
        except OSError:  # one end was reset, so the other is, too
            self.abort(connection)
            return
        if connection.over:
            self.end(connection)
        elif more:
            self.enqueue(connection)

    def end(self, connection: RelayedConnection, *, reset: bool = False) -> None:
        """Close both ends."""
        self.connections.discard(connection)
        connection.port.counts.add(OPEN, -1)
        for end in connection.ends:
            if self.ends.pop(end.socket.fileno(), None) is not None:
                # Closing is not enough: somebody may have a copy of the socket (epoll(7)).
                self.poll.unregister(end.socket)
            end.close(reset=reset)
        self.set_accepting(accepting=True)

    def abort(self, connection: RelayedConnection, which: int | None = None) -> None:
        """Reset both ends, and count that."""
        if which is not None:
            connection.port.counts.add(which, 1)
        self.end(connection, reset=True)


def main() -> None:
    """Run as a program."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * MAX_CONNECTIONS + SLOTS + RESERVED
    limit = needed if hard < 0 else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    most = max(1, min(MAX_CONNECTIONS, (limit - SLOTS - RESERVED) // 2))
    relay = PortRelay(socket.socket(fileno=0), most)
    give_up_rights()
    relay.run()
