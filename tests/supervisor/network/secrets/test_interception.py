"""HTTP/1.1 with a secret, between a scripted client and server; TLS and the authority around it."""

from __future__ import annotations

import base64
import gzip
import socket
import ssl
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import memory_stream_pair

from certificates import NAME, TestAuthority
from nsmd.model.host_rules import AllowList
from nsmd.model.secrets import SecretRule, parse_secret
from nsmd.network.secrets import vault as vaults
from nsmd.network.secrets.authority import Authority, now_utc
from nsmd.network.secrets.host_rules import HostRules
from nsmd.network.secrets.interception import ConnectionTraffic, Http1, Interceptor
from nsmd.network.secrets.vault import HeldSecret, Vault, read_value
from secret_server import secret_server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOST = "api.example.org"
VALUE, STAND_IN = "token-with-the-value", "token-in-its-place-1"
OTHER = "other-in-its-place"
ENDS_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def make_vault(*uses: str) -> Vault:
    """A vault with a secret for this host and one for another."""
    rows = (("key", HOST, STAND_IN, VALUE), ("other", "b.example.org", OTHER, "value-of-the-other"))
    return Vault(
        [
            HeldSecret(
                secret=parse_secret(name, "file: /x", [host], uses or ("env: KEY",)),
                stand_in=stand_in,
                value=value,
                read_s=time.monotonic(),
            )
            for name, host, stand_in, value in rows
        ]
    )


class Record(ConnectionTraffic):
    """Record of a test: paths with secrets, verdicts with paths."""

    def __init__(self) -> None:
        super().__init__(HOST, 443, trio.CancelScope(), self._note)
        self.uses: list[tuple[str, Sequence[str]]] = []
        self.refusals: list[tuple[str, str]] = []

    async def _note(self, message: dict[str, Any]) -> None:
        if message["op"] == "used":
            self.uses.append((message["path"], tuple(message["secrets"])))
        else:
            self.refusals.append((message["verdict"], message["path"]))


async def exchange(
    asks: bytes,
    answers: Sequence[bytes] = (ENDS_BODY,),
    *,
    vault: Vault | None = None,
    requests: Sequence[str] = (),
) -> tuple[bytes, bytes, Record]:
    """Send something, have each request answered, and close both ends.

    Returns:
        What the client and the server got, and the record.
    """
    client, our_client = memory_stream_pair()
    server, our_server = memory_stream_pair()
    record = Record()
    allowed = AllowList.of(requests).requests_to(HOST, 443)
    rules = HostRules(HOST, 443, make_vault() if vault is None else vault, allowed)
    got: dict[str, bytes] = {"client": b"", "server": b""}

    async def serve() -> None:
        waiting = list(answers)
        async for data in server:
            got["server"] += bytes(data)
            if waiting and got["server"].endswith((b"\r\n\r\n", b"END")):
                await server.send_all(waiting.pop(0))
                if not waiting:
                    await server.send_eof()

    async def ask() -> None:
        await client.send_all(asks)
        async for data in client:
            got["client"] += bytes(data)
            if b"onnection: close" in got["client"]:
                await client.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(ask)
        with trio.fail_after(60):
            await Http1(our_client, our_server, rules, record).run()
        await our_client.aclose()
        await our_server.aclose()
    return got["client"], got["server"], record


def request(*lines: str, line: str = "GET /x HTTP/1.1", host: str = HOST, body: str = "") -> bytes:
    return "\r\n".join((line, f"Host: {host}", *lines, "", body)).encode()


async def test_requests_follow_each_other_on_one_connection() -> None:
    asks = request() + request(f"X-Key: {STAND_IN}", line="GET /y?q=1 HTTP/1.1")
    client, server, record = await exchange(asks, [ENDS_BODY, ENDS_BODY])
    assert client == ENDS_BODY * 2
    assert server.count(b"HTTP/1.1\r\n") == 2
    assert record.uses == [("/y", ("key",))]


