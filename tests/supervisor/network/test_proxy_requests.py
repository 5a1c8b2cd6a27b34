"""Requests of both kinds of proxy client, in any pieces: parsed, or refused."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsmd.model.host_rules import Host
from nsmd.network.broker import ProxyStream
from nsmd.network.decisions import RefusedError, http_response
from nsmd.network.proxy_requests import MAX_HEAD_BYTES, ProxyRequest, SocksProxy, WebProxy


def web(data: bytes) -> tuple[WebProxy, ProxyRequest]:
    proxy = WebProxy()
    proxy.receive_data(data)
    request = proxy.next_request()
    assert request is not None
    return proxy, request


@pytest.mark.parametrize(
    ("line", "host", "port", "tunnel"),
    [
        ("CONNECT example.org:443", "example.org", 443, True),
        ("CONNECT EXAMPLE.org.:8443", "example.org", 8443, True),
        ("CONNECT [2001:db8::1]:443", IPv6Address("2001:db8::1"), 443, True),
        ("CONNECT 1.2.3.4:22", IPv4Address("1.2.3.4"), 22, True),
        ("GET http://example.org/a?b", "example.org", 80, False),
        ("GET HTTP://example.org", "example.org", 80, False),
        ("GET http://example.org:8080?x", "example.org", 8080, False),
        ("PUT http://[::1]:8080/", IPv6Address("::1"), 8080, False),
    ],
)
def test_a_request_names_a_host(line: str, host: Host, port: int, tunnel: bool) -> None:
    _, request = web(f"{line} HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n".encode())
    protocol = "connect" if tunnel else "http"
    assert request == (host, port, protocol)


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"GET https://example.org/ HTTP/1.1",
        b"GET ftp://example.org/ HTTP/1.1",
        b"GET http:/example.org/ HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://user@example.org/ HTTP/1.1",
        b"GET http://example.org@evil.test/ HTTP/1.1",
        b"GET http://evil.test\\@example.org/ HTTP/1.1",
        b"GET http://evil.test%00.example.org/ HTTP/1.1",
        b"GET http://evil.test\x00.example.org/ HTTP/1.1",
        b"GET http://example.org:/ HTTP/1.1",
        b"GET http://127.1/ HTTP/1.1",
        b"GET http://\xd0\xb5xample.org/ HTTP/1.1",
        b"CONNECT example.org HTTP/1.1",
        b"CONNECT http://example.org:443 HTTP/1.1",
        b"CONNECT example.org:443/ HTTP/1.1",
        b"CONNECT ::1:443 HTTP/1.1",
        b"CONNECT [fe80::1%25eth0]:443 HTTP/1.1",
        b"CONNECT example.org:99999 HTTP/1.1",
        b"CONNECT evil.test\x00.example.org:443 HTTP/1.1",
        b"nothing of the kind",
    ],
)
def test_a_request_that_may_be_read_in_two_ways_is_refused(line: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        web(line + b"\r\nHost: example.org\r\n\r\n")
    assert refused.value.verdict == "bad-request"
    assert http_response(refused.value).startswith(b"HTTP/1.1 400 ")


def test_the_server_is_told_what_the_url_says_and_nothing_of_the_connection() -> None:
    proxy, _ = web(
        b"POST http://example.org:8080/p?q#f HTTP/1.1\r\nHost: other.test\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\n"
        b"Connection: X-One, Content-Length\r\nX-One: 1\r\nX-Two: 2\r\nUpgrade: websocket\r\n"
        b"Content-Length: 4\r\n\r\nbodyGET http://next.test/ HTTP/1.1\r\n"
    )
    assert proxy.head() == (
        b"POST /p?q HTTP/1.1\r\nHost: example.org:8080\r\nX-Two: 2\r\nContent-Length: 4\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert proxy.next_body() == b"body"
    # What follows is another request, for whichever host: it does not go there.
    assert proxy.done
    assert proxy.next_body() == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: gzip\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\nConnection: Content-Length\r\nContent-Length: 3\r\n",
        b"transfer-encoding:\tCHUNKED\r\ncontent-length:\t0\r\n",
        b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding : chunked\r\nContent-Length: 3\r\n",
        b"Content-Length: 3, 4\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 0x3\r\n",
        b"Content-Length: 010\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: -1\r\n",
        b"X: a\r\n\x00Y: b\r\n",
        b"X : a\r\n",
        # Of another line than the usual one.
        b"POST http://example.org/ HTTP/1.0 | Transfer-Encoding: chunked\r\n",
        b"GET http://example.org/ HTTP/2.0 | ",
        b"GET http://example.org/ HTTP/0.9 | ",
        b"CONNECT example.org:80 HTTP/1.1 | Transfer-Encoding: chunked\r\n",
        b"CONNECT example.org:80 HTTP/1.1 | Content-Length: 3\r\n",
    ],
)
def test_a_request_that_could_hide_another_is_refused(headers: bytes) -> None:
    line, _, rest = headers.rpartition(b" | ")
    line = line or b"POST http://example.org/ HTTP/1.1"
    with pytest.raises(RefusedError):
        web(line + b"\r\nHost: x\r\n" + rest + b"\r\n")


def rest_by_length(sent: bytes) -> bytes:
    """Bytes after the request for a server that knows Content-Length only."""
    head, _, body = sent.partition(b"\r\n\r\n")
    found = re.search(rb"(?im)^content-length[^:]*:\D*(\d+)", head)
    return body[int(found[1]) :] if found else body


def rest_by_chunks(sent: bytes) -> bytes:
    """Bytes after the request for a server that looks for Transfer-Encoding first."""
    head, _, body = sent.partition(b"\r\n\r\n")
    if not re.search(rb"(?im)^transfer-encoding.*chunked", head):
        return rest_by_length(sent)
    while (size := int(body.partition(b"\r\n")[0], 16)) > 0:
        body = body.partition(b"\r\n")[2][size + 2 :]
    return body.partition(b"\r\n\r\n")[2]


LENGTHS = [b"5", b"0", b"5", b"05", b"5, 5", b"+5", b"0x5", b"5\r", b""]
CODINGS = [b"chunked", b"CHUNKED", b"\r\n chunked", b"\x0bchunked", b"identity", b"gzip, chunked"]
FRAMING = st.lists(
    st.one_of(
        st.sampled_from([b"Content-Length: " + value for value in LENGTHS]),
        st.sampled_from([b"Transfer-Encoding: " + value for value in CODINGS]),
        st.sampled_from([b"Connection: Content-Length", b"Connection: Transfer-Encoding"]),
    ).map(lambda line: line + b"\r\n"),
    max_size=3,
)


@settings(max_examples=100)
@given(
    FRAMING,
    st.sampled_from([b"1.0", b"1.1"]),
    st.sampled_from([b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"hello", b""]),
)
def test_servers_that_read_lengths_differently_see_the_same_one_request(
    headers: list[bytes], version: bytes, body: bytes
) -> None:
    proxy = WebProxy()
    proxy.receive_data(
        b"POST http://a.test/ HTTP/" + version + b"\r\nHost: a.test\r\n" + b"".join(headers)
    )
    proxy.receive_data(b"\r\n" + body + b"GET /second HTTP/1.1\r\nHost: a.test\r\n\r\n")
    try:
        if proxy.next_request() is None:
            return
        sent = proxy.head() + (proxy.next_body() or b"")
    except RefusedError:
        return
    if proxy.done:
        chunked = b"transfer-encoding: chunked" in sent.lower()
        assert rest_by_chunks(sent) == b""
        assert chunked or rest_by_length(sent) == b""
        assert not (chunked and b"content-length:" in sent.lower())


OK = b"HTTP/1.1 200 OK\r\n"
KEPT = b"Keep-Alive: timeout=15\r\n"
CLOSED = b"Connection: close\r\n"


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("version", "answer", "passed", "goes_on"),
    [
        # Its connection ends after each answer, said or not; that of the client goes on.
        (
            "1.1",
            OK + b"Connection: close, X-One\r\nX-One: 1\r\nKeep-Alive: timeout=5\r\n"
            b"Content-Length: 2\r\n\r\nok",
            OK + b"Content-Length: 2\r\n" + KEPT + b"\r\nok",
            True,
        ),
        ("1.1", OK + b"\r\n", OK + KEPT + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        ("1.1", b"HTTP/1.0 304 \r\n\r\n", b"HTTP/1.1 304 \r\n" + KEPT + b"\r\n", True),
        (
            "1.1",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 \r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 \r\n" + KEPT + b"\r\n",
            True,
        ),
        # A client that does not know where an answer ends learns it by the end.
        ("1.0", OK + b"\r\nok", OK + KEPT + CLOSED + b"\r\nok", False),
        # What is cut off is not completed.
        (
            "1.1",
            OK + b"Content-Length: 9\r\n\r\nhalf",
            OK + b"Content-Length: 9\r\n" + KEPT + b"\r\nhalf",
            False,
        ),
        # What cannot be read is for the client.
        ("1.1", b"ICY 200 OK\r\n\r\nmusic", b"ICY 200 OK\r\n\r\nmusic", False),
        ("1.1", b"", b"", False),
    ],
)
def test_an_answer_says_whether_the_client_s_connection_goes_on(
    version: str, answer: bytes, passed: bytes, goes_on: bool, size: int
) -> None:
    proxy, _ = web(f"GET http://a.test/ HTTP/{version}\r\nHost: x\r\n\r\n".encode())
    proxy.head()
    assert proxy.next_body() == b""
    pieces = [answer[place : place + size] for place in range(0, len(answer), size)]
    received = b""
    for piece in [*pieces, b""]:
        if not proxy.answered:
            received += proxy.receive_answer(piece)
    assert proxy.answered
    assert received == passed
    assert proxy.begin_next() is goes_on


def test_a_body_that_breaks_off_is_not_completed() -> None:
    proxy, _ = web(b"POST http://a.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
    proxy.head()
    assert proxy.next_body() == b"half"
    proxy.receive_data(b"")
    with pytest.raises(RefusedError):
        proxy.next_body()


def test_a_request_that_comes_while_an_answer_ends_is_not_lost() -> None:
    async def receive_and_cancel() -> None:
        ours, its = socket.socketpair()
        with its:
            stream = ProxyStream(ours)
            receiving = asyncio.create_task(stream.receive())
            await asyncio.sleep(0)
            its.send(b"next")
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the loop has noticed, and the task has not run since
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
            its.shutdown(socket.SHUT_WR)
            assert await stream.receive() == b"next"
            stream.close()

    asyncio.run(receive_and_cancel())


def test_a_head_without_end_is_given_up() -> None:
    proxy = WebProxy()
    proxy.receive_data(b"GET http://example.org/ HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES - 100))
    assert proxy.next_request() is None
    proxy.receive_data(b"a" * 100)
    with pytest.raises(RefusedError):
        proxy.next_request()


def socks_request(kind: int, address: bytes, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, kind)) + address + port.to_bytes(2, "big")


def name(text: bytes) -> bytes:
    return bytes((len(text),)) + text


@pytest.mark.parametrize(
    ("kind", "address", "host"),
    [
        (3, name(b"example.org"), "example.org"),
        (3, name(b"1.2.3.4"), IPv4Address("1.2.3.4")),
        (1, bytes((1, 2, 3, 4)), IPv4Address("1.2.3.4")),
        (4, IPv6Address("::1").packed, IPv6Address("::1")),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 600])
def test_socks_in_any_pieces(kind: int, address: bytes, host: Host, size: int) -> None:
    proxy, data = SocksProxy(), b"\x05\x02\x02\x00" + socks_request(kind, address, 443) + b"early"
    found, said, place = None, b"", 0
    while found is None:
        proxy.receive_data(data[place : place + size])
        place += size
        found = proxy.next_request()
        said += proxy.answers()
    assert (found.host, found.port, said) == (host, 443, b"\x05\x00")
    answer, early = proxy.begin_tunnel()
    assert answer == b"\x05\x00\x00\x01" + bytes(6)
    assert early == b"early"[: max(0, place - len(data) + 5)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x04\x01\x00\x50\x01\x02\x03\x04\x00", None),
        (b"\x05\x01\x02", None),
        (b"\x05\x01\x00" + socks_request(3, name(b"evil.test\x00.example.org"), 443), 1),
        (b"\x05\x01\x00" + socks_request(3, name(b"\xff.example.org"), 443), 1),
        (b"\x05\x01\x00" + socks_request(3, name(b""), 443), 1),
        (b"\x05\x01\x00" + socks_request(3, name(b"example.org"), 0), 1),
        (b"\x05\x01\x00" + socks_request(3, name(b"example.org"), 443, 2), 7),
        (b"\x05\x01\x00" + socks_request(3, name(b"example.org"), 53, 3), 7),
        (b"\x05\x01\x00" + socks_request(9, name(b"example.org"), 443), 8),
    ],
)
def test_a_wrong_socks_request_is_refused(data: bytes, code: int | None) -> None:
    proxy = SocksProxy()
    proxy.receive_data(data)
    with pytest.raises(RefusedError) as refused:
        proxy.next_request()
    answer = proxy.answers() + proxy.refusal(refused.value)
    expected = b"\x05\xff" if code is None else b"\x05\x00\x05" + bytes((code,))
    assert answer.startswith(expected)


@given(
    st.sampled_from(["GET", "POST", "CONNECT", "PUT"]),
    st.text(alphabet="htp:/.@%[]#?ax10\\ \x00", max_size=30),
    st.text(alphabet="Conte-Lgh:Trasf chunked0123,\r\n\x00", max_size=60),
    st.binary(max_size=40),
    st.integers(1, 30),
)
def test_a_request_cannot_add_lines_to_the_servers_head(
    method: str, target: str, headers: str, body: bytes, size: int
) -> None:
    text = f"{method} http://a.test/{target} HTTP/1.1\r\nHost: b\r\n{headers}\r\n\r\n"
    data = text.encode() + body
    proxy, request = WebProxy(), None
    try:
        for place in range(0, len(data), size):
            proxy.receive_data(data[place : place + size])
            request = request or proxy.next_request()
            if request is not None:
                break
        if request is None or request.protocol == "connect":
            return
        head = proxy.head()
    except RefusedError:
        return
    assert head.count(b"\r\n\r\n") == 1
    assert head.endswith(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].split(b" ")[0] == method.encode()
    assert len(lines[0].split(b" ")) == 3
    hosts = [line for line in lines if line.lower().startswith(b"host:")]
    assert hosts == [b"Host: a.test"]
    assert b"\x00" not in head
