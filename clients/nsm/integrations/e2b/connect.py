"""The Connect protocol as clients of E2B speak it: JSON, uncompressed.

Source: connectrpc.com/docs/protocol.

A stream is a row of frames: one byte of flags, four of length, then JSON. The last one has the flag
2, and an error if there is one.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from nsm.integrations.e2b.errors import RefusalError
from nsm.integrations.e2b.requests import object_of

if TYPE_CHECKING:
    from nsm.integrations.e2b.requests import HttpRequest

STREAM = "application/connect+json"

_HEAD = struct.Struct(">BI")
_COMPRESSED = 1
_LAST = 2


def frame(value: object, *, last: bool = False) -> bytes:
    """Make one frame."""
    data = json.dumps(value).encode()
    return _HEAD.pack(_LAST if last else 0, len(data)) + data


def frames_of(body: bytes) -> list[dict[str, Any]]:
    """Read the messages of a body.

    Raises:
        RefusalError: it is not made of whole frames of JSON.
    """
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
    """The one message of a request, whether it came in a frame or not.

    Raises:
        RefusalError: there is none, or several.
    """
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
    """The answer to a call that gets several messages.

    Args:
        request: the call.
    """

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
