"""Reasons why something is not reached, in the words of each protocol; pure."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from nsmd.network.decisions import Verdict


class RefusedError(Exception):
    """A request is refused.

    Args:
        verdict: verdict of the decision.
        detail: a sentence for the people and models that read the client's message.
    """

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(detail)
        self.verdict: Verdict = verdict
        self.detail = detail


_STATUS: Mapping[Verdict, tuple[HTTPStatus, str, str]] = {
    "off": (HTTPStatus.FORBIDDEN, "Network is off (nsm)", "http_request_denied"),
    "not-allowed": (HTTPStatus.FORBIDDEN, "Host not allowed (nsm)", "http_request_denied"),
    "port": (HTTPStatus.FORBIDDEN, "Port not allowed (nsm)", "http_request_denied"),
    "address": (HTTPStatus.FORBIDDEN, "Address not allowed (nsm)", "destination_ip_prohibited"),
    "bad-request": (HTTPStatus.BAD_REQUEST, "Bad request to proxy (nsm)", "http_request_error"),
    "secret": (HTTPStatus.FORBIDDEN, "Secret not allowed (nsm)", "http_request_denied"),
    "unresolved": (HTTPStatus.BAD_GATEWAY, "No such host (nsm)", "dns_error"),
    "unreachable": (HTTPStatus.BAD_GATEWAY, "Host does not answer (nsm)", "connection_refused"),
    "busy": (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Too many connections (nsm)",
        "connection_limit_reached",
    ),
}
"""Status and reason, which is all that many clients show, and the error type of RFC 9209."""

_SOCKS: Mapping[Verdict, int] = {
    "off": 2,
    "not-allowed": 2,
    "port": 2,
    "address": 2,
    "bad-request": 1,
    "secret": 2,
    "unresolved": 4,
    "unreachable": 5,
    "busy": 1,
}
"""Codes of RFC 1928, section 6."""


def http_response(refused: RefusedError) -> bytes:
    """Make the answer for an HTTP client."""
    status, reason, kind = _STATUS[refused.verdict]
    body = f"{refused.detail}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {reason}\r\n"
        f"Proxy-Status: nsm; error={kind}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + body


def socks_code(refused: RefusedError) -> int:
    """Return the code for a SOCKS client."""
    return _SOCKS[refused.verdict]
