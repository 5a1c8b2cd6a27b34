"""A local index of packages with TLS and credentials, and wheels and packages of npm for it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trio

HOST = "index.example.test"
HTML = "text/html; charset=utf-8"
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Asked:
    """One request that the server has got."""

    method: str
    path: str
    headers: Mapping[str, str]


Handler = Callable[["IndexHandler"], None]


@dataclass
class Held:
    """A page that is answered late.

    Attributes:
        asked: set once somebody has asked for it.
        answer: set it, and it is answered.
    """

    asked: trio.Event
    answer: threading.Event


@dataclass
class IndexServer:
    """A server of files and of answers made by functions.

    Attributes:
        host: its name in links.
        login: `USER:PASSWORD` that each request needs, or empty.
        token: bearer token that each request needs, or empty.
    """

    scheme: str
    port: int = 0
    host: str = HOST
    login: str = ""
    token: str = ""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    handlers: dict[str, Handler] = field(default_factory=dict[str, "Handler"])
    asked: list[Asked] = field(default_factory=list[Asked])
    released: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/", host: str = "") -> str:
        return f"{self.scheme}://{host or self.host}:{self.port}{path}"

    def add(self, path: str, kind: str, data: bytes | str) -> None:
        self.files[path] = (kind, data.encode() if isinstance(data, str) else data)

    def add_wheel(
        self,
        name: str,
        version: str,
        *,
        requires: str = "",
        more: Mapping[str, bytes] | None = None,
    ) -> str:
        """Add a wheel below `/files/` with its metadata. Returns the line for a page of HTML."""
        file, data, metadata = wheel(name, version, requires=requires, more=more)
        self.add(f"/files/{file}", "application/octet-stream", data)
        self.add(f"/files/{file}.metadata", "application/octet-stream", metadata)
        digest = hashlib.sha256(data).hexdigest()
        told = f"sha256={hashlib.sha256(metadata).hexdigest()}"
        return (
            f'<a href="/files/{file}#sha256={digest}" data-core-metadata="{told}"'
            f' data-dist-info-metadata="{told}">{file}</a>'
        )

    def add_project(
        self, name: str, *versions: str, requires: str = "", more: Mapping[str, bytes] | None = None
    ) -> None:
        """Add a project with a page below `/simple/`.

        Args:
            more: further files of each wheel, by path.
        """
        lines = [
            self.add_wheel(name, version, requires=requires, more=more) for version in versions
        ]
        self.add(f"/simple/{name}/", HTML, f"<html><body>{'<br>'.join(lines)}</body></html>")

    def hold(self, path: str) -> Held:
        """Answer requests for a page late. For a test that runs trio."""
        held = Held(trio.Event(), threading.Event())
        token = trio.lowlevel.current_trio_token()

        def late(handler: IndexHandler) -> None:
            token.run_sync_soon(held.asked.set)
            held.answer.wait()
            handler.answer(200, *self.files[path])

        self.handlers[path] = late
        return held

    def add_esbuild(self) -> None:
        """Add a stand-in for esbuild, which is a program of some megabytes."""
        script = tarfile.TarInfo("package/strip.js")
        self.add_npm("esbuild", "1.0.0", manifest={"bin": "strip.js"}, more=[(script, ESBUILD)])

    def add_npm(
        self,
        name: str,
        *versions: str,
        tarball: str = "",
        manifest: Mapping[str, object] | None = None,
        more: Iterable[tuple[tarfile.TarInfo, bytes]] = (),
    ) -> None:
        """Add a package of npm below `/npm/`.

        Args:
            tarball: URL of its file; empty for the usual one.
            manifest: more of its `package.json`.
            more: further entries of its file.
        """
        told: dict[str, object] = {}
        for version in versions:
            manifest = {**(manifest or {}), "name": name, "version": version}
            data = npm_tarball(manifest, more)
            file = f"/npm/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
            self.add(file, "application/octet-stream", data)
            integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
            dist = {"tarball": tarball or self.url(file), "integrity": integrity}
            told[version] = {**manifest, "dist": dist}
        page = {"name": name, "dist-tags": {"latest": versions[-1]}, "versions": told}
        self.add(f"/npm/{name.replace('/', '%2f')}", "application/json", json.dumps(page))


ESBUILD = b"""#!/usr/bin/env node
const text = require('node:fs').readFileSync(0, 'utf8');
process.stdout.write(text.replace(/: (number|string)|interface \\w+ \\{.*?\\}/g, ''));
"""


class IndexHandler(BaseHTTPRequestHandler):
    """Requests to an `IndexServer`."""

    protocol_version = "HTTP/1.1"
    index: IndexServer

    def do_GET(self) -> None:
        index = self.index
        index.asked.append(
            Asked(self.command, self.path, {n.lower(): v for n, v in self.headers.items()})
        )
        expected = f"Basic {base64.b64encode(index.login.encode()).decode()}"
        if index.token:
            expected = f"Bearer {index.token}"
        handler = index.handlers.get(self.path)
        if handler is not None:
            handler(self)
        elif (index.login or index.token) and self.headers.get("Authorization") != expected:
            self.answer(401, HTML, f"no: {self.headers.get('Authorization')}".encode())
        elif (found := index.files.get(self.path)) is not None:
            self._file(*found)
        else:
            self.answer(404, HTML, b"nothing here")

    do_HEAD = do_GET  # noqa: N815

    def _file(self, kind: str, data: bytes) -> None:
        etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == etag:
            self.answer(304, kind, b"", {"ETag": etag})
            return
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Set-Cookie": "id=1"}
        said = self.headers.get("Range", "")
        if said.startswith("bytes="):
            first, _, last = said[6:].partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(int(last), len(data) - 1) if first and last else len(data) - 1
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            self.answer(206, kind, data[start : end + 1], headers)
        elif kind == HTML and "gzip" in self.headers.get("Accept-Encoding", ""):
            self.answer(200, kind, gzip.compress(data), {**headers, "Content-Encoding": "gzip"})
        else:
            self.answer(200, kind, data, headers)

    def answer(
        self, status: int, kind: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 304:
            self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def redirect(self, place: str) -> None:
        """Send the client elsewhere."""
        self.answer(302, HTML, b"", {"Location": place})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: clients go away on purpose."""


@contextmanager
def index_server(certificate: str | None) -> Generator[IndexServer]:
    """Run a server.

    Args:
        certificate: file with key and certificate; None for plain HTTP.
    """
    index = IndexServer(scheme="https" if certificate else "http")
    handler = type("Handler", (IndexHandler,), {"index": index})
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        index.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield index
        finally:
            index.released.set()
            server.shutdown()
            thread.join()


def wheel(
    name: str, version: str, *, requires: str = "", more: Mapping[str, bytes] | None = None
) -> tuple[str, bytes, bytes]:
    """Make a wheel with one module. Returns its file's name, the file, and its metadata.

    Args:
        more: further files by path.
    """
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-{version}.dist-info"
    files: dict[str, str | bytes] = {
        **(more or {}),
        f"{name}.py": f"version = __version__ = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0)), text)
    return f"{name}-{version}-py3-none-any.whl", data.getvalue(), metadata.encode()


def npm_tarball(
    manifest: Mapping[str, object], more: Iterable[tuple[tarfile.TarInfo, bytes]] = ()
) -> bytes:
    """Make a package of npm with one module."""
    main = f"module.exports = {json.dumps(manifest['version'])}\n"
    files = {"package.json": json.dumps({**manifest, "main": "index.js"}), "index.js": main}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        for entry, content in more:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()
