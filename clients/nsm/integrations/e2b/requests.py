"""One request, as the handlers see it, and answers to it (ASGI), also by Connect.

What reads a request raises a `RefusalError` for what is wrong with it.

Connect (connectrpc.com/docs/protocol) is spoken as clients of E2B do: JSON, uncompressed. A stream
is a row of frames: one byte of flags, four of length, then JSON. The last one has the flag 2, and
an error if there is one.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

import trio

from nsm.integrations.e2b.errors import RefusalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.http.connection import Receive, Send

MAX_JSON_BYTES = 16 * 1024 * 1024
"""Largest body that is read as JSON. Only files may be larger."""


class HttpRequest:
    """One request.

    Attributes:
        method: its method.
        path: its path, decoded.
        query: its parameters; of equal names, the last.
        headers: names in lower case; of equal names, the last.
        body: all of it.
    """

    def __init__(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=100))
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.body = body
        self._receive = receive
        self._send = send

    def __repr__(self) -> str:
        return f"<HttpRequest {self.method} {self.path}>"

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        return object_of(self.body) if self.body else {}

    async def gone(self) -> None:
        """Return when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(
        self,
        status: int,
        value: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a JSON value, or with nothing."""
        body = b"" if value is None else json.dumps(value).encode()
        kind = {} if value is None else {"content-type": "application/json"}
        if status != 204:
            kind["content-length"] = str(len(body))
        await self.begin(status, {**kind, **(headers or {})})
        await self.end(body)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer; `write` and `end` send its body."""
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self._send({"type": "http.response.body", "body": data})

    async def while_there(self, function: Any, *args: Any) -> None:
        """Call a function, and cancel it when the client goes."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            try:
                await function(*args)
            except Exception as error:  # noqa: BLE001  # raised below, not as one of a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        await self.gone()
        scope.cancel()


def object_of(data: bytes) -> dict[str, Any]:
    """Read a JSON object."""
    if len(data) > MAX_JSON_BYTES:
        raise RefusalError("invalid_argument", f"a body of JSON has at most {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusalError("invalid_argument", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusalError("invalid_argument", "the body is not a JSON object")
    return cast("dict[str, Any]", value)


def text(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text in a JSON object."""
    value = values.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise RefusalError("invalid_argument", f"{name} must be a text")
    return value


def number(values: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number in a JSON object."""
    value = values.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise RefusalError("invalid_argument", f"{name} must be a whole number")
    return value


def inner(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in a JSON object; empty if it is missing."""
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusalError("invalid_argument", f"{name} must be an object")
    return cast("dict[str, Any]", value)


def texts(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of texts in a JSON object; empty if it is missing."""
    found = inner(values, name)
    for key, value in found.items():
        if not isinstance(value, str):
            raise RefusalError("invalid_argument", f"{name}.{key} must be a text")
    return found


STREAM = "application/connect+json"

_HEAD = struct.Struct(">BI")
_COMPRESSED = 1
_LAST = 2


def frame(value: object, *, last: bool = False) -> bytes:
    """Make one frame."""
    data = json.dumps(value).encode()
    return _HEAD.pack(_LAST if last else 0, len(data)) + data


def frames_of(body: bytes) -> list[dict[str, Any]]:
    """Read the messages of a body."""
    messages: list[dict[str, Any]] = []
    place = 0
    while place < len(body):
        if len(body) - place < _HEAD.size:
            raise RefusalError("invalid_argument", "the body ends within a frame")
        flags, length = _HEAD.unpack_from(body, place)
        place += _HEAD.size
        if len(body) - place < length:
            raise RefusalError("invalid_argument", "the body ends within a frame")
        if flags & _COMPRESSED:
            raise RefusalError("unimplemented", "compressed frames are not supported")
        if flags & _LAST:
            break
        messages.append(object_of(body[place : place + length]))
        place += length
    return messages


def message_of(request: HttpRequest) -> dict[str, Any]:
    """The one message of a request, whether it came in a frame or not."""
    if not is_stream(request):
        return request.json()
    messages = frames_of(request.body)
    if len(messages) != 1:
        raise RefusalError("invalid_argument", "one message was expected")
    return messages[0]


def is_stream(request: HttpRequest) -> bool:
    """True if the answer has to be a stream."""
    kind: str = request.headers.get("content-type", "")
    return kind.partition(";")[0].strip() == STREAM


def error_of(refusal: RefusalError) -> dict[str, str]:
    """An error as Connect has it."""
    return {"code": refusal.connect_code, "message": refusal.message}


class ConnectStream:
    """The answer to a call that gets several messages."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.begun = False

    async def send(self, value: object) -> None:
        """Send a message."""
        await self._begin()
        await self._request.write(frame(value))

    async def end(self, refusal: RefusalError | None = None) -> None:
        """End the stream."""
        await self._begin()
        value = {} if refusal is None else {"error": error_of(refusal)}
        await self._request.end(frame(value, last=True))

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._request.begin(200, {"content-type": STREAM})
