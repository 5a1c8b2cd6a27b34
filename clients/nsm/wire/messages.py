"""The messages of the control protocol as values, their form as maps, and which may come when.

A frame's kind is told by a key. A client sends

    {"hello": {...}}    {"id": 1, "op": "run", "args": {...}}    {"cancel": 1}

and a server

    {"hello": {...}}    {"id": 1, "event": "output", "data": {...}}
    {"id": 1, "result": {...}}    {"id": 1, "error": {"code", "message", "hint", "data"}}

Fields that nobody here knows are ignored: a newer peer of the same protocol version may send more.

`ClientConnection` and `ServerConnection` are the state machine of each end, in the manner of h11.
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

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar, cast

from nsm.wire.decode import MISSING, DecodeError, decode
from nsm.wire.errors import BadRequestError, NsmError, OverloadedError, from_wire
from nsm.wire.frames import (
    MAX_FRAME_BYTES,
    FrameReader,
    LocalProtocolError,
    RemoteProtocolError,
    encode_frame,
)
from nsm.wire.tuples import NamedTuple

PROTOCOL_VERSION = 1

CONNECTION_ID = 0
"""The id in an error that concerns the connection and not one request."""

RESUMES = "resumes"
"""Capability of a client that comes back after a lost connection, and asks again for the code that
was under way: until then, that goes on."""

MAX_REQUEST_ID = 2**63 - 1


class Hello(NamedTuple):
    """Introduces a peer; the first message in each direction.

    Attributes:
        name, program_version: the peer's program, e.g. ``nsm`` and ``0.1.0``.
        scope: name space of the client's session names; empty from a server.
        capabilities: capabilities of the peer beyond this protocol version's base.
        pid: the server's process id; None from a client.
        rights: rights of the connection (``read``, ``run``, ``manage``); from a client, the only
            ones that it wants, or empty for all.
        inherit: names of variables whose values the server wants with code for the project's own
            shell; empty from a client.
        version: protocol version.
        project: directory whose sessions a client's names mean first; empty for none.
        instance: the server's, from its start to its end or reload; empty from a client.
    """

    name: str = ""
    program_version: str = ""
    scope: str = ""
    capabilities: tuple[str, ...] = ()
    pid: int | None = None
    rights: tuple[str, ...] = ()
    inherit: tuple[str, ...] = ()
    version: int = PROTOCOL_VERSION
    project: str = ""
    instance: str = ""


class Request(NamedTuple):
    """A client asks for an operation; `id` is the client's choice, positive, new on its
    connection as long as the answer has not come."""

    id: int
    op: str
    args: dict[str, Any]


class Cancel(NamedTuple):
    """A client no longer wants request `id` to go on; its answer still comes."""

    id: int


class Result(NamedTuple):
    """The answer to request `id`."""

    id: int
    result: dict[str, Any]


class Failure(NamedTuple):
    """The answer to request `id` when it could not be carried out.

    With `CONNECTION_ID` it says why the server is about to close the connection.
    """

    id: int
    error: NsmError


class Event(NamedTuple):
    """Something that happened while request `id` is carried out."""

    id: int
    event: str
    data: dict[str, Any]


class Invalid(NamedTuple):
    """Frame that is valid but no message; a server sees this value in its place.

    The server answers ``Failure(id=id, error=error)`` and goes on; `id` is the request's where it
    has a usable one, else `CONNECTION_ID`.
    """

    id: int
    error: NsmError


ClientMessage: TypeAlias = Hello | Request | Cancel
"""Message of a client."""

ServerMessage: TypeAlias = Hello | Result | Failure | Event
"""Message of a server."""


def to_wire(message: ClientMessage | ServerMessage) -> dict[str, Any]:
    """The map that travels for a message."""
    match message:
        case Hello():
            return {"hello": _hello_to_wire(message)}
        case Request(id=id_, op=op, args=args):
            return {"id": id_, "op": op, "args": args}
        case Cancel(id=id_):
            return {"cancel": id_}
        case Result(id=id_, result=result):
            return {"id": id_, "result": result}
        case Failure(id=id_, error=error):
            return {"id": id_, "error": error.to_wire()}
        case Event(id=id_, event=event, data=data):
            return {"id": id_, "event": event, "data": data}


def from_client(frame: Mapping[str, Any]) -> Hello | Request | Cancel | Invalid:
    """Decode a client's frame.

    Raises:
        RemoteProtocolError: a hello that is not one.
    """
    if "hello" in frame:
        return _hello_from_wire(frame["hello"])
    if "cancel" in frame:
        id_ = frame["cancel"]
        return Cancel(id_) if is_request_id(id_) else _invalid(frame, "`cancel` must be an id")
    op: Any = frame.get("op")
    args: Any = frame.get("args", {})
    if not is_request_id(frame.get("id")):
        return _invalid(frame, f"`id` must be an integer from 1 to {MAX_REQUEST_ID}")
    if not isinstance(op, str) or not op:
        return _invalid(frame, "`op` must name an operation")
    if not isinstance(args, dict):
        return _invalid(frame, "`args` must be a map")
    return Request(frame["id"], op, args)


def from_server(frame: Mapping[str, Any]) -> Hello | Result | Failure | Event | None:
    """Decode a server's frame; None for a kind that this version does not know.

    Raises:
        RemoteProtocolError: a known kind with fields of the wrong type.
    """
    if "hello" in frame:
        return _hello_from_wire(frame["hello"])
    id_ = frame.get("id")
    if "error" in frame:
        if id_ != CONNECTION_ID and not is_request_id(id_):
            raise RemoteProtocolError("the server sent an error without a request's id")
        return Failure(cast("int", id_), from_wire(frame["error"]))
    for key in ("result", "event"):
        if key in frame and not is_request_id(id_):
            raise RemoteProtocolError(f"the server sent `{key}` without a request's id")
    if "result" in frame:
        return Result(cast("int", id_), _map(frame["result"], "result"))
    if "event" in frame:
        event = frame["event"]
        if not isinstance(event, str):
            raise RemoteProtocolError("the server sent an event whose name is not text")
        return Event(cast("int", id_), event, _map(frame.get("data"), "data"))
    return None


def is_request_id(value: object) -> bool:
    """Return whether a value may be the id of a request."""
    return type(value) is int and 0 < value <= MAX_REQUEST_ID


def _invalid(frame: Mapping[str, Any], why: str) -> Invalid:
    id_ = frame.get("id")
    return Invalid(
        cast("int", id_) if is_request_id(id_) else CONNECTION_ID,
        BadRequestError(
            f"the request is malformed: {why}",
            hint='Requests are {"id": 1, "op": "ping", "args": {}}.',
        ),
    )


def _map(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"the server sent `{key}` that is not a map")
    return cast("dict[str, Any]", value)


def _hello_to_wire(hello: Hello) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "version": hello.version,
        "capabilities": list(hello.capabilities),
        "name": hello.name,
        "program_version": hello.program_version,
        "scope": hello.scope,
    }
    if hello.project:
        wire["project"] = hello.project
    if hello.instance:
        wire["instance"] = hello.instance
    if hello.pid is not None:
        wire["pid"] = hello.pid
    if hello.rights or hello.pid is not None:
        wire["rights"] = list(hello.rights)
    if hello.inherit:
        wire["inherit"] = list(hello.inherit)
    return wire


def _hello_from_wire(value: object) -> Hello:
    try:
        version = decode(_Versioned, value).version
        if version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the peer speaks version {version} of the control protocol, "
                f"this program version {PROTOCOL_VERSION}",
                hint="Install one version of nsm and restart the supervisor.",
            )
        return decode(Hello, value)
    except DecodeError as error:
        raise RemoteProtocolError(f"in `hello`, {error}") from None


class _Versioned(NamedTuple):
    version: int


T = TypeVar("T")


def read(kind: type[T], wire: Any, key: str = "") -> T:
    """The value of that type that a supervisor sent.

    Args:
        key: key of its field; without one, it is the whole of `wire`.

    Raises:
        RemoteProtocolError: a field is missing or of another type; the message names it.
    """
    try:
        return decode(kind, wire.get(key, MISSING) if key else wire)
    except DecodeError as error:
        path = error.within(key).path
        found = "nothing" if error.missing else type(error.found).__name__
        raise RemoteProtocolError(
            f"the supervisor sent {found} for `{path}` ({kind.__name__}); expected "
            f"{error.expected}",
            hint="Is an older or newer supervisor running? `nsm shutdown` ends it.",
        ) from None


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
