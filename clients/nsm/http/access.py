"""Admission of clients by the head of a request; no I/O except a look at the token's file.

Every user of the machine can connect to a port of loopback, and so can every web page in a browser
of its user. A page that made the browser believe that its own name is this machine's (DNS
rebinding) sends that name in `Host`; any other page sends its own in `Origin`. Both are checked
first, then the token, if one is required; a client without it learns nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from nsm.dataclass import dataclass, field

if TYPE_CHECKING:
    from nsm.http.token import TokenFile

PATH = b"/mcp"
METHODS = (b"POST", b"GET", b"DELETE")

_BEARER = b"bearer"

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""

_CORS_HEADERS = (
    b"authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, "
    b"mcp-method, mcp-name"
)
"""Headers that scripts of configured origins may send."""

PREFLIGHT_S = b"600"
"""Seconds for which browsers need not ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to a request that does not reach the endpoint: its text is one line for people; `why`,
    for the log and the counts, is empty if it is no refusal."""

    status: HTTPStatus
    text: str = ""
    headers: Headers = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """An admitted request, and headers of its answer besides those of the endpoint."""

    headers: Headers = ()


class Guard(Protocol):
    """Interface of what admits clients: an `AccessCheck`, or the keys of E2B's clients."""

    def check(self, method: bytes, target: bytes, headers: Headers) -> AdmittedRequest | Answer:
        """Admit a request, or make its answer, by the parts of its head."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCheck:
    """Admission of clients by the head of a request.

    Args:
        hosts: allowed values of `Host`, in lower case; None for any, if no browser can connect.
        own_origins: origins of our own pages; there are no such pages.
        origins: origins of other pages that may send requests from a browser.
        secret: token that a client must have; None admits everybody.
        path: the only path.
        methods: allowed methods; the first is the usual one.
        headers: headers of answers to admitted clients.
    """

    hosts: Collection[str] | None
    own_origins: Collection[str] = ()
    origins: Collection[str] = ()
    secret: TokenFile | None = field(default=None, repr=False)
    path: bytes = PATH
    methods: Sequence[bytes] = METHODS
    headers: Headers = ()

    def check(self, method: bytes, target: bytes, headers: Headers) -> AdmittedRequest | Answer:
        """Admit a request, or make its answer."""
        refusal = refuse_page(headers, self.hosts, {*self.origins, *self.own_origins})
        if refusal is not None:
            return refusal
        given = all_of(headers, b"origin")
        origin = _text(given[0]) if given else None
        shared = _shared(given[0]) if origin in self.origins else ()
        if method == b"OPTIONS" and shared:
            return Answer(status=HTTPStatus.NO_CONTENT, headers=(*shared, *_PREFLIGHT))
        return self._check_token(method, target, headers, shared)

    def _check_token(
        self, method: bytes, target: bytes, headers: Headers, shared: Headers
    ) -> AdmittedRequest | Answer:
        given = all_of(headers, b"authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if self.secret is not None and (
            scheme.lower() != _BEARER or not self.secret.matches(token.strip(b" "))
        ):
            # RFC 6750, 3.1: a client that showed nothing learns nothing more.
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
        return AdmittedRequest(headers=(*self.headers, *shared))


def refuse_page(
    headers: Headers, hosts: Collection[str] | None, origins: Collection[str] = ()
) -> Answer | None:
    """Refuse what a page in a browser sends; None if the request may go on.

    Args:
        hosts: allowed values of `Host`, in lower case; None for any.
        origins: origins of the pages that may ask.
    """
    if hosts is not None:
        given = all_of(headers, b"host")
        if len(given) != 1 or _text(given[0]) not in hosts:
            return _no(HTTPStatus.FORBIDDEN, "This Host is not served here.", "host")
    given = all_of(headers, b"origin")
    if len(given) > 1 or (given and _text(given[0]) not in origins):
        return _no(HTTPStatus.FORBIDDEN, "Pages of this Origin may not ask here.", "origin")
    return None


_PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b", ".join(METHODS)),
    (b"access-control-allow-headers", _CORS_HEADERS),
    (b"access-control-max-age", PREFLIGHT_S),
)


def _shared(origin: bytes) -> Headers:
    """Headers that let scripts of that origin read the answer (the Fetch standard, CORS)."""
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )


def _no(status: HTTPStatus, text: str, why: str, headers: Headers = ()) -> Answer:
    return Answer(status=status, text=text, headers=headers, why=why)


def all_of(headers: Headers, name: bytes) -> list[bytes]:
    """The values of a header, whose name is in lower case."""
    return [value for each, value in headers if each == name]


def _text(value: bytes) -> str:
    return value.decode("latin-1").lower()
