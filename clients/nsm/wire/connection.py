"""The state machine of each end of a control connection, in the manner of h11.

Three methods and no I/O:

    receive_data(data)   what was read from the socket
    next_message()       the next message in it, or None until more comes
    send(message)        the bytes to write for a message

`LocalProtocolError` from any of them is a bug of the caller and changes nothing: another message
may be sent instead. `RemoteProtocolError` is the peer's fault and final; anything else is a bug
here. A server may still send ``Failure(id=CONNECTION_ID, error=that_error)`` and then closes.

Rules that both ends hold each other to: hello comes first in each direction, once; an id is in
flight from its request until its one answer; what is sent for an id that is not in flight is
refused, but for a cancel that crossed its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nsm.wire.errors import OverloadedError
from nsm.wire.frames import (
    MAX_FRAME_BYTES,
    FrameReader,
    LocalProtocolError,
    RemoteProtocolError,
    encode_frame,
)
from nsm.wire.messages import (
    CONNECTION_ID,
    Cancel,
    Event,
    Failure,
    Hello,
    Invalid,
    Request,
    Result,
    from_client,
    from_server,
    is_request_id,
    to_wire,
)

if TYPE_CHECKING:
    from typing import Any

    from nsm.wire.messages import ClientMessage, ServerMessage

MAX_HELLO_BYTES = 64 * 1024
"""Largest first frame: thousands of connections that never introduce themselves cost little."""

MAX_IN_FLIGHT = 1024
"""Requests of one connection without an answer; more are refused as overload, one by one."""


def sniff(first: bytes) -> Literal["attachment", "frames"]:
    """Tell an MCP attachment from the control protocol by the first byte that a client sends.

    An attachment opens with a line of JSON. `{` can't begin a frame: as the high byte of a length
    it would announce two gigabytes.

    Args:
        first: first bytes that were read; at least one.
    """
    return "attachment" if first.startswith(b"{") else "frames"


class _Connection:
    """State and checks that both ends share."""

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_HELLO_BYTES)
        self._in_flight: set[int] = set()
        self._failure: RemoteProtocolError | None = None
        self._our_hello: Hello | None = None
        self._their_hello: Hello | None = None
        self._ended = False

    def __repr__(self) -> str:
        peer = self._their_hello.name if self._their_hello else "stranger"
        state = "failed" if self._failure else "open"
        return f"<{type(self).__name__} {state} peer={peer!r} in_flight={len(self._in_flight)}>"

    @property
    def in_flight(self) -> frozenset[int]:
        """Ids of requests that have no answer yet."""
        return frozenset(self._in_flight)

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take bytes that came from the peer; empty bytes mean end-of-file.

        Raises:
            LocalProtocolError: too much was fed without taking messages.
        """
        if not data:
            self._ended = True
        elif self._failure is None:
            self._reader.feed(data)

    def _next_frame(self) -> dict[str, Any] | None:
        frame = self._reader.next_frame()
        if frame is None and self._ended and self._reader:
            raise RemoteProtocolError("the connection ended in the middle of a frame")
        return frame

    def _take_hello(self, hello: Hello) -> Hello:
        if self._their_hello is not None:
            raise RemoteProtocolError("a second `hello` came")
        self._their_hello = hello
        self._reader.limit = MAX_FRAME_BYTES
        return hello

    def _require_hello(self) -> None:
        if self._their_hello is None:
            raise RemoteProtocolError(
                "the first frame is not `hello`", hint='Send {"hello": {"version": 1, ...}} first.'
            )

    def _check_hello_sent(self, message: ClientMessage | ServerMessage) -> None:
        if isinstance(message, Hello) == (self._our_hello is not None):
            raise LocalProtocolError("`hello` is sent first, and once")
        if self._failure is not None:
            raise LocalProtocolError(f"the connection has failed: {self._failure}")


