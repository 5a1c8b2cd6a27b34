"""Admission of clients by the head of a request; no I/O but a look at the token's file.

A port of loopback can be reached by every user of the machine, and by every web page in a browser
of its user: one that was made to believe that its own name is this machine's (DNS rebinding) says
that name in `Host`, and any other its own in `Origin`. Both are checked first, then the token, if
one is asked for; nobody without it learns what is here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from nsmd.http.token import TokenFile

PATH = b"/mcp"
METHODS = (b"POST", b"GET", b"DELETE")

_BEARER = b"bearer"

Headers = Sequence[tuple[bytes, bytes]]
"""Names in small letters, and values."""

_CORS_HEADERS = (
    b"authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, "
    b"mcp-method, mcp-name"
)
"""That scripts of configured origins may send."""

PREFLIGHT_S = b"600"
"""For which browsers need not ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to a request that does not reach the endpoint.

    Attributes:
        status: of HTTP.
        text: for people; one line.
        headers: beside those of every answer.
        why: for the log and the counts; empty for what is no refusal.
    """

    status: HTTPStatus
    text: str = ""
    headers: Headers = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A request that is let in.

    Attributes:
        headers: that its answer has beside those of the endpoint.
    """

    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCheck:
    """Admission of clients by the head of a request.

    Args:
        hosts: what `Host` may be, in small letters; None for anything, where no browser comes.
        own_origins: of pages that came from here, of which there are none.
        origins: of other pages that may ask from a browser.
        secret: whoever has it is let in; None lets in everybody.
        path: there is nothing else.
        methods: by which one may ask for it; the first is the usual one.
        headers: of answers to those who are let in.
    """

    hosts: Collection[str] | None
    own_origins: Collection[str] = ()
    origins: Collection[str] = ()
    secret: TokenFile | None = field(default=None, repr=False)
    path: bytes = PATH
    methods: Sequence[bytes] = METHODS
    headers: Headers = ()

    def check(self, method: bytes, target: bytes, headers: Headers) -> Passed | Answer:
        """Let a request in, or say how it is answered.

        Args:
            method, target, headers: of its head.
        """
        if self.hosts is not None:
            hosts = _all(headers, b"host")
            if len(hosts) != 1 or _text(hosts[0]) not in self.hosts:
                return _no(HTTPStatus.FORBIDDEN, "This Host is not served here.", "host")
        given = _all(headers, b"origin")
        origin = _text(given[0]) if given else None
        if len(given) > 1 or (
            origin is not None and origin not in self.origins and origin not in self.own_origins
        ):
            return _no(HTTPStatus.FORBIDDEN, "Pages of this Origin may not ask here.", "origin")
        shared = _shared(given[0]) if origin in self.origins else ()
        if method == b"OPTIONS" and shared:
            return Answer(status=HTTPStatus.NO_CONTENT, headers=(*shared, *_PREFLIGHT))
        return self._check_token(method, target, headers, shared)

    def _check_token(
        self, method: bytes, target: bytes, headers: Headers, shared: Headers
    ) -> Passed | Answer:
        given = _all(headers, b"authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if self.secret is not None and (
            scheme.lower() != _BEARER or not self.secret.matches(token.strip(b" "))
        ):
            # RFC 6750, 3.1: who showed nothing is told nothing more.
            challenge = b'Bearer error="invalid_token"' if given else b"Bearer"
            return Answer(
                status=HTTPStatus.UNAUTHORIZED,
                text="A bearer token is needed.",
                headers=(*shared, (b"www-authenticate", challenge)),
                why="token",
            )
        if target.partition(b"?")[0] != self.path:
            text = f"There is nothing here but {self.path.decode()}."
            return _no(HTTPStatus.NOT_FOUND, text, "path", shared)
        if method not in self.methods:
            allowed = ((b"allow", b", ".join(self.methods)), *shared)
            text = f"Use {self.methods[0].decode()}."
            return _no(HTTPStatus.METHOD_NOT_ALLOWED, text, "method", allowed)
        return Passed(headers=(*self.headers, *shared))


_PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b", ".join(METHODS)),
    (b"access-control-allow-headers", _CORS_HEADERS),
    (b"access-control-max-age", PREFLIGHT_S),
)


def _shared(origin: bytes) -> Headers:
    """Lets scripts of that origin read the answer (the Fetch standard, CORS)."""
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )


def _no(status: HTTPStatus, text: str, why: str, headers: Headers = ()) -> Answer:
    return Answer(status=status, text=text, headers=headers, why=why)


def _all(headers: Headers, name: bytes) -> list[bytes]:
    return [value for each, value in headers if each == name]


def _text(value: bytes) -> str:
    return value.decode("latin-1").lower()
