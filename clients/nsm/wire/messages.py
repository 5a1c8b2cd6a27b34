"""The messages of the control protocol as values, and their form as maps.

A frame's kind is told by a key. A client sends

    {"hello": {...}}    {"id": 1, "op": "run", "args": {...}}    {"cancel": 1}

and a server

    {"hello": {...}}    {"id": 1, "event": "output", "data": {...}}
    {"id": 1, "result": {...}}    {"id": 1, "error": {"code", "message", "hint", "data"}}

Fields that nobody here knows are ignored: a newer peer of the same protocol version may send more.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from nsm.wire.decode import MISSING, DecodeError, decode
from nsm.wire.errors import BadRequestError, NsmError, from_wire
from nsm.wire.frames import RemoteProtocolError

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
