"""The blocking client: sessions for programs that use neither MCP nor async code.

Example::

    import nsm

    with nsm.Client() as client:
        client.run("n = 6", env="python", session="demo")
        result = client.run("print(n * 7)", env="python", session="demo", timeout_s=5)
        assert result.stdout == "42\\n"
        client.kill(["demo"])
"""

from __future__ import annotations

import os
import socket
from _thread import allocate_lock, get_ident
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from nsm.client.api import ClientMethods
from nsm.client.events import receive_passing
from nsm.client.places import DEFAULT, project_of
from nsm.client.retry import MAX_LOSSES, RECONNECTED, LostError, RetriedCall, hello, lease
from nsm.client.steps import Blocking, carry_out
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start
from nsm.wire.errors import (
    BadRequestError,
    CannotStartError,
    DisconnectedError,
    NsmError,
    ShuttingDownError,
)
from nsm.wire.messages import (
    CONNECTION_ID,
    Cancel,
    ClientConnection,
    Event,
    Failure,
    Hello,
    Request,
    Result,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any, Self, Unpack

    from nsm.client.interrupts import Interrupts
    from nsm.client.places import ProjectArgument
    from nsm.client.sandbox import Sandbox, SandboxSettings
    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.wire.messages import Hello, ServerMessage


T = TypeVar("T")


class Client(ClientMethods, Blocking):
    """One connection to the supervisor, which is started where none listens.

    A connection that is lost, since the supervisor was killed or restarted, is opened again: a call
    of code that was under way gets its result all the same, once, if the session has outlived the
    supervisor. Where that can't be known, the error says so (`ResultLostError`,
    `FateUnknownError`).

    Threads may share it: their calls wait for each other, so code runs in parallel only if each
    thread has a client of its own. A process that is forked gets a connection of its own at its
    first call. Everything raised on purpose is an `NsmError` (with `code`, `message` and `hint`)
    or, for an unusable socket path, `nsm.paths.PathError`. Answers with an error leave the client
    usable. An exception of a callback ends the call, in the session as well. One that is no
    `Exception`, such as `KeyboardInterrupt` in the middle of any call, also closes the client.
    """

    def __init__(
        self,
        *,
        scope: str = "cli",
        autostart: bool = True,
        reconnect: bool = True,
        socket_path: str | None = None,
        host: str | None = None,
        name: str = "nsm",
        project: ProjectArgument = DEFAULT,
        connection: socket.socket | None = None,
    ) -> None:
        """Connect.

        Args:
            scope: name space of session names; clients of one scope share their sessions. The
                default is the command line's, in which each project has names of its own.
            autostart: start a supervisor where none listens.
            reconnect: connect again after a lost connection; not after one that was given.
            socket_path: absolute; None for the usual one (`nsm.paths.socket_path`).
            host: another machine, whose sessions they are: ``ssh://user@host:port``, or a name in
                ``[hosts]`` of config.toml. None for ``NSM_HOST``, and this machine where that is
                not set; empty for this machine.
            name: the program, for `nsm ps`.
            project: directory that code sees; None for none. The default is the current
                directory, unless it is your home directory, one above it, or one that nsm refuses.
            connection: a stream socket that leads to a supervisor already, in place of a path; it
                is closed with the client.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
            HostError: the host cannot be used; the message says why.
        """
        self._host = "" if socket_path is not None or connection is not None else host
        self._project = project_of(project, self._host)
        path = None
        if connection is None:
            path = socket_path or client_socket(self._host)
            connection = start.connect(path, autostart=autostart, again=not reconnect)
            self.far_socket = path if leads_elsewhere(path) else None
        self._wire = BlockingWire(
            connection,
            hello(
                name=name,
                scope=scope,
                project=self._project.path,
                path=path if reconnect else None,
            ),
            path=path if reconnect else None,
            autostart=autostart,
        )
        self.leases = self._wire.leases

    @property
    def server(self) -> Hello:
        """Introduction of the supervisor: its version, process id, our rights."""
        return self._wire.server

    @property
    def autostart(self) -> bool:
        """Start a supervisor where none listens, when a lost connection is opened again."""
        return self._wire.autostart

    @autostart.setter
    def autostart(self, wanted: bool) -> None:
        self._wire.autostart = wanted

    def __repr__(self) -> str:
        state = "open" if self._wire.open else "closed"
        return f"<nsm.Client {state} supervisor={self.server.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. One-shot runs of it end, named sessions stay."""
        self._wire.close()

    def sandbox(self, **settings: Unpack[SandboxSettings]) -> Sandbox:
        """Make a session with settings of its own, which ends with the block.

        Example::

            with nsm.Client() as client:
                with client.sandbox(files={"in.txt": "6"}, labels={"batch": "7"}) as sandbox:
                    result = sandbox.run("print(int(open('in.txt').read()) * 7)")
                    assert result.stdout == "42\\n"

        Args:
            env: the environment's name, which is also that of its interpreter.
            name: name of the session; None for a fresh one.
            project, project_mode, network, secrets: as in `run`.
            memory_mb: memory limit, MiB: at most that of the environment.
            idle_s: seconds without use after which it ends by itself: at most what is configured.
            environ: variables for all that runs in it.
            files: contents by path, to be there when it begins.
            labels: up to 16 names and values, for `nsm ps --label` and `nsm kill --label`.
            ends_with_client: it ends when this client's connection does, also if this process is
                killed.

        Raises:
            NsmError: it can't be made; the message says why.
        """
        from nsm.client.sandbox import Sandbox  # noqa: PLC0415  # few programs ask

        return Sandbox(self, settings)

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps."""
        return carry_out(steps, self._perform)

    def _perform(
        self,
        op: str,
        args: dict[str, Any],
        on_event: OnEvent | None,
        interruptible: bool,  # as in `Operation`
        stdin: InputSource | None,
    ) -> dict[str, Any]:
        if stdin is None:
            return self._wire.call(op, args, on_event, interruptible=interruptible)
        from nsm.client.standard_input import Feeder  # noqa: PLC0415  # few programs send input

        with Feeder(self._wire, stdin, on_event) as feed:
            return self._wire.call(op, args, feed, interruptible=interruptible)

    def _follow_reload(self) -> None:
        """Wait until the supervisor has become another program, and connect to that."""
        self._wire.follow_reload()

    def _follow_end(self) -> None:
        """Wait until the supervisor has ended, and close."""
        if self._wire.open:
            self._wire.wait_ended()
        self.close()


ANSWER_TIMEOUT_S = 30.0
"""Time limit for the supervisor to introduce itself, or to end after it said that it will.
Both take milliseconds, and its start a second; beyond this it is stopped or stuck."""

RELOAD_TIMEOUT_S = 90.0
"""Time limit for the next program to answer, as long as a service has to start."""

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
                "a callback has used the client whose call it belongs to",
                hint="Use another client in the callback, or call when the first call has ended.",
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
                return interrupts.note(self._exchange(op, args, on_event, interrupts))

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
        what is still told of it is passed over by the next one."""
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
                except BaseException as error:
                    self._write(self._protocol.send(Cancel(id_)))
                    if not isinstance(error, Exception):
                        raise
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