class ServerConnection(_Connection):
    """The supervisor's end of one connection.

    Example::

        connection = ServerConnection()
        connection.receive_data(data)
        while (message := connection.next_message()) is not None:
            match message:
                case Hello(scope=scope): write(connection.send(Hello(...)))
                case Request(id=id_, op=op, args=args): ...
                case Cancel(id=id_): ...
                case Invalid(id=id_, error=error): write(connection.send(Failure(id_, error)))
    """

    def next_message(self) -> Hello | Request | Cancel | Invalid | None:
        """The client's next message, or None until more bytes come.

        `Invalid` is to be answered at once with its error. A cancel whose request has been
        answered is dropped.

        Raises:
            RemoteProtocolError: the client broke the protocol; from now on each call raises it.
        """
        if self._failure is not None:
            raise self._failure
        try:
            while (frame := self._next_frame()) is not None:
                message = self._take(from_client(frame))
                if message is not None:
                    return message
        except RemoteProtocolError as error:
            self._failure = error
            raise
        return None

    def _take(
        self, message: Hello | Request | Cancel | Invalid
    ) -> Hello | Request | Cancel | Invalid | None:
        if isinstance(message, Hello):
            return self._take_hello(message)
        self._require_hello()
        if isinstance(message, Cancel):
            return message if message.id in self._in_flight else None
        if message.id == CONNECTION_ID:
            return message
        if message.id in self._in_flight:
            raise RemoteProtocolError(
                f"request id {message.id} is in flight already",
                hint="Use a new id for each request.",
            )
        # An Invalid's id counts as well: it gets an answer, and only that ends it.
        self._in_flight.add(message.id)
        if isinstance(message, Request) and len(self._in_flight) > MAX_IN_FLIGHT:
            return Invalid(
                message.id,
                OverloadedError(
                    f"this connection has {MAX_IN_FLIGHT} requests without an answer",
                    hint="Wait for answers before asking for more.",
                ),
            )
        return message

    def send(self, message: ServerMessage) -> bytes:
        """The bytes to write for a message.

        Raises:
            LocalProtocolError: the message may not be sent now, or does not fit into a frame;
                nothing has changed, and another answer may be sent in its place.
        """
        if isinstance(message, Failure) and message.id == CONNECTION_ID:
            return encode_frame(to_wire(message))
        self._check_hello_sent(message)
        if isinstance(message, Hello):
            data = encode_frame(to_wire(message))
            self._our_hello = message
            return data
        if message.id not in self._in_flight:
            raise LocalProtocolError(f"no request {message.id} is in flight")
        data = encode_frame(to_wire(message))
        if not isinstance(message, Event):
            self._in_flight.discard(message.id)
        return data


class ClientConnection(_Connection):
    """A client's end of one connection.

    Example::

        connection = ClientConnection()
        write(connection.send(Hello(name="nsm", program_version="0.1.0", scope="cli")))
        write(connection.send(Request(connection.new_id(), "ping", {})))
        connection.receive_data(read())
        message = connection.next_message()
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_id = 0

    def new_id(self) -> int:
        """An id that no request of this connection has had from here."""
        self._last_id += 1
        return self._last_id

    def next_message(self) -> Hello | Result | Failure | Event | None:
        """The server's next message, or None until more bytes come.

        ``Failure(CONNECTION_ID, error)`` concerns everything in flight; the server closes.

        Raises:
            RemoteProtocolError: the server broke the protocol; from now on each call raises it.
        """
        if self._failure is not None:
            raise self._failure
        try:
            while (frame := self._next_frame()) is not None:
                message = from_server(frame)
                if message is not None:
                    return self._take(message)
        except RemoteProtocolError as error:
            self._failure = error
            raise
        return None

    def _take(self, message: ServerMessage) -> ServerMessage:
        if isinstance(message, Hello):
            return self._take_hello(message)
        if message.id == CONNECTION_ID:  # allowed before `hello`: the server may refuse ours
            return message
        self._require_hello()
        if message.id not in self._in_flight:
            raise RemoteProtocolError(f"the server answered request {message.id}, never asked")
        if not isinstance(message, Event):
            self._in_flight.discard(message.id)
        return message

    def send(self, message: ClientMessage) -> bytes:
        """The bytes to write for a message.

        Raises:
            LocalProtocolError: the message may not be sent now, or does not fit into a frame;
                nothing has changed.
        """
        self._check_hello_sent(message)
        if isinstance(message, Cancel) and message.id not in self._in_flight:
            raise LocalProtocolError(f"request {message.id} is not in flight, nothing to cancel")
        if isinstance(message, Request):
            if not is_request_id(message.id):
                raise LocalProtocolError(f"{message.id!r} is not a request id")
            if message.id in self._in_flight:
                raise LocalProtocolError(f"request id {message.id} is in flight already")
        data = encode_frame(to_wire(message))
        if isinstance(message, Hello):
            self._our_hello = message
        elif isinstance(message, Request):
            self._in_flight.add(message.id)
        return data
