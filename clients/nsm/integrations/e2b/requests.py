"""One request, as the handlers see it, and answers to it (ASGI)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

import trio

from nsm.integrations.e2b.errors import RefusalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.http.exchange import Receive, Send

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
        """The body as a JSON object; an empty body is an empty object.

        Raises:
            RefusalError: it is none.
        """
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
    """Read a JSON object.

    Raises:
        RefusalError: it is none.
    """
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
    """A text in a JSON object.

    Raises:
        RefusalError: it is something else, or missing without a default.
    """
    value = values.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise RefusalError("invalid_argument", f"{name} must be a text")
    return value


def number(values: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number in a JSON object.

    Raises:
        RefusalError: it is something else.
    """
    value = values.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise RefusalError("invalid_argument", f"{name} must be a whole number")
    return value


def inner(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in a JSON object; empty if it is missing.

    Raises:
        RefusalError: it is something else.
    """
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusalError("invalid_argument", f"{name} must be an object")
    return cast("dict[str, Any]", value)


def texts(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of texts in a JSON object; empty if it is missing.

    Raises:
        RefusalError: it is something else.
    """
    found = inner(values, name)
    for key, value in found.items():
        if not isinstance(value, str):
            raise RefusalError("invalid_argument", f"{name}.{key} must be a text")
    return found
