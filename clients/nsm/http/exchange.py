"""One request and its answer, for an ASGI application (the ASGI specification, HTTP, 2.3).

The application never waits for a client that is gone: its further messages are dropped, and it gets
`http.disconnect`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
import trio

from nsm.http.access import Headers

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
"""An ASGI 3 application: takes a scope, and functions to receive and to send."""

Write = Callable[[h11.Event], Awaitable[None]]
"""Sends an event to the client; raises `trio.BrokenResourceError` if it is gone or too slow."""

_OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
"""Headers for the connection and not for the application (RFC 9110, 7.6.1)."""

_NOT_FOR_APPLICATIONS = frozenset((b"authorization", b"cookie", b"proxy-authorization"))
"""Secret headers, which reach neither application nor log."""


class Exchange:
    """One request and its answer.

    Args:
        request: head of the request.
        body: whole body of the request.
        headers: headers of the answer, besides those of the application.
        write: sends to the client.
    """

    def __init__(self, request: h11.Request, body: bytes, headers: Headers, write: Write) -> None:
        self._request = request
        self._body: bytes | None = body
        self._headers = headers
        self._write = write
        self._gone = trio.Event()
        self._begun = False
        self.whole = False

    def __repr__(self) -> str:
        return f"<Exchange {self._request.method!r} whole={self.whole}>"

    def client_gone(self) -> None:
        """Note that nobody waits for the answer any more."""
        self._gone.set()

    async def run(self, application: Application, *, client: str, scheme: str = "http") -> None:
        """Let the application answer. Afterwards `whole` says whether the answer was complete.

        Args:
            client: name of the client, for the application.
            scheme: scheme of the URL.
        """
        try:
            await application(self._scope(client, scheme), self._receive, self._send)
        except Exception:  # the fault of one request must not end the others
            log.exception("a request over HTTP failed")
            if not self._begun and not self._gone.is_set():
                await self._fail()
            self.whole = False  # nothing more over this connection

    async def _fail(self) -> None:
        body = b"nsm failed to answer; the log of this server has the details.\n"
        await self._send(
            {
                "type": "http.response.start",
                "status": 500,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    def _scope(self, client: str, scheme: str) -> dict[str, Any]:
        path, _, query = self._request.target.partition(b"?")
        headers = [
            (name, value)
            for name, value in self._request.headers
            if name not in _NOT_FOR_APPLICATIONS
        ]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode("ascii"),
            "method": self._request.method.decode("ascii"),
            "scheme": scheme,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": (client, 0),
            "server": None,
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            await trio.lowlevel.checkpoint()  # it may send without end
            return
        try:
            match message["type"]:
                case "http.response.start":
                    self._begun = True
                    await self._write(response(message["status"], self._answer_headers(message)))
                case "http.response.body":
                    if body := message.get("body", b""):
                        await self._write(h11.Data(data=body))
                    if not message.get("more_body", False):
                        await self._write(h11.EndOfMessage())
                        self.whole = True
                case _:
                    await trio.lowlevel.checkpoint()  # an extension that was not offered
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._gone.set()

    def _answer_headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        given = [
            (name, value)
            for name, value in message.get("headers", ())
            if name.lower() not in _OF_CONNECTIONS
        ]
        return [*given, *self._headers, (b"date", date())]


def response(status: int, headers: Headers) -> h11.Response:
    """Make the head of an answer, with the usual words for its status."""
    reason = HTTPStatus(status).phrase.encode()
    return h11.Response(status_code=status, headers=[*headers], reason=reason)


def date() -> bytes:
    """Time in the format of answers (RFC 9110, 6.6.1)."""
    return formatdate(usegmt=True).encode("ascii")
