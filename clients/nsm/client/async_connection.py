"""One connection of the async client: many calls at once, until it ends."""

from __future__ import annotations

import os
from collections import deque
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel

from nsm.client.passing import receive_passing
from nsm.client.retry import LostError
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import DisconnectedError, NsmError, ShuttingDownError
from nsm.wire.messages import CONNECTION_ID, Cancel, Event, Failure, Hello, Request, Result

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from typing import Any

    from nsm.wire.messages import ClientMessage, ServerMessage

ANSWER_TIMEOUT_S = 30.0
"""How long the supervisor may take to introduce itself, or to end after it said that it will."""

CANCEL_TIMEOUT_S = 1.0
"""How long a cancelled call may still write: the rest of its frame, and its `cancel`."""

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
