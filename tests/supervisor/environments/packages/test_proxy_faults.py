"""Indexes that hang, lie, or send rubbish, and clients in a jail that want more than packages."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nsm.dataclass import replace
from nsmd.environments.packages.index_proxy import fetching, page_reading
from nsmd.environments.packages.indexes import Index, IndexAccess, IndexCredentials, Indexes
from packageindex import (
    HTML,
    JSON,
    Authority,
    Got,
    Handler,
    IndexHandler,
    IndexServer,
    Jail,
    index_server,
    links,
    opened,
)

SECRET = b"hunter2"
NOT_NAMED = "and the user's configuration does not name that host"


async def page_of(jail: Jail, project: str = "demo") -> Got:
    return await jail.get(f"{jail.proxy.python_index_urls[0]}{project}/")


# What indexes do.


def hang(handler: IndexHandler) -> None:
    handler.index.released.wait()


def hang_in_the_middle(handler: IndexHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", HTML)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"<html>")
    handler.index.released.wait()


def end_early(handler: IndexHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", HTML)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"<html>")
    handler.close_connection = True


def no_http(handler: IndexHandler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    handler.close_connection = True


def packed_wrongly(handler: IndexHandler) -> None:
    handler.answer(200, HTML, b"not packed", {"Content-Encoding": "gzip"})


def packed_strangely(handler: IndexHandler) -> None:
    handler.answer(200, HTML, b"not packed", {"Content-Encoding": "br"})


def too_large(handler: IndexHandler) -> None:
    handler.answer(200, HTML, bytes(200_000))


def a_bomb(handler: IndexHandler) -> None:
    handler.answer(200, HTML, gzip.compress(bytes(10_000_000)), {"Content-Encoding": "gzip"})


FAULTS: list[tuple[Handler, int, str]] = [
    (hang, 504, "index.example.test does not answer in time"),
    (hang_in_the_middle, 504, "index.example.test does not answer in time"),
    (end_early, 502, "index.example.test ended its answer early, or gave none that is valid"),
    (no_http, 502, "index.example.test ended its answer early, or gave none that is valid"),
    (packed_wrongly, 502, "company sends a page that cannot be unpacked"),
    (packed_strangely, 502, "company packs its pages in an unknown way"),
    (too_large, 502, "company sends a page of more than 0 MiB"),
    (a_bomb, 502, "company sends a page of more than 0 MiB"),
    (
        lambda h: h.answer(200, "text/plain", b"hello"),
        502,
        "company sends no page of packages; is its URL the one that ends in /simple/?",
    ),
    (lambda h: h.answer(200, JSON, b"[1]"), 502, "company sends a page that is no object of JSON"),
    (lambda h: h.answer(200, JSON, b"{"), 502, "company sends a page that is no valid JSON"),
    (lambda h: h.answer(200, JSON, b"[" * 9999), 502, "company sends a page that is no valid JSON"),
    (lambda h: h.answer(200, JSON, b"{}"), 502, "company sends a page that has no list of files"),
    (lambda h: h.answer(404, HTML, b"hunter2"), 404, "company has no demo"),
    (lambda h: h.answer(500, HTML, b"hunter2"), 500, "company answers 500"),
    (
        lambda h: h.answer(403, HTML, b"hunter2", {"WWW-Authenticate": "hunter2"}),
        403,
        "company answers 403: the user's credentials for it are missing or not accepted",
    ),
    (
        lambda h: h.answer(300, HTML, b"hunter2"),
        502,
        "company answers 300, which was not expected",
    ),
    (
        lambda h: h.redirect("demo/"),
        502,
        "index.example.test redirects more than 5 times",
    ),
    (
        lambda h: h.redirect("file:///etc/passwd"),
        502,
        "index.example.test redirects to a place that is no http:// or https:// URL",
    ),
    (
        lambda h: h.redirect("https://index.example.test:1/"),
        403,
        "index.example.test:1 is at an unusual port; the user can list it for builds",
    ),
    (
        lambda h: h.redirect("https://metadata.test/latest/"),
        403,
        "metadata.test has an address that is loopback, " + NOT_NAMED,
    ),
    (
        lambda h: h.redirect("https://169.254.169.254/latest/"),
        403,
        "169.254.169.254 has an address that is link-local, " + NOT_NAMED,
    ),
    (
        lambda h: h.redirect("http://public.example/"),
        403,
        "public.example:80 is linked to without TLS; the user can list it for builds",
    ),
    (
        lambda h: h.redirect(f"http://index.example.test:{h.index.port}/"),
        403,
        "is an index with https, and is not asked without it",
    ),
]


@pytest.mark.parametrize(("fault", "status", "detail"), FAULTS)
async def test_faults_of_an_index_are_told_in_a_sentence(
    fault: Handler,
    status: int,
    detail: str,
    server: IndexServer,
    indexes: Indexes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_reading, "MAX_PAGE_BYTES", 100_000)
    if status == 504:
        access = replace(indexes.python_access, timeout_s=1)
        indexes = replace(indexes, python_access=access)
    for place in ("/simple/demo/", "/simple/demo/demo/", "/simple/demo/demo/demo/"):
        server.handlers[place] = fault
    deeper = "/simple/demo/demo/demo/"
    for _ in range(5):
        deeper += "demo/"
        server.handlers[deeper] = fault
    server.add_project("fine", "1.0")
    async with opened(indexes) as jail:
        got = await page_of(jail)
        assert (got.status, got.body.decode()) == (status, f"nsm: {got.reason}.\n")
        assert got.reason.endswith(detail)
        assert SECRET not in got.raw
        assert "www-authenticate" not in got.headers
        assert list(jail.proxy.problems) == ([] if status == 404 else [got.reason])
        assert (await page_of(jail, "fine")).status == 200


async def test_a_file_that_ends_early_is_not_taken_for_whole(
    server: IndexServer, indexes: Indexes
) -> None:
    server.add("/simple/demo/", HTML, '<a href="/demo-1.tar.gz">demo</a>')
    server.handlers["/demo-1.tar.gz"] = end_early
    async with opened(indexes) as jail:
        url = links((await page_of(jail)).body)[0]
        got = await jail.get(url)
        assert got.headers["content-length"] == "1000"
        assert len(got.body) < 1000
        assert list(jail.proxy.problems) == [
            "index.example.test ended its answer early, or gave none that is valid"
        ]


async def test_nobody_at_an_index(indexes: Indexes, authority: Authority) -> None:
    with index_server(authority.server) as gone:
        url = gone.url("/simple/")
    async with opened(replace(indexes, python=(Index(name="gone", url=url),))) as jail:
        got = await page_of(jail)
        assert got.status == 502
        assert got.reason.startswith("no connection to index.example.test")
    unknown = Index(name="unknown", url="https://nobody.example/simple/")
    async with opened(replace(indexes, python=(unknown,))) as jail:
        assert (await page_of(jail)).reason == "nobody knows an address of nobody.example"


async def test_certificates_of_others_are_not_accepted(
    indexes: Indexes, authority: Authority, tmp_path: Path
) -> None:
    with index_server(authority.stranger) as stranger:
        index = Index(name="stranger", url=stranger.url("/simple/"))
        stranger.add_project("demo", "1.0")
        mine = replace(indexes, python=(index,))
        async with opened(mine) as jail:
            got = await page_of(jail)
            assert got.status == 502
            assert got.reason.startswith("the certificate of index.example.test is not accepted")
        assert not stranger.asked
        access = replace(
            mine.python_access, insecure_hosts=(f"index.example.test:{stranger.port}",)
        )
        async with opened(replace(mine, python_access=access)) as jail:
            assert (await page_of(jail)).status == 200
        broken = replace(mine.python_access, certificates=str(tmp_path / "none"))
        async with opened(replace(mine, python_access=broken)) as jail:
            assert "cannot be used" in (await page_of(jail)).reason


async def test_several_directories_of_certificates(
    server: IndexServer, indexes: Indexes, authority: Authority, tmp_path: Path
) -> None:
    server.add_project("demo", "1.0")
    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", authority.certificate]
    digest = (await trio.run_process(command, capture_stdout=True)).stdout.decode().strip()
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / f"full/{digest}.0").symlink_to(authority.certificate)
    access = replace(
        indexes.python_access, certificates=f"{tmp_path}/empty:{tmp_path}/full:{tmp_path}/none"
    )
    async with opened(replace(indexes, python_access=access)) as jail:
        assert (await page_of(jail)).status == 200


async def test_credentials_stay_with_their_host(
    server: IndexServer, other: IndexServer, indexes: Indexes
) -> None:
    """A page and netrc name another host: credentials go there only if the user lists it."""
    server.add(
        "/simple/demo/", HTML, f'<a href="{other.url("/demo-1.whl", "other.example.test")}">'
    )
    other.add("/demo-1.whl", HTML, b"wheel")
    logins = {"other.example.test": IndexCredentials(user="bob", password="secret")}
    indexes = replace(indexes, logins=logins)
    async with opened(indexes) as jail:
        url = links((await page_of(jail)).body)[0]
        assert (await jail.get(url)).status == 403  # an unusual port, and a private address
    assert not other.asked
    async with opened(indexes, f"other.example.test:{other.port}") as jail:
        assert (await jail.get(url)).body == b"wheel"
    expected = f"Basic {base64.b64encode(b'bob:secret').decode()}"
    assert [asked.headers["authorization"] for asked in other.asked] == [expected]


# What a client in the jail does.

ATTACKS = [
    b"GET http://index.example.test:PORT/simple/demo/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET https://index.example.test:PORT/simple/demo/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://index.nsm.internal@127.0.0.1:PORT/ HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET http://index.nsm.internal:PORT/ HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET //127.0.0.1:PORT/ HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\nHost: index.example.test:PORT\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nHost: index.example.test\r\n\r\n",
    b"GET file:///etc/passwd HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET ftp://index.nsm.internal/ HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"CONNECT index.example.test:PORT HTTP/1.1\r\nHost: index.example.test:PORT\r\n\r\n",
    b"CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"CONNECT index.nsm.internal:443 HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"CONNECT 0x7f.1:PORT HTTP/1.1\r\nHost: a\r\n\r\n",
    b"CONNECT /etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nContent-Length: 1\r\n\r\nx",
    b"PUT PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nContent-Length: 1\r\n\r\nx",
    b"DELETE PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"OPTIONS PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nContent-Length: 1\r\n\r\nx",
    (
        b"GET PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\n\r\n"
    ),
    b"GET PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nUser-Agent: a\rX: b\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\nHost: index.nsm.internal\r\nUser-Agent: a\x00b\r\n\r\n",
    b"GET PAGE HTTP/1.1\r\n Host: index.nsm.internal\r\n\r\n",
    b"GET PAGE\x0b HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n",
    b"GET PAGE HTTP/2.0\r\nHost: index.nsm.internal\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x05\x01\x00",
    b"GET " + b"a" * 100_000,
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
async def test_a_client_reaches_nothing_else(
    attack: bytes, server: IndexServer, indexes: Indexes
) -> None:
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        page = f"{jail.proxy.python_index_urls[0]}demo/".removeprefix("http://index.nsm.internal")
        data = attack.replace(b"PORT", str(server.port).encode()).replace(b"PAGE", page.encode())
        try:
            answer = await jail.send(data)
        except trio.BrokenResourceError:
            answer = b""  # it was closed before all was read
        assert answer[:12] in (
            b"",
            *(f"HTTP/1.1 {status}".encode() for status in (400, 403, 404, 405, 431, 501)),
        )
        assert SECRET not in answer
        assert not server.asked


PATHS = [
    "",
    "/",
    "/python",
    "/python/SLUG/",
    "/python/SLUG/simple/",
    "/python/SLUG/simple/../../etc/",
    "/python/SLUG/simple/demo/extra",
    "/python/SLUG/simple/%2e%2e/",
    "/python/SLUG/simple/demo%2f..%2fother/",
    "/python/SLUG/simple/demo?x=1",
    "/python/other-000000000000/simple/demo/",
    "/npm/SLUG/demo",
    "/links/SLUG/",
    "/files/SLUG/AAAA/demo.whl",
    "/files/SLUG//demo.whl",
    "/files/SLUG/é/demo.whl",
    "/files/listed/AAAA/demo.whl",
    "/files/SLUG/" + base64.urlsafe_b64encode(b"https://127.0.0.1/").decode() + "/demo.whl",
]


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_under_other_urls(
    path: str, server: IndexServer, indexes: Indexes
) -> None:
    async with opened(indexes) as jail:
        slug = jail.proxy.python_index_urls[0].split("/")[4]
        data = (
            f"GET {path.replace('SLUG', slug) or '/'} HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n"
        )
        answer = await jail.send(data.encode("latin-1"))
        assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")
        assert not server.asked


async def test_a_link_of_one_index_is_none_of_another(
    server: IndexServer, other: IndexServer, indexes: Indexes
) -> None:
    """Else an index could lead the jail to hosts with what another index is allowed."""
    server.add_project("demo", "1.0")
    second = Index(name="second", url=other.url("/simple/"))
    async with opened(replace(indexes, python=(*indexes.python, second))) as jail:
        first, other_base = jail.proxy.python_index_urls
        url = links((await jail.get(f"{first}demo/")).body)[0].partition("#")[0]
        assert (await jail.get(url)).status == 200
        exchanged = url.replace(first.split("/")[4], other_base.split("/")[4])
        assert exchanged != url
        assert (await jail.get(exchanged)).status == 404
        assert (await jail.get(url.replace("/files/", "/files/listed-"))).status == 404
        flipped = url[:80] + ("A" if url[80] != "A" else "B") + url[81:]
        assert (await jail.get(flipped)).status == 404


async def test_headers_of_the_client_do_not_pass(server: IndexServer, indexes: Indexes) -> None:
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        await jail.get(
            f"{jail.proxy.python_index_urls[0]}demo/",
            *("Authorization: Basic eDp5", "Cookie: a=b", "X-Forwarded-For: 1.2.3.4", "Via: x"),
            *("Proxy-Authorization: Basic eDp5", "User-Agent: pip/1", "Accept: text/html"),
        )
    (asked,) = server.asked
    assert asked.headers == {
        "host": f"index.example.test:{server.port}",
        "accept": "text/html",
        "user-agent": "pip/1",
        "accept-encoding": "gzip",
        "authorization": f"Basic {base64.b64encode(server.login.encode()).decode()}",
    }


async def test_connect_reaches_hosts_that_the_user_lists(
    server: IndexServer, other: IndexServer, indexes: Indexes
) -> None:
    with index_server(None) as plain:
        plain.add("/hello", HTML, b"hello")
        async with opened(indexes, f"plain.example.test:{plain.port}") as jail:
            asked = f"CONNECT plain.example.test:{plain.port} HTTP/1.1\r\nHost: a\r\n\r\n"
            request = "GET /hello HTTP/1.0\r\nHost: plain\r\n\r\n"
            answer = await jail.send((asked + request).encode())
            assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200")
            assert answer.endswith(b"hello")
            await jail.send(f"CONNECT plain.example.test:{other.port} HTTP/1.1\r\n\r\n".encode())
            assert list(jail.proxy.problems) == []
    async with opened(indexes, "*") as jail:
        answer = await jail.send(
            f"CONNECT a.test:{server.port} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 403 ")  # only ports 80 and 443
    async with opened(indexes, "*:*") as jail:
        answer = await jail.send(
            f"CONNECT a.test:{server.port} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        )
        assert b"a.test has an address that is loopback" in answer


# The user's own proxy.


@pytest.fixture
def user_proxy() -> Iterator[tuple[str, list[str]]]:
    """Run a proxy that notes what it is asked for, and leads nowhere."""
    with index_server(None) as server:
        asked: list[str] = []

        def connect(handler: IndexHandler) -> None:
            asked.append(f"{handler.path} {handler.headers.get('Proxy-Authorization')}")
            handler.answer(407, HTML, b"hunter2")

        from unittest.mock import patch

        with patch.object(IndexHandler, "do_CONNECT", connect, create=True):
            yield f"http://eve:pw@127.0.0.1:{server.port}", asked


async def test_the_user_s_own_proxy_is_used_for_hosts_with_a_name(
    user_proxy: tuple[str, list[str]], server: IndexServer, indexes: Indexes
) -> None:
    url, asked = user_proxy
    server.add("/simple/demo/", HTML, '<a href="https://public.example/demo-1.whl">')
    access = replace(indexes.python_access, proxies={"https": url})
    async with opened(replace(indexes, python_access=access)) as jail:
        got = await page_of(jail)
        assert got.reason == (
            "the user's own proxy does not lead to index.example.test: it says 407 Proxy"
            " Authentication Required"
        )
        told = base64.b64encode(b"eve:pw").decode()
        assert asked == [f"index.example.test:{server.port} Basic {told}"]
        assert b"eve" not in got.raw
    excepted = replace(access, no_proxy=(".example.test",))
    async with opened(replace(indexes, python_access=excepted)) as jail:
        page = await page_of(jail)
        assert page.status == 200
        got = await jail.get(links(page.body)[0])
        assert got.reason == (
            "public.example is linked to, but behind the user's proxy nsm cannot tell whether its"
            " address is public; the user can list it for builds"
        )
    assert len(asked) == 1


async def test_connections_that_break(server: IndexServer, indexes: Indexes) -> None:
    """A client that resets its connection in the middle disturbs nobody."""
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        url = f"{jail.proxy.python_index_urls[0]}demo/"
        page = f"GET {url} HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n"
        for cut in (0, 10, len(page)):
            client = socket.create_connection(("127.0.0.1", jail.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(page[:cut].encode())
            client.close()
        assert (await page_of(jail)).status == 200


def test_limits_fit_each_other() -> None:
    assert page_reading.MAX_PAGE_BYTES <= page_reading.MAX_ALL_BYTES
    assert fetching.MAX_CONNECTIONS > 50, "uv begins 50 downloads at once"
    assert (
        json.loads(json.dumps(repr(IndexAccess(proxies={"http": "secret"})))).count("secret") == 0
    )