@pytest.mark.parametrize(
    ("asks", "status", "verdict"),
    [
        (request(line=f"GET /{STAND_IN} HTTP/1.1"), 403, "placeholder"),
        (request(f"X: {OTHER}"), 403, "placeholder"),
        (request(host="evil.example.org"), 400, "bad-request"),
        (request(host=f"{HOST}:444"), 400, "bad-request"),
        (request(line=f"GET https://{HOST}/ HTTP/1.1"), 400, "bad-request"),
        (request(line="CONNECT a.example:443 HTTP/1.1"), 400, "bad-request"),
        (request("Content-Length: 3", "Transfer-Encoding: chunked"), 400, "bad-request"),
        (request("Content-Length: 03"), 400, "bad-request"),
        (request(f"Host: {HOST}"), 400, ""),
        (request("Content-Length: 1", "Content-Length: 2"), 400, ""),
        (request("Transfer-Encoding: gzip, chunked"), 501, ""),
        (request("X : y"), 400, ""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad-request"),
        (b"\x00\x01nonsense\r\n\r\n", 400, ""),
    ],
)
async def test_requests_that_are_refused(asks: bytes, status: int, verdict: str) -> None:
    client, server, record = await exchange(asks)
    assert client.startswith(b"HTTP/1.1 %d " % status), client
    assert server == b""
    assert [each for each, _ in record.refusals] == ([verdict] if verdict else [])


async def test_a_stand_in_in_a_body_stays_one() -> None:
    asks = request("Content-Length: 23", line="POST / HTTP/1.1", body=f"{STAND_IN}END")
    _, server, record = await exchange(asks)
    assert server.endswith(f"{STAND_IN}END".encode())
    assert record.uses == []


async def test_a_compressed_body_is_decoded() -> None:
    body = gzip.compress(f"the token is {VALUE}".encode() + b"x" * 300_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    client, _, _ = await exchange(request("Authorization: x"), [head + body])
    assert f"the token is {STAND_IN}".encode() in client
    assert client.count(b"x") >= 300_000
    assert b"gzip" not in client


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, br\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: what\r\n\r\nok",
        b"what is this\r\n\r\n",
    ],
)
async def test_responses_that_are_refused(answer: bytes) -> None:
    client, _, _ = await exchange(request(), [answer])
    assert client.startswith(b"HTTP/1.1 502 ")


async def test_a_body_that_is_not_coded_as_it_says_is_cut_short() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nwrong"
    client, _, _ = await exchange(request(), [answer])
    assert b"wrong" not in client
    assert not client.endswith(b"0\r\n\r\n")


async def test_a_websocket_passes_and_is_searched() -> None:
    asks = request("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: deflate")
    answer = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    client, server, _ = await exchange(asks + b"\x81\x03END", [answer, VALUE.encode()])
    assert b"deflate" not in server
    assert server.endswith(b"\x81\x03END")
    assert client.endswith(STAND_IN.encode())


async def test_a_value_that_changes_while_a_response_comes() -> None:
    vault = make_vault()
    redactor = HostRules(HOST, 443, vault).redactor()
    assert redactor.feed(b"first. ") == b"first. "
    held = vault._held["key"]  # pyright: ignore[reportPrivateUsage]
    held.former, held.value = ((VALUE, time.monotonic()),), "token-of-another-day"
    vault.patterns = vault._patterns()  # pyright: ignore[reportPrivateUsage]
    text = f"{held.value} {VALUE}. ".encode()
    assert redactor.feed(text) == f"{STAND_IN} {STAND_IN}. ".encode()


async def test_a_secret_that_is_revoked_while_its_source_is_asked() -> None:
    """The server does not get the request, not even with the stand-in."""

    class SlowVault(Vault):
        async def refresh(self, names: Sequence[str]) -> None:
            del names
            self.revoke("key")

    asks = request(f"X: {STAND_IN}")
    vault = SlowVault(list(make_vault()._held.values()))  # pyright: ignore[reportPrivateUsage]
    client, server, record = await exchange(asks, vault=vault)
    assert client.startswith(b"HTTP/1.1 403 ")
    assert b"secret key was revoked" in client
    assert server == b""
    assert (record.uses, record.refusals) == ([], [("placeholder", "/x")])


async def read(secret: SecretRule) -> str:
    return read_value(secret.source, {})


