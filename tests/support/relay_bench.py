"""A relay as a process or in a thread, and what plays its supervisor and its session's agent."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from nsmd.host.child_processes import PACKAGES, START
from nsmd.ports.relay import PortRelay
from nsmd.ports.relayed import FILE_BYTES, read_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

WAIT_S = 120.0


def connect_for(channel: socket.socket, number: bytes, port: int) -> None:
    """Answer one request as an agent does."""
    with socket.socket() as connection:
        error = connection.connect_ex(("127.0.0.1", port))
        answer = number + error.to_bytes(4, "big")
        socket.send_fds(channel, [answer], [] if error else [connection.fileno()])


class RelayBench:
    """A relay with one open port or more.

    Args:
        respond: answers a request of the relay: channel, number, port.

    Attributes:
        control: the supervisor's end.
        agent: the agent's end; closing it ends the session.
    """

    def __init__(self, respond: Callable[[socket.socket, bytes, int], None] = connect_for) -> None:
        self._owned = ExitStack()
        self.control, self._its_control = self._pair()
        self.agent, self._its_agent = self._pair()
        self.counts = os.memfd_create("counts")
        self._owned.callback(os.close, self.counts)
        os.truncate(self.counts, FILE_BYTES)
        self._respond = respond
        self.process: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None
        self._relay: PortRelay | None = None
        self._slots = 0

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owned.enter_context(ours)
        self._owned.enter_context(its)
        ours.settimeout(WAIT_S)
        return ours, its

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._owned.close()
        if self.thread is not None and self._relay is not None:
            self.thread.join(WAIT_S)
            self._relay.forget_agent()
            self._relay.poll.close()

    def start(self, *, descriptors: int | None = None) -> None:
        """Start it as a process."""
        limited = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}"]
        relay = [sys.executable, "-I", "-S", "-c", START.format("nsmd.ports.relay"), PACKAGES]
        self.process = subprocess.Popen(
            [*limited, *relay], stdin=self._its_control.fileno(), env={"PATH": os.environ["PATH"]}
        )
        self._its_control.close()
        self._begin()

    def start_here(self, most: int) -> None:
        """Start it in a thread of this process."""
        self._relay = relay = PortRelay(self._its_control.dup(), most)
        self._its_control.close()
        self.thread = threading.Thread(target=relay.run, daemon=True)
        self.thread.start()
        self._begin()

    def _begin(self) -> None:
        socket.send_fds(self.control, [b"counts"], [self.counts])
        socket.send_fds(self.control, [b"agent"], [self._its_agent.fileno()])
        self._its_agent.close()
        threading.Thread(target=self._be_agent, daemon=True).start()

    def _be_agent(self) -> None:
        try:
            while request := self.agent.recv(10):
                self._respond(self.agent, request[:8], int.from_bytes(request[8:], "big"))
        except OSError:
            return

    def open(self, port: int, path: str = "") -> str | tuple[str, int]:
        """Open a port; returns the address to connect to."""
        listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        with listener:
            listener.bind(path or ("127.0.0.1", 0))
            listener.listen(1024)
            listener.setblocking(False)
            socket.send_fds(
                self.control, [b"open %d %d" % (self._slots, port)], [listener.fileno()]
            )
            self._slots += 1
            address: str | tuple[str, int] = listener.getsockname()
        return address

    def wait_ended(self) -> None:
        """Wait until the relay has ended."""
        if self.process is not None:
            self.process.wait(WAIT_S)
        if self.thread is not None:
            self.thread.join(WAIT_S)
            assert not self.thread.is_alive()

    def count(self, which: int, slot: int = 0) -> int:
        return read_counts(self.counts, slot)[which]


def connect(address: str | tuple[str, int]) -> socket.socket:
    """Connect as a program of the host does."""
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    connection.settimeout(WAIT_S)  # with a limit, connect(2) would tell of a reset after it
    return connection


@contextmanager
def program() -> Generator[tuple[socket.socket, int]]:
    """A listening socket, as a program in the session has one, and its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        server.settimeout(WAIT_S)
        yield server, server.getsockname()[1]


def accept(server: socket.socket) -> socket.socket:
    connection, _ = server.accept()
    connection.settimeout(WAIT_S)
    return connection


def was_reset(connection: socket.socket) -> bool:
    """Wait for the end of a connection; return whether it was a reset."""
    try:
        while connection.recv(65536):
            pass
    except OSError as error:
        return error.errno == errno.ECONNRESET
    return False


def received(connection: socket.socket) -> bytes:
    """Read to the end."""
    data = bytearray()
    while piece := connection.recv(1 << 20):
        data += piece
    return bytes(data)
