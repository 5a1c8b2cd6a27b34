"""Pages and files through the proxy for builds, from a local index with TLS and credentials."""

from __future__ import annotations

import hashlib
import json

import pytest
import trio

from nsmd.environments.packages.index_proxy import handler
from nsmd.environments.packages.indexes import Index, Indexes
from packageindex import HOST, HTML, JSON, IndexServer, links, opened, wheel


async def test_a_page_and_its_files_come_with_hashes_and_without_credentials(
    server: IndexServer, indexes: Indexes
) -> None:
    server.add_project("demo", "1.0", "2.0")
    async with opened(indexes) as jail:
        (base,) = jail.proxy.python_index_urls
        page = await jail.get(f"{base}demo/")
        assert page.status == 200
        assert page.headers["content-type"] == HTML
        first, _ = links(page.body)
        url, _, fragment = first.partition("#")
        name, data, metadata = wheel("demo", "1.0")
        assert url.endswith(f"/{name}")
        assert fragment == f"sha256={hashlib.sha256(data).hexdigest()}"
        assert hashlib.sha256(metadata).hexdigest().encode() in page.body
        file = await jail.get(url)
        assert (file.status, file.body) == (200, data)
        assert (await jail.get(f"{url}.metadata")).body == metadata
        assert jail.proxy.index_url(url) == server.url(f"/files/{name}")
        for answer in (page, file):
            assert "set-cookie" not in answer.headers
            assert b"hunter2" not in answer.raw
            assert server.url().encode() not in answer.raw
        assert jail.proxy.bytes_received > len(data)
        assert not jail.proxy.problems


async def test_json_pages_keep_what_is_said_of_files(server: IndexServer, indexes: Indexes) -> None:
    file = {
        "filename": "demo-1.0-py3-none-any.whl",
        "url": "../../files/demo-1.0-py3-none-any.whl?signature=secret",
        "hashes": {"sha256": "ab"},
        "requires-python": ">=3.8",
        "core-metadata": {"sha256": "cd"},
        "size": 12,
        "upload-time": "2024-01-01T00:00:00Z",
        "yanked": "broken",
        "provenance": "https://elsewhere.test/",
    }
    page = {"meta": {"api-version": "1.1"}, "name": "demo", "versions": ["1.0"], "files": [file]}
    server.add("/simple/demo/", JSON, json.dumps(page))
    server.add("/files/demo-1.0-py3-none-any.whl?signature=secret", HTML, b"wheel")
    async with opened(indexes) as jail:
        got = await jail.get(f"{jail.proxy.python_index_urls[0]}demo/", f"Accept: {JSON}")
        assert got.headers["content-type"] == JSON
        told = json.loads(got.body)
        (row,) = told.pop("files")
        assert told == {"meta": {"api-version": "1.1"}, "name": "demo", "versions": ["1.0"]}
        url = row.pop("url")
        assert row == {k: v for k, v in file.items() if k not in ("url", "provenance")}
        assert b"secret" not in got.raw
        assert (await jail.get(url)).body == b"wheel"
    assert server.asked[0].headers["accept"] == JSON


async def test_urls_are_the_same_in_each_build_and_others_with_another_key(
    server: IndexServer, indexes: Indexes
) -> None:
    server.add_project("demo", "1.0")
    seen: list[bytes] = []
    for key in (bytes(32), bytes(32), bytes([1] * 32)):
        async with opened(indexes, key=key) as jail:
            (base,) = jail.proxy.python_index_urls
            seen.append(base.encode() + (await jail.get(f"{base}demo/")).body)
    assert seen[0] == seen[1]
    assert links(seen[0]) != links(seen[2])
    assert seen[0].split(b"<")[0] != seen[2].split(b"<")[0]
    async with opened(indexes, key=bytes([1] * 32)) as jail:
        stale = links(seen[0])[0].partition("#")[0]
        assert (await jail.get(stale)).status == 404


async def test_ranges_and_conditional_requests_pass(server: IndexServer, indexes: Indexes) -> None:
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        base = jail.proxy.python_index_urls[0]
        page = await jail.get(f"{base}demo/")
        again = await jail.get(f"{base}demo/", f"If-None-Match: {page.headers['etag']}")
        assert (again.status, again.body) == (304, b"")
        url = links(page.body)[0].partition("#")[0]
        whole = (await jail.get(url)).body
        head = await jail.get(url, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole))
        assert head.headers["accept-ranges"] == "bytes"
        part = await jail.get(url, "Range: bytes=-20")
        assert (part.status, part.body) == (206, whole[-20:])
        size = len(whole)
        assert part.headers["content-range"] == f"bytes {size - 20}-{size - 1}/{size}"
        etag = head.headers["etag"]
        assert (await jail.get(url, f"If-None-Match: {etag}")).status == 304


