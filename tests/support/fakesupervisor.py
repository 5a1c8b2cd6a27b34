"""A supervisor made of handlers: what clients meet, without sessions and jails.

It speaks the real protocol (`nsm.wire.messages.ServerConnection`) over real sockets, from
threads, so that blocking clients and the command line can be tested against it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from nsm.wire.errors import NsmError, UnknownOperationError, UnknownSessionError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import (
    Cancel,
    Event,
    Failure,
    Hello,
    Invalid,
    Request,
    Result,
    ServerConnection,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeAlias

    from nsm.wire.messages import ServerMessage

    Handler: TypeAlias = "Callable[[Exchange], dict[str, Any]]"


def no_session(exchange: Exchange) -> dict[str, Any]:
    """Answer `find` as where no session is meant, for tests that look at something else."""
    raise UnknownSessionError(f"{exchange.args['target']}: there is no such session")


def answer(**result: Any) -> Handler:
    """Make a handler that always answers the same."""
    return lambda _exchange: result


class Exchange:
    """One request, as its handler sees it."""

    def __init__(self, peer: _Peer, request: Request) -> None:
        self._peer = peer
        self._id = request.id
        self.args = request.args
        self.cancelled = threading.Event()
        """Set when the client cancels the request or goes away."""

    def emit(self, event: str, data: dict[str, Any]) -> None:
        self._peer.write(Event(self._id, event, data))

    def output(self, stream: str, text: str) -> None:
        self.emit("output", {"stream": stream, "text": text})

    def say_goodbye(self, error: NsmError) -> None:
        """Say why the connection is about to end."""
        self._peer.write(Failure(0, error))

    def hang_up(self) -> None:
        """Close the connection without an answer."""
        self._peer.close()


class FakeSupervisor:
    """Listens on `path` (if given) and answers each operation by its handler.

    A handler returns the result or raises an `NsmError`. All threads and sockets are gone when
    the context ends.
    """

    def __init__(self, path: str | None = None, **handlers: Handler) -> None:
        self.path = path
        self.handlers = {"find": no_session, **handlers}
        self.hellos: list[Hello] = []
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self.capabilities: tuple[str, ...] = ("again",)
        self.hang_up_after: str | None = None
        """An operation whose answer is the connection's last word."""
        self.going = 0
        """Connections that it takes, and closes before it says hello."""
        self.may_read = threading.Event()
        """Not set, it reads what comes once more at most, and then sets `stalled`."""
        self.may_read.set()
        self.stalled = threading.Event()
        self._peers: list[_Peer] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self.path)
            self._listener.listen()
            self.start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Stop listening and hang up on everyone."""
        self.stop_listening()
        for peer in self._peers:
            peer.close()

    def stop_listening(self) -> None:
        """Make room for another one."""
        if self._listener is not None:
            # Closing alone does not wake up the thread that is in accept().
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            assert self.path is not None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self._listener = None

    def connect(self) -> socket.socket:
        """The client's end of a new connection."""
        ours, theirs = socket.socketpair()
        self._serve(ours)
        return theirs

    def start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        peer = _Peer(self, connection)
        self._peers.append(peer)
        self.start(peer.serve)


class _Peer:
    def __init__(self, supervisor: FakeSupervisor, connection: socket.socket) -> None:
        self._supervisor = supervisor
        self._socket = connection
        self._protocol = ServerConnection()
        self._lock = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        try:
            while data := self._socket.recv(65536):
                self._protocol.receive_data(data)
                while (message := self._protocol.next_message()) is not None:
                    self._take(message)
                if not self._supervisor.may_read.is_set():
                    self._supervisor.stalled.set()
                    self._supervisor.may_read.wait()
        except RemoteProtocolError as error:
            self.write(Failure(0, error))
        except OSError:
            pass
        finally:
            for exchange in self._exchanges.values():
                exchange.cancelled.set()
            with self._lock:
                self._socket.close()

    def write(self, message: ServerMessage) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(self._protocol.send(message))

    def _take(self, message: Hello | Request | Cancel | Invalid) -> None:
        match message:
            case Hello() if self._supervisor.going > 0:
                self._supervisor.going -= 1
                self.close()
            case Hello():
                self._supervisor.hellos.append(message)
                rights = ("read", "run", "manage")
                capabilities = self._supervisor.capabilities
                self.write(Hello("nsm-supervisor", "0.1.0", "", capabilities, 4711, rights))
            case Request():
                self._supervisor.requests.append(message)
                exchange = self._exchanges[message.id] = Exchange(self, message)
                self._supervisor.start(self._carry_out, message, exchange)
            case Cancel(id=id_):
                self._supervisor.cancelled.append(id_)
                self._exchanges[id_].cancelled.set()
            case Invalid(id=id_, error=error):
                self.write(Failure(id_, error))

    def _carry_out(self, request: Request, exchange: Exchange) -> None:
        handler = self._supervisor.handlers.get(request.op)
        try:
            if handler is None:
                raise UnknownOperationError(f"unknown operation {request.op!r}")
            self.write(Result(request.id, handler(exchange)))
        except NsmError as error:
            self.write(Failure(request.id, error))
        if request.op == self._supervisor.hang_up_after:
            self.close()
