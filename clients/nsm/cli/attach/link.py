"""A connection to the supervisor for the tasks of one asyncio loop.

`nsm.AsyncClient` needs trio, and prompt_toolkit asyncio; here is as much of a client as a person
at a prompt needs. `Link` is a protocol in asyncio's sense: it is fed, and never waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from nsm import operations
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import BadRequestError, DisconnectedError, NsmError
from nsm.wire.frames import LocalProtocolError
from nsm.wire.messages import CONNECTION_ID, Cancel, Event, Failure, Hello, Request

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from nsm.wire.messages import ServerMessage

ANSWER_TIMEOUT_S = 10.0
"""How long the supervisor may take to introduce itself; as in `nsm.client`."""


class Call:
    """A request on its way.

    Attributes:
        answer: what comes of it; raises the `NsmError` that the supervisor answered. Waiting for it
            may be given up at any time: the request goes on.
    """

    def __init__(
        self,
        link: Link,
        id_: int,
        answer: asyncio.Future[dict[str, Any]],
        on_event: Callable[[Event], object] | None,
    ) -> None:
        self._link = link
        self._id = id_
        self.answer = answer
        self.on_event = on_event
        answer.add_done_callback(_seen)

    def __repr__(self) -> str:
        return f"<Call {self._id} {'answered' if self.answer.done() else 'waiting'}>"

    def cancel(self) -> None:
        """Ask the supervisor to end it early; the answer still comes."""
        self._link.cancel(self._id)


class Link(asyncio.Protocol):
    """The connection.

    Attributes:
        lost: done when the connection has ended; raises why.
    """

    def __init__(self, hello: Hello) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.lost.add_done_callback(_seen)
        self._introduced: asyncio.Future[None] = loop.create_future()
        self._hello = hello
        self._protocol = ClientConnection()
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, connection: socket.socket, *, name: str, scope: str) -> Link:
        """Introduce ourselves over a connected socket, which is the link's from here on.

        Raises:
            NsmError: the supervisor does not want us, or does not answer.
        """
        connection.setblocking(False)
        link = cls(operations.hello(name=name, scope=scope))
        await asyncio.get_running_loop().create_connection(lambda: link, sock=connection)
        waiting = {link._introduced, link.lost}
        done, _ = await asyncio.wait(
            waiting, timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            link.close()
            raise DisconnectedError(
                f"the supervisor has not answered within {ANSWER_TIMEOUT_S:.0f} s",
                hint="It is stopped or stuck. Its log says more.",
            )
        done.pop().result()
        return link

    def __repr__(self) -> str:
        return f"<Link {'lost' if self.lost.done() else 'open'} calls={len(self._calls)}>"

    def begin(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> Call:
        """Send a request.

        Args:
            on_event: called with what comes before the answer; it must not raise.
        """
        id_ = self._protocol.new_id()
        call = Call(self, id_, asyncio.get_running_loop().create_future(), on_event)
        if self.lost.done():
            call.answer.set_exception(cast("BaseException", self.lost.exception()))
            return call
        try:
            data = self._protocol.send(Request(id_, op, args or {}))
        except LocalProtocolError as error:  # more than fits into a frame was pasted
            call.answer.set_exception(BadRequestError(str(error)))
            return call
        self._calls[id_] = call
        self._write(data)
        return call

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

    def cancel(self, id_: int) -> None:
        """Ask the supervisor to end a request early."""
        if id_ in self._calls and not self.lost.done():
            self._write(self._protocol.send(Cancel(id_)))

    def close(self) -> None:
        """Close the connection. What runs in sessions goes on."""
        if self._transport is not None:
            self._transport.abort()

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
        """Tell everybody who waits."""
        self._lose(
            DisconnectedError(
                "the supervisor closed the connection",
                hint="It was ended or has crashed; its log says more.",
            )
        )

    def _deliver(self, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            if not self._introduced.done():
                self._introduced.set_result(None)
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
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
        self._calls.clear()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None, "there is no link before it is connected"
        self._transport.write(data)


def _seen(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from complaining about errors that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
