"""A connection to the supervisor for the tasks of one asyncio loop.

`nsm.AsyncClient` needs trio, and prompt_toolkit asyncio; here is as much of a client as a person
at a prompt needs. `Link` is a protocol in asyncio's sense: it is fed, and never waits.

After a lost connection, a client connects again and repeats what it asked (`nsm.client.retry`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from nsm.client.events import rows_of, rows_to
from nsm.client.retry import RECONNECTED, LostError, RetriedCall, hello
from nsm.startup import start
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import BadRequestError, DisconnectedError, NotRunningError, NsmError
from nsm.wire.frames import LocalProtocolError
from nsm.wire.messages import CONNECTION_ID, Cancel, Event, Failure, Hello, Request

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from nsm.wire.messages import ServerMessage
    from nsm.wire.sessions import SessionRow

ANSWER_TIMEOUT_S = 30.0
"""How long the supervisor may take to introduce itself; as in `nsm.client.blocking_connection`."""


class PendingRequest:
    """A request on its way.

    Attributes:
        answer: waits for the answer; raises the `NsmError` that the supervisor sent. A caller may
            stop waiting at any time: the request continues.
    """

    def __init__(
        self,
        link: Link,
        op: str,
        args: dict[str, Any],
        on_event: Callable[[Event], object] | None,
    ) -> None:
        self._link = link
        self.op = op
        self.asked = RetriedCall(op, args)
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.on_event = on_event
        self.id = 0  # on the connection that there is; 0 before it was sent over one
        self.cancelled = False
        self.answer.add_done_callback(_seen)

    def __repr__(self) -> str:
        return f"<PendingRequest {self.id} {'answered' if self.answer.done() else 'waiting'}>"

    def cancel(self) -> None:
        """Ask the supervisor to end it early; the answer still comes."""
        self.cancelled = True
        self._link.cancel(self)

    def means(self, target: str) -> None:
        """Pin the session, in case the call is sent again: its name may be another's then."""
        self.asked.args = {**self.asked.args, "target": target}

    def fail(self, error: NsmError) -> None:
        """End the wait for an answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Link(asyncio.Protocol):
    """The connection, and those that take its place.

    Args:
        path: path of the socket, to connect again; None for no new connection.

    Attributes:
        lost: done when the connection has ended for good; raises why.
    """

    def __init__(self, hello: Hello, path: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.lost.add_done_callback(_seen)
        self._introduced: asyncio.Future[Hello] = loop.create_future()
        self._hello = hello
        self._instance = ""
        self._path = path
        self._protocol = ClientConnection()
        self._calls: dict[int, PendingRequest] = {}
        self._waiting: list[PendingRequest] = []  # for another connection
        self._reopening: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls,
        connection: socket.socket,
        *,
        name: str,
        scope: str,
        path: str | None = None,
        project: str | None = None,
    ) -> Link:
        """Introduce ourselves over a connected socket, which is the link's from here on.

        Args:
            path: socket to connect to again; None to stay without a connection.
            project: whose sessions names mean first.

        Raises:
            NsmError: the supervisor does not want us, or does not answer.
        """
        link = cls(hello(name=name, scope=scope, project=project, path=path))
        await link._introduce(connection)
        link._path = path
        return link

    async def _introduce(self, connection: socket.socket) -> Hello:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        self._protocol = ClientConnection()
        self._introduced = loop.create_future()
        self._introduced.add_done_callback(_seen)
        await loop.create_connection(lambda: self, sock=connection)
        waiting: set[asyncio.Future[Any]] = {self._introduced, self.lost}
        done, _ = await asyncio.wait(
            waiting, timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            self.close()
            raise DisconnectedError(
                f"the supervisor has not answered within {ANSWER_TIMEOUT_S:.0f} s",
                hint="It is stopped or stuck. Its log says more.",
            )
        if self._introduced in done:
            return self._introduced.result()
        raise cast("BaseException", self.lost.exception())

    def __repr__(self) -> str:
        return f"<Link {'lost' if self.lost.done() else 'open'} calls={len(self._calls)}>"

    def begin(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> PendingRequest:
        """Send a request.

        Args:
            on_event: called with what comes before the answer; it must not raise.
        """
        call = PendingRequest(self, op, args or {}, on_event)
        if self.lost.done():
            call.answer.set_exception(cast("BaseException", self.lost.exception()))
        elif self._reopening is not None:
            self._waiting.append(call)
        else:
            self._send(call)
        return call

    def _send(self, call: PendingRequest) -> None:
        call.id = self._protocol.new_id()
        try:
            data = self._protocol.send(Request(call.id, call.op, call.asked.args))
        except LocalProtocolError as error:  # more than fits into a frame was pasted
            call.fail(BadRequestError(str(error)))
            return
        self._calls[call.id] = call
        self._write(data)
        if call.cancelled:
            self.cancel(call)

    async def call(
        self, op: str, args: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            timeout_s: seconds; what comes later is dropped.

        Raises:
            NsmError: what the supervisor answered.
            TimeoutError: nothing, in that time.
        """
        answer = self.begin(op, args).answer
        return await asyncio.wait_for(asyncio.shield(answer), timeout_s)

    async def sessions(self) -> list[SessionRow]:
        """Ask for all live sessions.

        Raises:
            NsmError: what the supervisor answered.
        """
        rows: list[object] = []
        call = self.begin("sessions", {"stream": True}, rows_to(rows))
        return rows_of(rows, await call.answer)

    def cancel(self, call: PendingRequest) -> None:
        """Ask the supervisor to end a request early."""
        if self._calls.get(call.id) is call and not self.lost.done():
            self._write(self._protocol.send(Cancel(call.id)))

    def close(self) -> None:
        """Close the connection. What runs in sessions goes on."""
        self._path = None
        if self._reopening is not None:
            self._reopening.cancel()
        if self._transport is not None:
            self._transport.abort()

    # Another connection in place of one that was lost.

    async def _reopen(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, path = loop.time(), self._path
        assert path is not None, "without a path there is no new connection"
        calls, self._calls = [*self._calls.values()], {}
        for call in calls:
            try:
                call.asked.lost(LostError(instance=self._instance))
            except DisconnectedError as error:
                call.fail(error)
            else:
                self._waiting.append(call)
        while True:
            try:
                connect = partial(start.connect, path, again=True)
                await self._introduce(await loop.run_in_executor(None, connect))
                break
            except (NotRunningError, LostError) as error:
                pause_s = start.pause_after(error, path, loop.time() - began_s)
                if pause_s is None:
                    self._lose(error)
                    return
            except (NsmError, OSError) as error:
                self._lose(error if isinstance(error, NsmError) else DisconnectedError(str(error)))
                return
            await asyncio.sleep(pause_s)
        self._reopening = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._ask_again(call)

    def _ask_again(self, call: PendingRequest) -> None:
        if call.answer.done():  # given up
            return
        if call.asked.arrived and call.on_event is not None:
            call.on_event(Event(CONNECTION_ID, RECONNECTED, {}))
        self._send(call)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast("asyncio.Transport", transport)
        self._write(self._protocol.send(self._hello))

    def data_received(self, data: bytes) -> None:
        """Hand on what came."""
        try:
            self._protocol.receive_data(data)
            while (message := self._protocol.next_message()) is not None:
                self._deliver(message)
        except NsmError as error:
            self._lose(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        """Look for another supervisor, or tell everybody who waits."""
        self._transport = None
        if self._reopening is not None:  # that one was ending, too
            if not self._introduced.done():
                self._introduced.set_exception(LostError())
        elif self._path is None or self.lost.done():
            self._lose(LostError())
        else:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    def _deliver(self, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            self._instance = message.instance
            if not self._introduced.done():
                self._introduced.set_result(message)
        elif isinstance(message, Failure) and message.id == CONNECTION_ID:
            self._lose(message.error)
        elif isinstance(message, Event):
            call = self._calls[message.id]
            if call.on_event is not None:
                call.on_event(message)
        else:
            answer = self._calls.pop(message.id).answer
            if answer.done():  # given up
                return
            if isinstance(message, Failure):
                answer.set_exception(message.error)
            else:
                answer.set_result(message.result)

    def _lose(self, error: NsmError) -> None:
        if self.lost.done():
            return
        self.lost.set_exception(error)
        for call in [*self._calls.values(), *self._waiting]:
            call.fail(error)
        self._calls.clear()
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:  # else it has just been lost, which asyncio tells next
            self._transport.write(data)


def _seen(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from complaining about errors that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
