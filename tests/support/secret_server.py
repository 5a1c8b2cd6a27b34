"""A TLS server on this machine's loopback that shows its requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

from certificates import NAME

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

PACKAGE_PAGE = b'<a href="/files/nsm_sample-1.0-py3-none-any.whl">nsm_sample-1.0</a>'
NPM_PAGE = b"""{"name": "nsm-sample", "dist-tags": {"latest": "1.0.0"}, "versions":
{"1.0.0": {"name": "nsm-sample", "version": "1.0.0", "description": "a sample"}}}"""


class _Handler(BaseHTTPRequestHandler):
    """Shows requests in many forms."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the headers' acknowledgement
    seen: ClassVar[list[tuple[str, str, Mapping[str, str], bytes]]]
    repositories: ClassVar[Path | None]
    go_on: ClassVar[threading.Event]

    def do_GET(self) -> None:
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append((self.command, self.path, headers, body))
        shown = headers.get("authorization", "none").encode()
        form = self.path.partition("?")[0].strip("/")
        match form:
            case "plain":
                self._answer(shown)
            case "gzip":
                self._answer(gzip.compress(shown), coding="gzip")
            case "br":
                self._answer(shown, coding="br")
            case "base64":
                self._answer(base64.b64encode(b"so: " + shown))
            case "escaped":
                self._answer("".join(f"\\u{byte:04x}" for byte in shown).encode())
            case "url":
                self._answer("".join(f"%{byte:02X}" for byte in shown).encode())
            case "header":
                self._answer(b"", more={"X-Seen": shown.decode()})
            case "chunked":
                self._answer_in_pieces(shown)
            case "refused":
                self._answer(b"no", status=401)
            case "trickle":
                self._answer_byte_by_byte(shown)
            case "slow":
                self._answer_slowly(shown + b"\n")
            case "websocket":
                self._speak_websocket(shown)
            case _ if form.startswith(("git/", "simple/", "npm/")) and shown == b"none":
                more = {"WWW-Authenticate": 'Basic realm="tests"'}
                self._answer(b"who are you?", status=401, more=more)
            case "simple/nsm-sample":
                self._answer(PACKAGE_PAGE, more={"Content-Type": "text/html"})
            case "npm/nsm-sample":
                self._answer(NPM_PAGE, more={"Content-Type": "application/json"})
            case _ if form.startswith("git/"):
                self._serve_git(form.removeprefix("git"), body)
            case _:
                self._answer(b"ok")

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815 - names of the standard library

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _serve_git(self, path: str, body: bytes) -> None:
        """Have git's own program answer (git-http-backend(1), CGI)."""
        assert self.repositories is not None, "it was given"
        variables = {
            "GIT_PROJECT_ROOT": str(self.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "me",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": self.path.partition("?")[2],
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "PATH": os.defpath,
        }
        done = subprocess.run(
            ["git", "http-backend"], env=variables, input=body, capture_output=True, check=True
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        rows = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(rows.pop("Status", "200").split()[0])
        self._answer(answer, status=status, more=rows)

    def _answer_slowly(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(2 * len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.go_on.wait()
        self.wfile.write(body)

    def _speak_websocket(self, shown: bytes) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.end_headers()
        self.wfile.write(b"\x81%c%s" % (len(shown), shown))
        self.wfile.flush()
        self.wfile.write(b"\x82\x04" + self.rfile.read(10)[6:])
        self.close_connection = True

    def _answer(
        self, body: bytes, *, status: int = 200, coding: str = "", more: Mapping[str, str] = {}
    ) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        if coding:
            self.send_header("Content-Encoding", coding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_in_pieces(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for byte in body:
            self.wfile.write(b"1\r\n%c\r\n" % byte)
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _answer_byte_by_byte(self, body: bytes) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body):
            self.wfile.write(bytes((byte,)))
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is there
        """Say nothing."""


class SecretServer:
    """The running server.

    Attributes:
        port: its port on 127.0.0.1.
        seen: method, path, headers and body of each request.
        go_on: set for the second half of slow answers.
    """

    def __init__(
        self,
        port: int,
        seen: list[tuple[str, str, Mapping[str, str], bytes]],
        go_on: threading.Event,
    ) -> None:
        self.port = port
        self.seen = seen
        self.go_on = go_on

    @property
    def host(self) -> str:
        """Name and port, as jails reach it."""
        return f"{NAME}:{self.port}"

    def url(self, path: str) -> str:
        return f"https://{self.host}/{path}"

    def last(self, header: str = "authorization") -> str | None:
        """A header of the latest request."""
        return self.seen[-1][2].get(header)


@contextmanager
def secret_server(
    certificate: Path, *, repositories: Path | None = None
) -> Generator[SecretServer]:
    """Serve until the end of the block.

    Args:
        repositories: directory of repositories for git.
    """
    seen: list[tuple[str, str, Mapping[str, str], bytes]] = []
    go_on = threading.Event()
    facts = {"seen": seen, "repositories": repositories, "go_on": go_on}
    handler = type("Handler", (_Handler,), facts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield SecretServer(server.server_address[1], seen, go_on)
        finally:
            go_on.set()
            server.shutdown()
            thread.join()
