"""Admission of clients, by the head of a request."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import pytest

from nsm.http.access import AccessCheck, AdmittedRequest, Answer, Headers
from nsm.http.token import TokenFile

TOKEN = "t" * 43
HOST = (b"host", b"127.0.0.1:7643")
BEARER = (b"authorization", b"Bearer " + TOKEN.encode())
PAGE = "https://app.example"


@pytest.fixture
def secret(tmp_path: Path) -> TokenFile:
    file = tmp_path / "http-token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return TokenFile(str(file))


@pytest.fixture
def guard(secret: TokenFile) -> AccessCheck:
    return AccessCheck(
        hosts={"127.0.0.1:7643", "localhost:7643", "nsm.internal"},
        own_origins={"http://localhost:7643"},
        origins={PAGE},
        secret=secret,
    )


def status(guard: AccessCheck, *headers: tuple[bytes, bytes], method: bytes = b"POST") -> int:
    verdict = guard.check(method, b"/mcp", headers)
    return 200 if isinstance(verdict, AdmittedRequest) else verdict.status


def test_a_client_with_the_token_is_let_in(guard: AccessCheck) -> None:
    for host in (b"127.0.0.1:7643", b"LocalHost:7643", b"nsm.internal"):
        assert status(guard, (b"host", host), BEARER) == 200
    for method in (b"POST", b"GET", b"DELETE"):
        assert status(guard, HOST, BEARER, method=method) == 200
    assert status(guard, HOST, (b"authorization", b"bearer  " + TOKEN.encode())) == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:7643",  # a name that was made to mean this machine
        b"127.0.0.1:7644",
        b"127.0.0.1",
        b"localhost.evil.example:7643",
        b"127.0.0.1:7643.evil.example",
        b"evil.example@127.0.0.1:7643",
        b"127.0.0.1:7643, evil.example",
        b"0.0.0.0:7643",
        b"[::1]:7643",
        b"\xff",
        b"",
    ],
)
def test_other_hosts_are_not_served_whatever_else_is_shown(guard: AccessCheck, host: bytes) -> None:
    assert status(guard, (b"host", host), BEARER) == HTTPStatus.FORBIDDEN


def test_there_is_one_host(guard: AccessCheck) -> None:
    assert status(guard, BEARER) == HTTPStatus.FORBIDDEN
    assert status(guard, HOST, (b"host", b"evil.example"), BEARER) == HTTPStatus.FORBIDDEN


def test_at_a_unix_socket_any_host_will_do(secret: TokenFile) -> None:
    guard = AccessCheck(hosts=None, secret=secret)
    assert status(guard, BEARER) == 200
    assert status(guard, (b"host", b"whatever"), BEARER) == 200
    assert status(guard, (b"origin", b"http://whatever"), BEARER) == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "origin",
    [
        b"https://evil.example",
        b"null",
        b"http://app.example",
        b"https://app.example:444",
        b"https://app.example.evil.example",
        b"https://localhost:7643",
        b"http://localhost:7644",
        b"http://localhost:7643/",
        b"",
    ],
)
def test_pages_of_other_origins_may_not_ask(guard: AccessCheck, origin: bytes) -> None:
    assert status(guard, HOST, (b"origin", origin), BEARER) == HTTPStatus.FORBIDDEN
    assert status(guard, HOST, (b"origin", origin), method=b"OPTIONS") == HTTPStatus.FORBIDDEN


def test_there_is_one_origin(guard: AccessCheck) -> None:
    page = (b"origin", PAGE.encode())
    assert status(guard, HOST, page, page, BEARER) == HTTPStatus.FORBIDDEN


def test_pages_of_configured_origins_may_ask_and_read(guard: AccessCheck) -> None:
    page = (b"origin", PAGE.encode())
    verdict = guard.check(b"POST", b"/mcp", [HOST, page, BEARER])
    assert isinstance(verdict, AdmittedRequest)
    assert (b"access-control-allow-origin", PAGE.encode()) in verdict.headers
    before = guard.check(b"OPTIONS", b"/mcp", [HOST, page])
    assert isinstance(before, Answer)
    assert before.status == HTTPStatus.NO_CONTENT
    assert not before.why
    assert (b"access-control-allow-methods", b"POST, GET, DELETE") in before.headers
    # What it may do next still takes the token.
    assert status(guard, HOST, page) == HTTPStatus.UNAUTHORIZED


def test_a_page_of_the_servers_own_origin_may_not_read(guard: AccessCheck) -> None:
    own = (b"origin", b"http://localhost:7643")
    verdict = guard.check(b"POST", b"/mcp", [HOST, own, BEARER])
    assert verdict == AdmittedRequest()
    assert status(guard, HOST, own, method=b"OPTIONS") == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer " + b"t" * 42,
        b"Bearer " + b"t" * 44,
        b"Bearer " + b"T" * 43,
        b"Bearer \xff\xfe",
        b"Basic " + TOKEN.encode(),
        TOKEN.encode(),
        b"Bearer " + TOKEN.encode() + b", Bearer x",
    ],
)
def test_without_the_token_nothing_is_told(guard: AccessCheck, shown: bytes) -> None:
    headers: Headers = [HOST, (b"authorization", shown)]
    for method, target in ((b"POST", b"/mcp"), (b"BREW", b"/pot"), (b"GET", b"/")):
        verdict = guard.check(method, target, headers)
        assert isinstance(verdict, Answer)
        assert verdict.status == HTTPStatus.UNAUTHORIZED
        assert verdict.headers == ((b"www-authenticate", b'Bearer error="invalid_token"'),)
        assert "nsm" not in verdict.text
    nothing = guard.check(b"POST", b"/mcp", [HOST])
    assert isinstance(nothing, Answer)
    assert nothing.headers == ((b"www-authenticate", b"Bearer"),)


def test_two_tokens_are_none(guard: AccessCheck) -> None:
    assert status(guard, HOST, BEARER, BEARER) == HTTPStatus.UNAUTHORIZED


def test_a_client_with_the_token_is_told_what_is_not_there(guard: AccessCheck) -> None:
    for target in (b"/", b"/mcp/", b"/mcp/../mcp", b"//mcp", b"http://evil.example/mcp", b"*"):
        verdict = guard.check(b"POST", target, [HOST, BEARER])
        assert isinstance(verdict, Answer), target
        assert verdict.status == HTTPStatus.NOT_FOUND
    assert isinstance(guard.check(b"POST", b"/mcp?a=b", [HOST, BEARER]), AdmittedRequest)
    for method in (b"PUT", b"OPTIONS", b"CONNECT", b"HEAD"):
        assert status(guard, HOST, BEARER, method=method) == HTTPStatus.METHOD_NOT_ALLOWED


def test_the_token_is_in_no_repr(guard: AccessCheck, secret: TokenFile) -> None:
    secret.look()
    assert TOKEN not in f"{guard!r} {secret!r}"
