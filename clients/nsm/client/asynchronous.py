"""The async client, on asyncio or trio: many calls at once over one connection.

Example::

    import asyncio

    import nsm

    async def main() -> None:
        async with nsm.AsyncClient() as client, asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(show(client, name))

    async def show(client: nsm.AsyncClient, name: str) -> None:
        result = await client.run(f"print('{name}')", env="python", session=name)
        print(result.stdout, end="")

    asyncio.run(main())
"""

from __future__ import annotations

import inspect
import math
import os
from collections import deque
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from nsm.client.api import ClientMethods
from nsm.client.events import receive_passing
from nsm.client.places import DEFAULT, project_of
from nsm.client.retry import MAX_LOSSES, RECONNECTED, LostError, RetriedCall, hello, lease
from nsm.client.steps import Async, is_operation
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start
from nsm.wire.errors import (
    CannotStartError,
    DisconnectedError,
    NotRunningError,
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
    from collections.abc import Awaitable, Callable
    from typing import Any, Self, Unpack

    from nsm.client.places import ProjectArgument
    from nsm.client.sandbox import AsyncSandbox, SandboxSettings
    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.wire.messages import ClientMessage, Hello, ServerMessage


T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
"""Time that steps that were cancelled may still take, to close a file in the session."""


class AsyncClient(ClientMethods, Async):
    """One connection to the supervisor, for any number of tasks of one loop, of asyncio or trio.

    Use it as a context manager. It has no task of its own: whichever call waits also reads, for
    all that wait. A connection that is lost is opened again, as `nsm.Client` does it.

    Cancellation: a cancelled call tells the supervisor, which interrupts what runs, and does not
    wait for what comes of it. One that is cut short while it writes loses the connection; the
    others are asked for again over the next one.

    Attributes:
        leases: ids of sessions that end with the connection. The next connection gets them, too.
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
        """Remember how to connect; entering the context connects. The arguments are those of
        `nsm.Client`, which describes them.
        """
        self._host = "" if socket_path is not None or connection is not None else host
        self._project = project_of(project, self._host)
        self._name, self._scope = name, scope
        self.autostart = autostart
        self._may_reconnect = reconnect
        self._socket_path = socket_path
        self._connection = connection
        self._path: str | None = None  # to connect again; None where that is not wanted
        self._wire: AsyncWire | None = None
        self._closed = False
        self.leases = set[str]()
        self._server: Hello | None = None

    @property
    def server(self) -> Hello:
        """Introduction of the supervisor; there is none before the context is entered."""
        assert self._server is not None, "the context has not been entered"
        return self._server

    def __repr__(self) -> str:
        pid = self._server.pid if self._server else None
        calls = self._wire.calls if self._wire is not None else 0
        return f"<nsm.AsyncClient supervisor={pid} calls={calls}>"

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
        """
        # Not before: an adapter makes the client under asyncio, and uses it in a thread under trio.
        self._reconnecting = anyio.Lock()
        for losses in range(MAX_LOSSES):
            try:
                await self._connect(again=losses > 0 or not self._may_reconnect)
                break
            except LostError:  # it was ending already when it took the connection
                if self._path is None or losses == MAX_LOSSES - 1:
                    raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. One-shot runs of it end, named sessions stay."""
        self._closed = True
        if self._wire is not None:
            self._wire.close()

    def close_in_child(self) -> None:
        """Close a forked process's copy of its parent's connection."""
        if self._wire is not None:
            self._wire.close_in_child()

    def sandbox(self, **settings: Unpack[SandboxSettings]) -> AsyncSandbox:
        """Make a session when the block begins, which ends with it; see `nsm.Client.sandbox`."""
        from nsm.client.sandbox import AsyncSandbox  # noqa: PLC0415  # few programs ask

        return AsyncSandbox(self, settings)

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps, one after another; functions are called in a thread."""
        closing = False
        try:
            step = next(steps)
            while True:
                answer: dict[str, Any] = {}
                try:
                    if is_operation(step):
                        # What is cancelled still closes its file: a session has few of them.
                        limit_s = CLOSE_TIMEOUT_S if closing else math.inf
                        with anyio.move_on_after(limit_s, shield=closing):
                            answer = await self._perform(*step)
                    elif inspect.iscoroutinefunction(step):
                        await step()
                    elif step is not None:
                        # If it is abandoned, it ends when its pipe breaks.
                        await anyio.to_thread.run_sync(step, abandon_on_cancel=True)
                    else:
                        await anyio.lowlevel.checkpoint()
                except BaseException as error:  # noqa: BLE001  # the steps raise it again
                    closing = closing or not isinstance(error, Exception)
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    async def _perform(
        self,
        op: str,
        args: dict[str, Any],
        on_event: OnEvent | None,
        _interruptible: bool,  # as in `Operation`; Ctrl-C is the loop's
        stdin: InputSource | None = None,
    ) -> dict[str, Any]:
        if stdin is None:
            return await self._exchange(op, args, on_event)
        from nsm.client.async_standard_input import call_feeding  # noqa: PLC0415  # for few

        return await call_feeding(self, op, args, source=stdin, on_event=on_event)

    async def wait_lost(self) -> None:
        """Wait until the connection has ended. The next call makes another."""
        await self._wire_in_use().wait_ended()

    async def _follow_reload(self) -> None:
        """Wait until the supervisor has closed this connection."""
        with anyio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            await self.wait_lost()
        if scope.cancelled_caught:
            raise DisconnectedError(
                f"the supervisor has not ended within {ANSWER_TIMEOUT_S:.0f} s",
                hint=f"Its process is {self.server.pid}.",
            )

    async def _follow_end(self) -> None:
        """Wait until the supervisor has ended, and close."""
        try:
            await self._follow_reload()
        finally:
            await self.aclose()

    async def _exchange(
        self, op: str, args: dict[str, Any], on_event: OnEvent | None
    ) -> dict[str, Any]:
        if self._path is None:
            return await self._wire_in_use().call(op, args, on_event)
        asked = RetriedCall(op, args)
        while True:
            wire = self._wire_in_use()
            try:
                return await wire.call(op, asked.args, on_event)
            except LostError as error:
                asked.lost(error)
            try:
                await self._reconnect(wire)
            except CannotStartError as error:
                raise asked.given_up(error) from error
            if asked.arrived and on_event is not None:
                on_event(Event(CONNECTION_ID, RECONNECTED, {}))

    def _wire_in_use(self) -> AsyncWire:
        assert self._wire is not None, "the context has not been entered"
        return self._wire

    async def _reconnect(self, lost: AsyncWire) -> None:
        """Connect again, unless another call has done so."""
        async with self._reconnecting:
            if self._wire is not lost:
                return
            lost.close()
            if self._closed:
                raise DisconnectedError("this client is closed", hint="Make a new one.")
            path, began_s = self._path, anyio.current_time()
            assert path is not None, "only a connection with a path may be lost"
            while True:
                try:
                    await self._connect(again=True)
                except (NotRunningError, LostError) as error:
                    waited_s = anyio.current_time() - began_s
                    pause_s = await anyio.to_thread.run_sync(
                        start.pause_after, error, path, waited_s
                    )
                    if pause_s is None:
                        raise
                else:
                    return
                await anyio.sleep(pause_s)

    async def _connect(self, *, again: bool = False) -> None:
        connection = self._connection
        if connection is None:
            path = self._path or self._socket_path or client_socket(self._host)
            # In a thread: a start takes up to `nsm.startup.spawn.READY_TIMEOUT_S`. The supervisor
            # is not the thread's child, so its end means nothing to it.
            connection = await anyio.to_thread.run_sync(
                lambda: start.connect(path, autostart=self.autostart, again=again)
            )
            self._path = path if self._may_reconnect else None
            self.far_socket = path if leads_elsewhere(path) else None
        wire = AsyncWire(connection)
        introduction = hello(
            name=self._name, scope=self._scope, project=self._project.path, path=self._path
        )
        self._server = await wire.introduce(introduction)
        for session in self.leases:
            with suppress(NsmError):  # it has ended, or the next call finds this one lost
                await wire.call(*lease(session), None)
        if self._closed:
            wire.close()
        self._wire = wire


ANSWER_TIMEOUT_S = 30.0
"""Time limit for the supervisor to introduce itself, or to end after it said that it will."""

CANCEL_TIMEOUT_S = 1.0
"""Time in which a cancelled call may still write: the rest of its frame, and its `cancel`."""

_READ_BYTES = 65536


class AsyncWire:
    """Connection of the async client; `introduce` comes first. It has no task of its own:
    whichever call waits also reads, for all that wait.

    Args:
        connection: a stream socket, closed with it.

    Attributes:
        server: how the supervisor introduced itself; None before.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.server: Hello | None = None
        self._socket = connection
        self._protocol = ClientConnection()
        self._send_lock = anyio.Lock()
        self._calls: dict[int, _Call] = {}
        self._descriptors: deque[int] = deque()
        self._reading = False
        self._failure: NsmError | None = None

    def __repr__(self) -> str:
        return f"<AsyncWire {'failed' if self._failure else 'open'} calls={self.calls}>"

    @property
    def calls(self) -> int:
        """Number of calls that wait for their answers."""
        return len(self._calls)

    async def introduce(self, hello: Hello) -> Hello:
        """Say who we are, and hear who answers.

        Raises:
            LostError: nobody, any more.
            NsmError: the supervisor refuses us, or says nothing.
        """
        try:
            with anyio.fail_after(ANSWER_TIMEOUT_S):
                await self._send(hello)
                while self.server is None:
                    await self._read()
                    self._raise_failure()
        except TimeoutError:
            self._close()
            raise DisconnectedError(
                f"the supervisor has not answered within {ANSWER_TIMEOUT_S:.0f} s",
                hint="It is stopped or stuck. Its log says more.",
            ) from None
        except (LostError, ShuttingDownError):
            self._close()
            raise LostError(arrived=False) from None
        except BaseException:
            self._close()
            raise
        return self.server

    def close(self) -> None:
        """End it, and all that wait."""
        self.fail(DisconnectedError("this client is closed", hint="Make a new one."))
        self._close()

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

    def close_in_child(self) -> None:
        """Close a forked process's copy of its parent's connection, which no loop runs there."""
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    async def call(
        self, op: str, args: dict[str, Any], on_event: Callable[[Event], object] | None
    ) -> dict[str, Any]:
        """Send a call and wait for its answer, as `nsm.AsyncClient.call`.

        Raises:
            LostError: the connection ended without a word, or before the request arrived.
            NsmError: what the supervisor answered, or said last.
        """
        id_ = self._protocol.new_id()
        call = self._calls[id_] = _Call()
        call.takes_descriptor = bool(args.get("descriptor"))
        arrived = False
        try:
            arrived = await self._send(Request(id_, op, args))
            answer = await self._wait_for_answer(call, on_event)
        except (LostError, ShuttingDownError) as error:
            if isinstance(error, ShuttingDownError) and arrived:
                raise
            instance = "" if self.server is None else self.server.instance
            raise LostError(arrived=arrived, instance=instance) from None
        finally:
            del self._calls[id_]
            if not self._reading:
                self._wake_a_reader()
            if call.answer is None and self._failure is None:
                with anyio.move_on_after(CANCEL_TIMEOUT_S, shield=True):
                    await self._send(Cancel(id_))
        if isinstance(answer, Failure):
            raise answer.error
        if call.takes_descriptor and answer.result.get("descriptor"):
            # Its number; or false, if what is between us takes descriptors away.
            answer.result["descriptor"] = call.claim()
        return answer.result

    async def wait_ended(self) -> None:
        """Wait until the supervisor closes it; returns in any case when it has failed."""
        closing = self._calls[CONNECTION_ID] = _Call()  # waits like a call, and is never answered
        try:
            await self._wait_for_answer(closing, None)
        except NsmError:
            pass  # which was waited for
        finally:
            del self._calls[CONNECTION_ID]

    async def _wait_for_answer(
        self, call: _Call, on_event: Callable[[Event], object] | None
    ) -> Result | Failure:
        while True:
            while call.events:
                event = call.events.popleft()
                if on_event is not None:
                    on_event(event)
            if call.answer is not None:
                return call.answer
            self._raise_failure()
            if self._reading:
                await call.woken.wait()
                call.woken = anyio.Event()
                continue
            self._reading = True
            try:
                await self._read()
            finally:
                self._reading = False

    def _wake_a_reader(self) -> None:
        """Let one waiting call find out that nobody reads any more."""
        for call in self._calls.values():
            if call.answer is None:
                call.woken.set()
                return

    async def _read(self) -> None:
        """Read once, and give each message to the call that waits for it."""
        data = await self._receive()
        if not data:
            self.fail(LostError())
            return
        try:
            self._protocol.receive_data(data)
            while (message := self._protocol.next_message()) is not None:
                self._deliver(message)
        except NsmError as error:
            self.fail(error)

    async def _receive(self) -> bytes:
        """Read once, and keep the descriptor that comes with the data if a call may have one.
        Empty once the connection has ended.
        """
        while True:
            try:
                await anyio.wait_readable(self._socket)
                if any(call.takes_descriptor for call in self._calls.values()):
                    return receive_passing(self._socket, self._descriptors)
                return self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except (OSError, ValueError, anyio.ClosedResourceError):
                return b""

    def _deliver(self, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            self.server = message
            return
        if isinstance(message, Failure) and message.id == CONNECTION_ID:
            self.fail(message.error)
            return
        call = self._calls.get(message.id)
        descriptor: int | None = None
        if isinstance(message, Result) and message.result.get("descriptor") is True:
            descriptor = self._descriptors.popleft() if self._descriptors else None
        if call is None:  # cancelled meanwhile
            if descriptor is not None:
                os.close(descriptor)
            return
        call.descriptor = descriptor
        if isinstance(message, Event):
            call.events.append(message)
        else:
            call.answer = message
        call.woken.set()

    async def _send(self, message: ClientMessage) -> bool:
        """Return whether all of it was taken."""
        async with self._send_lock:
            self._raise_failure()
            # Nothing yields from here to the first byte: a call that is cancelled before it has
            # written anything leaves the connection as it was.
            await anyio.lowlevel.checkpoint_if_cancelled()
            if isinstance(message, Cancel) and message.id not in self._protocol.in_flight:
                return False
            unsent = memoryview(self._protocol.send(message))
            try:
                unsent = self._send_some(unsent)
                if unsent:
                    await with_grace(partial(self._send_rest, unsent), CANCEL_TIMEOUT_S)
            except (OSError, anyio.ClosedResourceError):
                return False  # reading tells more: the supervisor may have said why it closed
            except BaseException:  # half a frame was sent: the connection is of no more use
                self.fail(LostError())
                self._close()
                raise
            return True

    def _send_some(self, data: memoryview) -> memoryview:
        """Return what the kernel did not take."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data

    async def _send_rest(self, data: memoryview) -> None:
        """Write the rest of a frame. Half of one ends the connection, so a call that is cancelled
        meanwhile has `CANCEL_TIMEOUT_S` left for it.
        """
        while data:
            await anyio.wait_writable(self._socket)
            data = self._send_some(data)

    def fail(self, error: NsmError) -> None:
        """Give all that wait this error, and who comes later; the first one counts."""
        if self._failure is None:
            self._failure = error
        for call in self._calls.values():
            call.woken.set()

    def _raise_failure(self) -> None:
        # A new one each time: several tasks raise it, and tracebacks would grow into each other.
        if self._failure is not None:
            raise copy(self._failure)


class _Call:
    """A call that waits."""

    __slots__ = ("answer", "descriptor", "events", "takes_descriptor", "woken")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        """Taken by the call's task as soon as it runs; filled by whichever task reads."""
        self.answer: Result | Failure | None = None
        self.woken = anyio.Event()
        self.takes_descriptor = False
        self.descriptor: int | None = None

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def claim(self) -> int | Literal[False]:
        """The descriptor that came with the answer, from now on the caller's; false for none."""
        descriptor, self.descriptor = self.descriptor, None
        return False if descriptor is None else descriptor


async def with_grace(function: Callable[[], Awaitable[object]], grace_s: float) -> None:
    """Run a function that has `grace_s` seconds left when this is cancelled."""
    scope = anyio.CancelScope(shield=True)

    async def limit_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            scope.deadline = anyio.current_time() + grace_s

    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limit_when_cancelled)
        with scope:
            try:
                await function()
            except Exception as caught:  # noqa: BLE001  # the task group would put it into a group
                error = caught
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error
