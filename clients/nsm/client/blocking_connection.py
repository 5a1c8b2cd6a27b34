"""The connection of the blocking client: one call at a time, connected again if it is lost."""

from __future__ import annotations

import os
import socket
from _thread import allocate_lock, get_ident
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.client.retry import MAX_LOSSES, RECONNECTED, LostError, RetriedCall, lease
from nsm.startup import start
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import (
    BadRequestError,
    CannotStartError,
    DisconnectedError,
    NsmError,
    ShuttingDownError,
)
from nsm.wire.messages import CONNECTION_ID, Cancel, Event, Failure, Hello, Request, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsm.client.interrupts import Interrupts
    from nsm.wire.messages import ServerMessage

ANSWER_TIMEOUT_S = 30.0
"""How long the supervisor may take to introduce itself, or to end after it said that it will.
Both take milliseconds, and its start a second; beyond this it is stopped or stuck."""

RELOAD_TIMEOUT_S = 90.0
"""How long the next program may take to answer, as long as a service has to start."""

_READ_BYTES = 65536


class CallLock:
    """Lock that a call holds: a thread waits until the call of another one has its answer.

    A callback of a call cannot wait for that call, so it gets an error. `_thread` has what
    `threading` gives, which takes a millisecond to import.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._owner = 0

    @property
    def held_elsewhere(self) -> bool:
        """Tell whether another thread is in a call."""
        return self._owner not in (0, get_ident())

    def __enter__(self) -> None:
        if self._owner == get_ident():
            raise BadRequestError(
                "a callback of a call has used the client that is in this call",
                hint="Use a client of its own in the callback, or call when the first has ended.",
            )
        self._lock.acquire()
        self._owner = get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        self._lock.release()


class BlockingWire:
    """Connection of the blocking client. It is introduced when it is made.

    Args:
        connection: to a supervisor; owned from now on.
        hello: how the client introduces itself.
        path: path of the socket, to connect again; None for no new connection.
        autostart: start a supervisor then where none listens.

    Attributes:
        server: how the supervisor introduced itself.
        leases: ids of sessions that end with the connection. The next connection gets them, too.
    """

    def __init__(
        self, connection: socket.socket, hello: Hello, *, path: str | None, autostart: bool
    ) -> None:
        self.autostart = autostart
        self.leases = set[str]()
        self._hello = hello
        self._path = path
        self._descriptors: deque[int] = deque()
        self._takes_descriptor = False
        self._interrupts: Interrupts | None = None
        self._lost = self._closed = False
        self._calling = CallLock()
        self._pid = os.getpid()
        for losses in range(MAX_LOSSES):
            try:
                self._begin(connection)
                break
            except LostError:
                if self._path is None or losses == MAX_LOSSES - 1:
                    raise
            # It was ending already when it took the connection.
            connection = self._connect_again(self._path)

    def __repr__(self) -> str:
        return f"<BlockingWire {'open' if self.open else 'closed'}>"

    def another(self) -> BlockingWire:
        """Open another connection to the same supervisor, introduced in the same way.

        Raises:
            BadRequestError: this one was given, and nobody knows where it leads.
            NotRunningError: no supervisor listens.
        """
        if self._path is None:
            raise BadRequestError(
                "Standard input needs a second connection, and this client has one that it was "
                "given.",
                hint="Make a client with a `socket_path`, or write the input to a file of the "
                "session first.",
            )
        return BlockingWire(
            start.connect(self._path, autostart=False),
            self._hello,
            path=self._path,
            autostart=False,
        )

    @property
    def open(self) -> bool:
        """True while there is a connection."""
        return self._socket.fileno() >= 0

    def close(self) -> None:
        """Close it for good. A call of another thread that is under way gets an error."""
        self._closed = True
        if self._calling.held_elsewhere and self._pid == os.getpid():
            with suppress(OSError):  # it may be closed already
                self._socket.shutdown(socket.SHUT_RDWR)  # that thread reads, and closes the rest
            return
        self._socket.close()
        self._close_descriptors()
        self._lost = False
        if self._interrupts is not None:
            self._interrupts.close()

    def call(
        self,
        op: str,
        args: dict[str, Any],
        on_event: Callable[[Event], object] | None,
        *,
        interruptible: bool,
    ) -> dict[str, Any]:
        """Send a call and wait for its answer, as `nsm.Client.call`."""
        if self._pid != os.getpid():
            self._reconnect_after_fork()
        with self._calling:
            if not interruptible:
                return self._exchange(op, args, on_event)
            if self._interrupts is None:
                from nsm.client.interrupts import Interrupts  # noqa: PLC0415  # only runs pay for `signal`

                self._interrupts = Interrupts()
            with self._interrupts as interrupts:
                return self._exchange(op, args, on_event, interrupts)

    def _reconnect_after_fork(self) -> None:
        """Get a connection of our own in a forked process: its parent uses the one that it had."""
        self._pid = os.getpid()
        self._calling = CallLock()  # a thread of the parent may be in a call
        self._protocol = ClientConnection()
        self._interrupts = None
        if self.open:
            self._drop()

    def wait_ended(self, timeout_s: float | None = None) -> None:
        """Wait until the supervisor has closed it, as it was asked to.

        Args:
            timeout_s: None for the usual time.

        Raises:
            DisconnectedError: it takes too long.
        """
        if timeout_s is None:
            timeout_s = ANSWER_TIMEOUT_S
        try:
            self._socket.settimeout(timeout_s)
            while self._socket.recv(_READ_BYTES):
                pass
        except (DisconnectedError, ConnectionError):
            pass  # which is what was asked for
        except TimeoutError:
            raise DisconnectedError(
                f"the supervisor has not ended within {timeout_s:.0f} s",
                hint=f"Its process is {self.server.pid}.",
            ) from None
        finally:
            self.close()

    def follow_reload(self) -> None:
        """Wait until the supervisor has become another program. Connect to that one, if a lost
        connection is to be replaced.

        Raises:
            DisconnectedError: it takes too long, or each program that came ended at once.
            NotRunningError: none came.
        """
        path = self._path
        self.wait_ended(RELOAD_TIMEOUT_S)
        if path is None:
            return
        self._closed = False
        for losses in range(MAX_LOSSES):
            connection = start.reconnect(
                path, autostart=self.autostart, patience_s=RELOAD_TIMEOUT_S
            )
            try:
                self._begin(connection, RELOAD_TIMEOUT_S)
                break
            except LostError:  # the program before took it
                if losses == MAX_LOSSES - 1:
                    raise

    def _connect_again(self, path: str) -> socket.socket:
        return start.reconnect(path, autostart=self.autostart, patience_s=start.KEPT_S)

    def _begin(self, connection: socket.socket, timeout_s: float | None = None) -> None:
        """Introduce ourselves over a fresh connection.

        Args:
            timeout_s: for the answer; None for the usual time.
        """
        self._socket = connection
        self._protocol = ClientConnection()
        try:
            self.server = self._introduce(self._hello, timeout_s or ANSWER_TIMEOUT_S)
        except LostError:
            self._drop()
            raise LostError(arrived=False) from None
        except BaseException:
            self.close()
            raise
        self._lost = False
        for session in self.leases:
            try:
                self._ask(*lease(session), None, None)
            except LostError:
                raise LostError(arrived=False) from None
            except NsmError:
                pass  # it has ended
        if self._closed:  # by another thread, meanwhile
            self.close()

    def _introduce(self, hello: Hello, timeout_s: float) -> Hello:
        self._socket.settimeout(timeout_s)
        self._write(self._protocol.send(hello))
        message = self._next_message()
        if isinstance(message, Failure):
            if isinstance(message.error, ShuttingDownError):
                raise LostError(arrived=False)
            raise message.error
        assert isinstance(message, Hello), "the protocol lets nothing else come first"
        self._socket.settimeout(None)
        return message

    def _drop(self) -> None:
        """The connection is of no more use; another one may be made."""
        self._socket.close()
        self._close_descriptors()
        self._lost = self._path is not None and not self._closed

    def _exchange(
        self,
        op: str,
        args: dict[str, Any],
        on_event: Callable[[Event], object] | None = None,
        interrupts: Interrupts | None = None,
    ) -> dict[str, Any]:
        if self._path is None:
            return self._ask(op, args, on_event, interrupts)
        asked = RetriedCall(op, args)
        while True:
            try:
                if self._lost:
                    self._reconnect(asked, on_event)
                return self._ask(op, asked.args, on_event, interrupts)
            except LostError as error:
                asked.lost(error)
            except CannotStartError as error:
                raise asked.given_up(error) from error

    def _reconnect(self, asked: RetriedCall, on_event: Callable[[Event], object] | None) -> None:
        assert self._path is not None, "only a connection with a path may be lost"
        self._begin(self._connect_again(self._path))
        if asked.arrived and on_event is not None:
            on_event(Event(CONNECTION_ID, RECONNECTED, {}))

    def _ask(
        self,
        op: str,
        args: dict[str, Any],
        on_event: Callable[[Event], object] | None,
        interrupts: Interrupts | None,
    ) -> dict[str, Any]:
        """Send a request over the connection that there is, and wait for its answer."""
        if self._socket.fileno() < 0:
            raise DisconnectedError("this client is closed", hint="Make a new one.")
        id_ = self._protocol.new_id()
        request = self._protocol.send(Request(id_, op, args))
        arrived = False
        self._takes_descriptor = bool(args.get("descriptor"))
        try:
            arrived = self._write(request)
            if interrupts is not None and interrupts.told:  # and the connection was lost since
                self._write(self._protocol.send(Cancel(id_)))
            answer = self._wait_for_answer(id_, on_event, interrupts)
        except LostError:
            self._drop()
            raise LostError(arrived=arrived, instance=self.server.instance) from None
        except BaseException:
            self.close()  # half a frame may have been sent or read
            raise
        if isinstance(answer, Exception):
            if self._closed:  # by another thread, meanwhile
                self.close()
            raise answer
        if isinstance(answer, Failure):
            if answer.id == CONNECTION_ID and isinstance(answer.error, ShuttingDownError):
                self._drop()
                if not arrived:
                    raise LostError(arrived=False)
            elif answer.id == CONNECTION_ID:
                self.close()
            raise answer.error
        result = answer.result
        if args.get("descriptor") and result.get("descriptor"):
            # The number of the descriptor; or false, if what is between us takes descriptors away.
            result["descriptor"] = self._descriptors.popleft() if self._descriptors else False
        self._close_descriptors()
        return result

    def _wait_for_answer(
        self,
        id_: int,
        on_event: Callable[[Event], object] | None,
        interrupts: Interrupts | None,
    ) -> Result | Failure | Exception:
        """Wait for the answer to a request, or for an error of `on_event`, which ends the request;
        what is still told of it is passed over by the next one.
        """
        while True:
            message = self._next_message(interrupts)
            if message is None:
                self._write(self._protocol.send(Cancel(id_)))
            elif isinstance(message, Hello) or message.id not in (id_, CONNECTION_ID):
                continue
            elif isinstance(message, Result | Failure):
                return message
            elif on_event is not None:
                try:
                    on_event(message)
                except Exception as error:  # noqa: BLE001  # the caller gets it
                    self._write(self._protocol.send(Cancel(id_)))
                    return error

    def _next_message(self, interrupts: Interrupts | None = None) -> ServerMessage | None:
        """The next message, or None when Ctrl-C came first."""
        while (message := self._protocol.next_message()) is None:
            if interrupts is not None and interrupts.wait(self._socket.fileno()):
                return None
            self._protocol.receive_data(self._read())
        return message

    def _write(self, data: bytes) -> bool:
        """Return whether all of it was taken."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False  # reading tells more: the supervisor may have said why it closed
        except TimeoutError:
            raise self._too_slow() from None
        return True

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _read(self) -> bytes:
        try:
            if self._takes_descriptor:
                from nsm.client.passing import receive_passing  # noqa: PLC0415  # for files only

                data = receive_passing(self._socket, self._descriptors)
            else:
                data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        except TimeoutError:
            raise self._too_slow() from None
        if not data:
            raise LostError
        return data

    def _too_slow(self) -> DisconnectedError:
        return DisconnectedError(
            f"the supervisor has not answered within {self._socket.gettimeout() or 0:.0f} s",
            hint="It is stopped or stuck. Its log says more.",
        )