async def test_pages_of_pypi_are_fresh_for_ten_minutes(
    server: IndexServer, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        url = f"{jail.proxy.python_index_urls[0]}demo/"
        assert "cache-control" not in (await jail.get(url)).headers
        monkeypatch.setattr(handler, "_PYPI", HOST)
        assert (await jail.get(url)).headers["cache-control"] == "max-age=600"


async def test_npm_packages(server: IndexServer, indexes: Indexes) -> None:
    server.add_npm("left", "1.0.0")
    server.add_npm("@acme/right", "2.0.0", tarball=server.url("/elsewhere/right.tgz?token=secret"))
    server.add("/elsewhere/right.tgz?token=secret", HTML, b"right")
    async with opened(indexes) as jail:
        registry = jail.proxy.npm_registries[""]
        told = json.loads((await jail.get(f"{registry}left")).body)
        dist = told["versions"]["1.0.0"]["dist"]
        assert dist["tarball"] == f"{registry}left/-/left-1.0.0.tgz"
        assert dist["integrity"].startswith("sha512-")
        assert (await jail.get(dist["tarball"])).body == server.files["/npm/left/-/left-1.0.0.tgz"][
            1
        ]
        original = server.url("/npm/left/-/left-1.0.0.tgz")
        assert jail.proxy.proxy_url(original) == dist["tarball"]
        assert jail.proxy.index_url(dist["tarball"]) == original
        for name in ("@acme%2fright", "@acme/right"):
            got = await jail.get(f"{registry}{name}")
            assert b"secret" not in got.raw
            tarball = json.loads(got.body)["versions"]["2.0.0"]["dist"]["tarball"]
            assert (await jail.get(tarball)).body == b"right"
        for path in ("-/whoami", "-/npm/v1/tokens", "left/-/../../secret", ""):
            assert (await jail.get(f"{registry}{path}")).status == 404
    assert not [asked for asked in server.asked if "whoami" in asked.path or "v1" in asked.path]


async def test_a_page_of_links(server: IndexServer, indexes: Indexes) -> None:
    line = server.add_wheel("demo", "1.0")
    server.add("/links.html", HTML, f"<base href='/other/'>{line}")
    page = Index(
        name="links", url=server.url("/links.html"), credentials=indexes.python[0].credentials
    )
    async with opened(Indexes(link_pages=(page,), python_access=indexes.python_access)) as jail:
        (url,) = jail.proxy.link_page_urls
        got = await jail.get(url)
        assert (await jail.get(links(got.body)[0].partition("#")[0])).status == 200
        assert jail.proxy.python_index_urls == ()


async def test_redirects_are_followed_here(
    server: IndexServer, other: IndexServer, indexes: Indexes
) -> None:
    server.add_project("demo", "1.0")
    server.handlers["/simple/old/"] = lambda h: h.redirect("../demo/?key=secret")
    server.files["/simple/demo/?key=secret"] = server.files["/simple/demo/"]
    server.handlers["/files/demo-1.0-py3-none-any.whl"] = lambda h: h.redirect(
        other.url("/blob?signature=secret")
    )
    other.add("/blob?signature=secret", HTML, b"blob")
    async with opened(indexes, f"*.example.test:{other.port}") as jail:
        page = await jail.get(f"{jail.proxy.python_index_urls[0]}old/")
        assert page.status == 200
        file = await jail.get(links(page.body)[0].partition("#")[0])
        assert (file.status, file.body) == (200, b"blob")
        assert b"secret" not in page.raw + file.raw
        assert "location" not in file.headers
    # The credentials are the index's own and do not go along.
    assert "authorization" in server.asked[-1].headers
    assert not [asked for asked in other.asked if "authorization" in asked.headers]


async def test_many_requests_at_once(server: IndexServer, indexes: Indexes) -> None:
    server.add_project("demo", "1.0")
    async with opened(indexes) as jail:
        base = jail.proxy.python_index_urls[0]
        page = await jail.get(f"{base}demo/")
        url = links(page.body)[0].partition("#")[0]
        statuses: list[int] = []

        async def get(each: str) -> None:
            statuses.append((await jail.get(each)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(80):
                nursery.start_soon(get, url)
                nursery.start_soon(get, f"{base}demo/")
        assert statuses == [200] * 160


async def test_a_large_file_takes_little_memory_and_waits_for_its_reader(
    server: IndexServer, indexes: Indexes
) -> None:
    size = 300 * 1024 * 1024

    def send(handler: object) -> None:
        from packageindex import IndexHandler

        assert isinstance(handler, IndexHandler)
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        piece = bytes(1024 * 1024)
        for _ in range(size // len(piece)):
            handler.wfile.write(piece)

    server.add("/simple/big/", HTML, '<a href="/big-1.0-py3-none-any.whl">big</a>')
    server.handlers["/big-1.0-py3-none-any.whl"] = send
    async with opened(indexes) as jail:
        page = await jail.get(f"{jail.proxy.python_index_urls[0]}big/")
        url = links(page.body)[0]
        stream = await trio.open_tcp_stream("127.0.0.1", jail.port)
        async with stream:
            await stream.send_all(
                f"GET {url} HTTP/1.1\r\nHost: index.nsm.internal\r\n\r\n".encode()
            )
            await stream.receive_some(1000)
            before = jail.proxy.bytes_received
            with trio.move_on_after(1):
                await trio.sleep_forever()
            assert jail.proxy.bytes_received - before < 64 * 1024 * 1024
        assert (await jail.get(f"{jail.proxy.python_index_urls[0]}big/")).status == 200
