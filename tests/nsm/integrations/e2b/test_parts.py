"""Parts of `nsm e2b serve` without I/O: events, frames, forms, networks, errors."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.http import token as httptoken
from nsm.http.access import AdmittedRequest, Answer
from nsm.http.token import TokenFile
from nsm.integrations.e2b.access import Key, KeyCheck
from nsm.integrations.e2b.contexts import Splitter, checked
from nsm.integrations.e2b.errors import RefusalError, refusal_of
from nsm.integrations.e2b.files import files_of
from nsm.integrations.e2b.requests import frames_of
from nsm.integrations.e2b.sandboxes import network_of
from nsm.wire.code import NetworkRequest
from nsm.wire.errors import (
    FileError,
    JobError,
    NotRunningError,
    NsmError,
    SessionEndedError,
    SessionLimitError,
    UnknownJobError,
)

TOKEN = "0123456789abcdef"
OUTPUT = (
    "before\n",
    "\x1eother\n",  # not ours
    f'\x1e{TOKEN}+{{"type": "res\n',
    f'\x1e{TOKEN}.ult"}}\n',
    "é\x1e",
    f'\x1e{TOKEN}.{{"type": "end"}}\n',
    f"\x1e{TOKEN}.no JSON\n",
    "after",
)


def parts_of(splitter: Splitter, pieces: list[bytes]) -> list[object]:
    """All that comes of them, with texts joined."""
    found: list[object] = []
    for piece in pieces:
        for part in splitter.split(piece):
            if isinstance(part, str) and found and isinstance(found[-1], str):
                found[-1] += part
            else:
                found.append(part)
    return found


@given(cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=12))
def test_events_are_found_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    data = "".join(OUTPUT).encode()
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert parts_of(Splitter(TOKEN), pieces) == [
        "before\n\x1eother\n",
        {"type": "result"},
        "é\x1e",
        {"type": "end"},
        "after",
    ]


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_any_bytes_are_output(pieces: list[bytes]) -> None:
    parts = parts_of(Splitter(TOKEN), pieces)
    assert all(isinstance(part, str) for part in parts)


def test_a_line_without_end_is_output_and_not_kept() -> None:
    splitter = Splitter(TOKEN)
    text = f"\x1e{TOKEN}." + "x" * 20000
    assert "".join(map(str, splitter.split(text.encode()))) == text


@pytest.mark.parametrize(
    "event",
    [{"type": "result", "text": 1, "html": ["x"], "data": "no", "secret": "x"}, {"type": "result"}],
)
def test_a_result_has_only_the_fields_that_clients_know(event: dict[str, Any]) -> None:
    assert checked(event) == {"type": "result", "is_main_result": False}


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"\0\0\0\0\5{}",
        b"\0\xff\xff\xff\xff{}",
        b"\1\0\0\0\2{}",  # compressed
        b"\0\0\0\0\2[]",
        b"\0\0\0\0\2{]",
        b"\0\0\0\0\0",
        b"\0\0\1\0\0" + b"[" * 65536,
    ],
)
def test_broken_frames_are_refused(body: bytes) -> None:
    with pytest.raises(RefusalError):
        frames_of(body)


def form(*files: tuple[str, bytes], end: bytes = b"--") -> bytes:
    head = 'Content-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
    parts = [b"--B\r\n" + head.format(name).encode() + data + b"\r\n" for name, data in files]
    return b"".join(parts) + b"--B" + end + b"\r\n"


def test_files_of_a_form() -> None:
    files = [("/home/user/é x", bytes(range(256))), ("empty", b"")]
    assert files_of("multipart/form-data; boundary=B", form(*files)) == files


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", form(("a", b"b"))),
        ("multipart/form-data", form(("a", b"b"))),
        ("multipart/form-data; boundary=C", form(("a", b"b"))),
        ("multipart/form-data; boundary=B", form(("a", b"b"), end=b"")),
        ("multipart/form-data; boundary=B", form(("a", b"b"))[:40]),
        ("multipart/form-data; boundary=B", b""),
        ("multipart/form-data; boundary=B", form(*[("a", b"")] * 1001)),
    ],
)
def test_broken_forms_are_refused(kind: str, body: bytes) -> None:
    with pytest.raises(RefusalError):
        files_of(kind, body)


ALL = "0.0.0.0/0"
OFF = NetworkRequest("off")


@pytest.mark.parametrize(
    ("most", "asked", "given"),
    [
        ("off", {}, OFF),
        ("off", {"allow_internet_access": True}, OFF),
        ("full", {"allow_internet_access": False}, OFF),
        ("full", {"network": {"denyOut": [ALL]}}, OFF),
        ("full", {"network": {"allowOut": ["a.org"]}}, NetworkRequest("allow", ("a.org",))),
        (
            "a.org,b.org",
            {"network": {"allowOut": ["b.org"], "denyOut": [ALL]}},
            NetworkRequest("allow", ("b.org",)),
        ),
        ("a.org", {"network": {"allowOut": [ALL]}}, NetworkRequest("allow", ("a.org",))),
    ],
)
def test_a_sandbox_reaches_no_more_than_serve_was_given(
    most: str, asked: dict[str, Any], given: NetworkRequest
) -> None:
    assert network_of(most, asked) == given


@pytest.mark.parametrize(
    ("most", "network", "code"),
    [
        ("a.org", {"allowOut": ["b.org"]}, "permission_denied"),
        ("off", {"allowOut": ["b.org"]}, "permission_denied"),
        ("full", {"denyOut": ["b.org"]}, "unimplemented"),
        ("full", {"allowOut": ["10.0.0.0/8"]}, "unimplemented"),
        ("full", {"allowPublicTraffic": True}, "unimplemented"),
        ("full", {"allowOut": "b.org"}, "invalid_argument"),
        ("full", ["b.org"], "invalid_argument"),
    ],
)
def test_other_networks_are_refused(most: str, network: object, code: str) -> None:
    with pytest.raises(RefusalError) as caught:
        network_of(most, {"network": network})
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("error", "status", "connect"),
    [
        (FileError("x", data={"errno": "ENOENT"}), 404, "not_found"),
        (FileError("x", data={"errno": "ENOSPC"}), 507, "resource_exhausted"),
        (FileError("x", data={"errno": "EXDEV"}), 400, "invalid_argument"),
        (JobError("x", data={"errno": ["?"]}), 400, "invalid_argument"),
        (UnknownJobError("x"), 404, "not_found"),
        (SessionEndedError("x"), 502, "unavailable"),
        (SessionLimitError("x"), 429, "resource_exhausted"),
        (NotRunningError("x"), 503, "unavailable"),
        (NsmError("x"), 500, "internal"),
    ],
)
def test_errors_have_the_status_that_clients_know(
    error: NsmError, status: int, connect: str
) -> None:
    refusal = refusal_of(error, "id")
    assert (refusal.status, refusal.connect_code) == (status, connect)


# Admission of clients.


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