async def test_a_value_that_expires_between_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says 401, and gets the new value with the next request of the same connection."""
    file = tmp_path / "token"
    file.write_text(VALUE)
    secret = parse_secret("key", f"file: {file}", [HOST], ["env: KEY"])
    vault = await Vault.read([secret], {"key": STAND_IN}, read)
    later = time.monotonic() + vaults.LEAST_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    new = "token-with-the-other"
    file.write_text(new)
    body = f"{VALUE} {new}".encode()
    answers = [
        b"HTTP/1.1 401 Expired\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body),
    ]
    client, server, record = await exchange(request(f"X: {STAND_IN}") * 2, answers, vault=vault)
    assert server.index(VALUE.encode()) < server.index(new.encode())
    assert client.endswith(f"{STAND_IN} {STAND_IN}".encode())
    assert record.uses == [("/x", ("key",))] * 2


async def test_an_answer_before_the_whole_request(autojump_clock: object) -> None:
    del autojump_clock
    asks = request("Content-Length: 1000", line="POST / HTTP/1.1", body="beginsEND")
    client, _, _ = await exchange(asks, [b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n"])
    assert client.startswith(b"HTTP/1.1 413")


RULE = f"GET https://{HOST}/repos/x/*"


@pytest.mark.parametrize(
    ("line", "more", "passes"),
    [
        ("GET /repos/x/y?z HTTP/1.1", (), True),
        ("HEAD /repos/x/y HTTP/1.1", (), True),
        ("GET /repos/y HTTP/1.1", (), False),
        ("DELETE /repos/x/y HTTP/1.1", (), False),
        ("GET /repos/x/../y HTTP/1.1", (), False),
        ("GET /repos/x/%2e%2e/y HTTP/1.1", (), False),
        ("GET /repos/x/y HTTP/1.1", ("X-HTTP-Method-Override: DELETE",), False),
        ("GET /repos/x/y HTTP/1.1", ("X_Http_Method_Override: DELETE",), False),
        ("GET /repos/x/y HTTP/1.1", ("X-Original-URL: /repos/y",), False),
        ("GET /socket HTTP/1.1", ("Upgrade: websocket", "Connection: Upgrade"), False),
        (f"GET https://{HOST}/repos/x/y HTTP/1.1", (), False),
        ("OPTIONS * HTTP/1.1", (), False),
    ],
)
async def test_rules_for_requests(line: str, more: Sequence[str], *, passes: bool) -> None:
    answer = ENDS_BODY.replace(b"\r\n\r\nok", b"\r\n\r\n") if line[0] == "H" else ENDS_BODY
    asks = request(*more, "Connection: close", line=line)
    client, server, record = await exchange(asks, [answer], requests=[RULE])
    assert bool(server) is passes
    assert client.startswith(b"HTTP/1.1 200" if passes else b"HTTP/1.1 4")
    assert len(record.refusals) == (not passes)


CHUNKS = "5\r\nbegin\r\n0\r\n"


@pytest.mark.parametrize(
    ("trailer", "status", "verdict"),
    [
        (f"X-Key: {STAND_IN}", 403, "placeholder"),
        (f"X-Key: {OTHER}", 403, "placeholder"),
        (f"authorization: Basic {base64.b64encode(f'me:{STAND_IN}'.encode()).decode()}", 403, ""),
        ("X-HTTP-Method-Override: DELETE", 403, "rule"),
        ("x_original_url: /repos/y", 403, "rule"),
        ("Host: evil.example.org", 400, "bad-request"),
        ("Transfer-Encoding: chunked", 400, "bad-request"),
        ("Range: bytes=1-", 400, "bad-request"),
    ],
)
async def test_trailers_that_are_refused(trailer: str, status: int, verdict: str) -> None:
    """The server does not get them, nor the end of the request."""
    asks = request("Transfer-Encoding: chunked", line="POST /x HTTP/1.1")
    rule = f"POST https://{HOST}/x"
    asks += f"{CHUNKS}{trailer}\r\n\r\n".encode()
    client, server, record = await exchange(asks, requests=[rule])
    assert client.startswith(b"HTTP/1.1 %d " % status), client
    assert trailer.encode() not in server
    assert b"0\r\n" not in server
    assert record.refusals == [(verdict or "placeholder", "/x")]


@pytest.mark.parametrize(
    ("kind", "verdict", "why"),
    [
        ("usual", "", ""),
        ("pins", "client-tls", "does not accept nsm's certificate"),
        ("http2", "client-tls", "in HTTP/1.1"),
        ("another name", "server-name", "for another name"),
        ("no name", "server-name", "for another name"),
        ("no tls", "no-tls", "does not speak TLS"),
    ],
)
async def test_a_client_that_cannot_be_served_is_reported(
    tmp_path: Path, kind: str, verdict: str, why: str
) -> None:
    """A client that trusts only the server's own authority, that speaks HTTP/2 only, or that asks
    for another server, gets no answer, and others get theirs.
    """
    outside, inside = TestAuthority(tmp_path), Authority.make([NAME], now_utc())
    told: list[dict[str, object]] = []

    async def tell(message: dict[str, object]) -> None:
        told.append(message)

    def ask(link: socket.socket) -> bytes:
        trusted = outside.bundle.read_text() if kind == "pins" else inside.certificate
        context = ssl.create_default_context(cadata=trusted)
        context.check_hostname = "name" not in kind
        context.set_alpn_protocols(["h2"] if kind == "http2" else ["h2", "http/1.1"])
        name = {"another name": "b.example.org", "no name": None}.get(kind, NAME)
        try:
            if kind == "no tls":
                link.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return link.recv(4096)
            with context.wrap_socket(link, server_hostname=name) as secure:
                secure.sendall(f"GET /x HTTP/1.1\r\nHost: {NAME}:{server.port}\r\n\r\n".encode())
                return secure.recv(4096)
        except (ssl.SSLError, OSError):
            return b""

    with secret_server(outside.certificate()) as server:
        trusted = ssl.create_default_context(cafile=str(outside.bundle))
        rules = AllowList.of([f"* https://{NAME}:{server.port}/*"])
        interceptor = Interceptor(inside, Vault([]), rules, trusted=trusted, tell=tell)
        ours, its = socket.socketpair()
        ours.setblocking(False)
        answers: list[bytes] = []

        async def client() -> None:
            answers.append(await trio.to_thread.run_sync(ask, its))
            its.close()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                    link = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                    async with link:
                        await interceptor.intercept(link, stream, NAME, server.port, b"")
    if kind == "http2":  # SETTINGS, and GOAWAY with HTTP_1_1_REQUIRED
        assert answers[0].startswith(b"\0\0\0\4\0\0\0\0\0")
        assert b"\0\0\0\x0dnsm: the client speaks HTTP/2 only" in answers[0]
    else:
        assert answers[0].startswith(b"" if why else b"HTTP/1.1 200 OK\r\n")
        assert bool(answers[0]) is not bool(why)
    assert [row["verdict"] for row in told] == [verdict] * bool(verdict)
    assert all(why in str(row["why"]) for row in told)


NOW = now_utc()


def shake_hands(authority: Authority, name: str, signed: Authority | None = None) -> str:
    """Have OpenSSL check the certificate for a name; returns why not, or nothing."""
    client = ssl.create_default_context(cadata=authority.certificate)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = (signed or authority).context(name, NOW)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    assert ends[0].version() == "TLSv1.3"
    return ""


def test_hosts_of_the_secrets_are_trusted() -> None:
    authority = Authority.make(["a.example.org", "b.example.org"], NOW)
    assert shake_hands(authority, "a.example.org") == ""
    assert shake_hands(authority, "x.b.example.org") == ""


@pytest.mark.parametrize("name", ["example.org", "bank.example", "aa.example.org.evil"])
def test_no_other_host_is(name: str) -> None:
    authority = Authority.make(["a.example.org"], NOW)
    assert "permitted subtree" in shake_hands(authority, name)


YEAR = timedelta(days=366)


@pytest.mark.parametrize("jump", [10 * YEAR, -40 * YEAR, 5000 * YEAR, -60 * YEAR])
def test_a_clock_that_jumps_and_comes_back_leaves_certificates_good(jump: timedelta) -> None:
    authority = Authority.make(["a.example.org"], NOW)
    assert shake_hands(authority, "a.example.org") == ""
    authority.context("a.example.org", NOW + jump)
    assert shake_hands(authority, "a.example.org") == ""


@pytest.mark.parametrize("jump", [-9 * YEAR, 9 * YEAR])
def test_a_session_that_begins_with_a_wrong_clock_can_go_on_with_the_right_one(
    jump: timedelta,
) -> None:
    assert shake_hands(Authority.make(["a.example.org"], NOW + jump), "a.example.org") == ""


def test_certificates_are_kept_until_time_has_gone_by_or_has_jumped() -> None:
    authority = Authority.make(["a.example.org"], NOW)
    first = authority.context("a.example.org", NOW)
    assert authority.context("a.example.org", NOW + timedelta(days=1)) is first
    for days in (-40, 29, 300):
        later = NOW + timedelta(days=days)
        assert authority.context("a.example.org", later) is not first
