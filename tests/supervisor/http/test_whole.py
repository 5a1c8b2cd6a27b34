"""A real supervisor and the SDK's client, over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import ExitStack

import httpx2
import pytest
from mcp_types import CallToolResult, TextContent

from e2e_support import Supervisor, supervisor
from http_support import sdk_client, token_of, url_of
from nsmd.doctor.supervisor import ask_supervisor

UNREAD = 8
"""Connections whose clients do not read, and are there when the supervisor ends."""


@pytest.fixture(scope="module")
def unread() -> Generator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, unread: ExitStack) -> Generator[Supervisor]:
    directory = tmp_path_factory.mktemp("h")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = f'[http]\nenabled = true\nlisten = "127.0.0.1:{port}"\n'
    with supervisor(directory, config=config) as running:
        yield running


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def run(code: str, session: str = "new") -> dict[str, str]:
    return {"env": "python", "code": code, "session": session}


async def test_a_client_over_http_reaches_nothing_of_others(served: Supervisor) -> None:
    with served.client(scope="mine") as mine:
        mine.run("secret = 1", env="python", session="mine")
    async with sdk_client(url_of(served), token_of(served)) as client:
        call = run("print('secret' in globals())", "mine")
        assert text_of(await client.call_tool("run", call)).startswith("False\n")
        token = served.directory / "state" / "nsm" / "http-token"
        call = run(f"import os; print(os.path.exists({str(token)!r}))", "mine")
        assert text_of(await client.call_tool("run", call)) == "False\n"


async def test_another_token_holds_at_once(served: Supervisor) -> None:
    url, before = url_of(served), token_of(served)
    after = token_of(served, "--rotate")
    assert after == token_of(served) != before
    async with httpx2.AsyncClient(verify=False) as client:
        refused = await client.post(url, headers={"Authorization": f"Bearer {before}"})
        assert refused.status_code == 401
        let_in = await client.post(url, headers={"Authorization": f"Bearer {after}"})
        assert let_in.status_code != 401


@pytest.mark.slow  # another supervisor is tried, and started
async def test_after_a_reload_clients_come_again_and_nothing_is_lost(served: Supervisor) -> None:
    url, token = url_of(served), token_of(served)
    async with sdk_client(url, token, "legacy") as client:
        await client.call_tool("run", run("kept = 5", "kept"))
    code = "import time; print('begun', flush=True); time.sleep(1); kept += 1"
    with send_call(url, token, run(code, "kept")) as gone:
        got = b""
        while b"begun" not in got:
            data = gone.recv(4096)
            assert data, got
            got += data
    assert served.run("nsm", "reload").returncode == 0
    async with sdk_client(url, token, "legacy") as client:
        assert (
            text_of(await client.call_tool("run", run("print(kept)", "kept"))) == "6\n[exit code 0]"
        )


def send_call(url: str, token: str, arguments: dict[str, str]) -> socket.socket:
    """A call of `run` of the handshake's revisions, whose answer nobody reads."""
    accept = "application/json, text/event-stream"
    headers = {"Authorization": f"Bearer {token}", "Accept": accept}
    with httpx2.Client(headers=headers, verify=False) as client:
        info = {"name": "x", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        session = client.post(url, json=begin).headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        client.post(url, json=told, headers={"mcp-session-id": session})
    asked = {"name": "run", "arguments": arguments, "_meta": {"progressToken": 1}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked}
    body = json.dumps(call)
    host, port = url.split("/")[2].split(":")
    stream = socket.create_connection((host, int(port)))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: {host}:{port}",
        *(f"{name}: {value}" for name, value in headers.items()),
        "Content-Type: application/json",
        f"Mcp-Session-Id: {session}",
        f"Content-Length: {len(body)}",
        "",
        body,
    ]
    stream.sendall("\r\n".join(lines).encode())
    return stream


def test_the_token_is_in_nothing_that_is_written(served: Supervisor) -> None:
    token = token_of(served)
    written = [served.log, *(served.directory / "state").rglob("*")]
    for path in written:
        if path.is_file() and path.name != "http-token":
            assert token.encode() not in path.read_bytes(), path
    for command in (("status", "--json"), ("http", "--json"), ("events",), ("status", "metrics")):
        assert token not in served.run("nsm", *command).stdout


def test_at_the_end_nobody_is_waited_for_who_does_not_read(
    served: Supervisor, unread: ExitStack
) -> None:
    """The end is the fixture's, which allows for no more than 20 s, and for nothing left behind."""
    url, token = url_of(served), token_of(served)
    code = "for _ in range(1000): print('x' * 2000)"
    for number in range(UNREAD):
        unread.enter_context(send_call(url, token, run(code, f"flood-{number % 2}")))
    facts = json.loads(served.run("nsm", "http", "--json").stdout)
    assert facts["connections"] >= UNREAD
    status = json.loads(served.run("nsm", "status", "--json").stdout)["http"]
    assert (status["url"], status["token"]) == (url, True)
    assert status["connections"] >= UNREAD
    said = ask_supervisor(str(served.socket))  # as `nsm doctor`
    assert said is not None
    assert said["url"] == url
