"""Admission of clients of `nsm e2b serve`."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest

from nsm.http import token as httptoken
from nsm.http.access import AdmittedRequest, Answer
from nsm.http.token import TokenFile
from nsm.integrations.e2b.access import Key, KeyCheck

HOST = (b"host", b"127.0.0.1:7644")


@pytest.fixture
def keys(tmp_path: Path) -> list[Key]:
    found: list[Key] = []
    for name in ("one", "two"):
        path = str(tmp_path / name)
        httptoken.ensure(path, prefix="e2b_")
        found.append(Key(name, TokenFile(path)))
    return found


@pytest.fixture
def check(keys: list[Key]) -> KeyCheck:
    return KeyCheck({"127.0.0.1:7644", "localhost:7644"}, keys)


def admitted(check: KeyCheck, *headers: tuple[bytes, bytes]) -> str:
    """Name of the key, or why there is none."""
    verdict = check.check(b"POST", b"/x", headers)
    if not isinstance(verdict, AdmittedRequest):
        return verdict.why
    key = check.key_of(headers)
    assert key is not None
    return key.name


def secret(tmp_path: Path, name: str) -> bytes:
    return httptoken.read(str(tmp_path / name)).encode()


def test_each_key_is_known(check: KeyCheck, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert secret(tmp_path, name).startswith(b"e2b_")
        assert admitted(check, HOST, (b"x-api-key", secret(tmp_path, name))) == name


def test_a_sandbox_needs_its_own_token(check: KeyCheck, keys: list[Key], tmp_path: Path) -> None:
    sandbox = (b"e2b-sandbox-id", b"5c61d326")
    token = keys[1].access_token("5c61d326").encode()
    other = keys[1].access_token("5c61d327").encode()
    assert admitted(check, HOST, sandbox, (b"x-access-token", token)) == "two"
    assert admitted(check, HOST, sandbox, (b"e2b-traffic-access-token", token)) == "two"
    for headers in (
        [],
        [(b"x-access-token", other)],
        [(b"x-access-token", b"")],
        [(b"x-access-token", token), (b"e2b-traffic-access-token", other)],
        [(b"x-api-key", secret(tmp_path, "two"))],
        [(b"x-access-token", token), (b"e2b-sandbox-id", b"5c61d326")],
    ):
        assert admitted(check, HOST, sandbox, *headers) == "key"


def test_a_token_is_no_key(check: KeyCheck, keys: list[Key]) -> None:
    token = keys[0].access_token("5c61d326").encode()
    for value in (b"", token, b"e2b_00"):
        assert admitted(check, HOST, (b"x-api-key", value)) == "key"
    assert admitted(check, HOST) == "key"


def test_pages_are_refused_before_the_key_is_looked_at(check: KeyCheck, tmp_path: Path) -> None:
    key = (b"x-api-key", secret(tmp_path, "one"))
    assert admitted(check, (b"host", b"evil.example:7644"), key) == "host"
    assert admitted(check, key) == "host"
    for origin in (b"http://evil.example", b"null", b"http://127.0.0.1:7644"):
        assert admitted(check, HOST, (b"origin", origin), key) == "origin"
        assert admitted(check, HOST, (b"origin", origin)) == "origin"


def test_clients_of_the_api_can_read_every_refusal(check: KeyCheck) -> None:
    """They take the body for JSON, and fail with an error of JSON's if it is none."""
    for headers in ([HOST], [(b"host", b"evil.example")], [HOST, (b"origin", b"null")]):
        verdict = check.check(b"POST", b"/v2/sandboxes", headers)
        assert isinstance(verdict, Answer)
        assert json.loads(verdict.text)["code"] == verdict.status


def test_a_key_that_was_rotated_is_no_longer_known(check: KeyCheck, tmp_path: Path) -> None:
    old = secret(tmp_path, "one")
    new = httptoken.rotate(str(tmp_path / "one"), prefix="e2b_").encode()
    assert admitted(check, HOST, (b"x-api-key", old)) == "key"
    assert admitted(check, HOST, (b"x-api-key", new)) == "one"


def test_a_key_that_is_gone_admits_nobody(check: KeyCheck, keys: list[Key], tmp_path: Path) -> None:
    (tmp_path / "one").unlink()
    assert keys[0].access_token("x") == ""
    sandbox = (b"e2b-sandbox-id", b"x")
    assert admitted(check, HOST, sandbox, (b"x-access-token", b"")) == "key"


@pytest.mark.parametrize(("user", "why"), [("user", "one"), ("", "one"), ("root", "user")])
def test_there_is_one_user(check: KeyCheck, tmp_path: Path, user: str, why: str) -> None:
    basic = (b"authorization", b"Basic " + b64encode(f"{user}:".encode()))
    key = (b"x-api-key", secret(tmp_path, "one"))
    assert admitted(check, HOST, key, basic) == why
