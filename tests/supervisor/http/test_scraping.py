"""The metrics over HTTP, with real sockets: what is served, to whom, and how long one waits."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsm.http.connection import MAX_HEAD_BYTES
from nsmd.http.scraping import MAX_SCRAPES, SCRAPE_TIMEOUT_S, SHARE, Paced, serve_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    Page = Callable[[str], Awaitable[tuple[bytes, str]]]

BODY = b"# the metrics\n"


async def text(accept: str) -> tuple[bytes, str]:
    await trio.lowlevel.checkpoint()
    return BODY, f"text/plain; accepted={accept or '-'}"


@pytest.fixture
def path() -> Generator[str]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        yield f"{directory}/metrics.sock"


@asynccontextmanager
async def serving(path: str, port: int | None = None, page: Page = text) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, path, port, page)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def exchange(stream: trio.SocketStream, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of an answer; both are empty where there is none."""
    async with stream:
        await stream.send_all(request)
        answer = b""
        async for chunk in stream:
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def over_tcp(port: int, request: bytes) -> tuple[bytes, bytes]:
    return await exchange(await trio.open_tcp_stream("127.0.0.1", port), request)


def get(target: str = "/metrics", *, host: str = "localhost", method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nAccept: a/b\r\n\r\n".encode()


async def test_the_page_and_its_length(path: str) -> None:
    async with serving(path):
        for target in ("/metrics", "/metrics?name=x"):
            head, body = await exchange(await trio.open_unix_socket(path), get(target))
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            headers = head.split(b"\r\n")
            assert b"content-type: text/plain; accepted=a/b" in headers
            assert f"content-length: {len(BODY)}".encode() in headers
            assert {b"cache-control: no-store", b"connection: close"} <= {*headers}
            assert body == BODY


async def test_the_socket_of_metrics_is_private_and_removed_at_the_end(path: str) -> None:
    async with serving(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), 404),
        (get("/metrics/"), 404),
        (get("/metrics", method="POST"), 405),
        (get("/metrics", method="HEAD"), 405),
        (b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: " + b"a" * MAX_HEAD_BYTES, 431),
    ],
    ids="path slash post head empty hello tls long".split(),
)
async def test_only_metrics_are_served(path: str, request_: bytes, status: int) -> None:
    async with serving(path):
        head, body = await exchange(await trio.open_unix_socket(path), request_)
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
        assert BODY not in body
        assert (b"\r\nallow: GET" in head) == (status == 405)


async def test_on_loopback_a_name_of_a_web_page_s_own_is_refused(path: str) -> None:
    port = free_port()
    async with serving(path, port):
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}"):
            head, body = await over_tcp(port, get(host=host))
            assert (head.split()[1], body) == (b"200", BODY), host
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.x"):
            head, body = await over_tcp(port, get(host=host))
            assert head.split()[1] == b"403", host
            assert BODY not in body
        request = b"GET /metrics HTTP/1.0\r\n\r\n"  # HTTP/1.1 without Host is no request at all
        head, _ = await over_tcp(port, request)
        assert head.split()[1] == b"403"


async def test_a_port_that_is_taken_costs_the_port_only(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with serving(path, port):
            _, body = await exchange(await trio.open_unix_socket(path), get())
            assert body == BODY
    assert f"no metrics on 127.0.0.1 port {port}" in caplog.text


async def test_something_in_the_socket_s_place_is_left_there(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(path).write_text("not a socket")
    async with serving(path):
        pass
    assert Path(path).read_text() == "not a socket"
    assert "no socket for metrics" in caplog.text


async def test_a_socket_that_a_dead_supervisor_left_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    async with serving(path):
        _, body = await exchange(await trio.open_unix_socket(path), get())
        assert body == BODY


async def test_silent_and_slow_clients_are_few_and_not_for_long(
    path: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(path):
        begin = trio.current_time()
        silent = [await trio.open_unix_socket(path) for _ in range(MAX_SCRAPES - 1)]
        slow = await trio.open_unix_socket(path)
        await slow.send_all(get()[:-2])  # all but the end
        _, body = await exchange(await trio.open_unix_socket(path), get())
        assert body == BODY, "once the others are gone"
        assert trio.current_time() - begin == pytest.approx(SCRAPE_TIMEOUT_S)
        for stream in (*silent, slow):
            assert await stream.receive_some(1) == b""
            await stream.aclose()


async def test_a_client_that_reads_nothing_is_dropped(
    path: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def large(accept: str) -> tuple[bytes, str]:
        await trio.lowlevel.checkpoint()
        return b"x" * 10_000_000, "text/plain"

    async with serving(path, page=large):
        stream = await trio.open_unix_socket(path)
        await stream.send_all(get())
        await trio.sleep(SCRAPE_TIMEOUT_S + 1)
        received = 0
        async for chunk in stream:
            received += len(chunk)
        assert 0 < received < 10_000_000
        await stream.aclose()


async def test_a_flood_takes_a_fifth_of_the_time_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made: list[float] = []

    async def slow(accept: str) -> tuple[bytes, str]:
        await trio.sleep(0.1)
        made.append(trio.current_time())
        return BODY, accept

    paced, begin = Paced(slow), trio.current_time()
    async with trio.open_nursery() as asking:
        for number in range(4):
            asking.start_soon(paced, str(number))
    took = [each - begin for each in made]
    assert took == [pytest.approx(0.1 + 0.1 / SHARE * number) for number in range(4)]
    await trio.sleep(60)
    begin = trio.current_time()
    assert await paced("late") == (BODY, "late")
    assert trio.current_time() - begin == pytest.approx(0.1), "who comes seldom does not wait"


async def test_clients_that_go_away_disturb_no_others(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path):
        for part in (b"", b"GET /metr", get()):
            for _ in range(MAX_SCRAPES + 1):
                stream = await trio.open_unix_socket(path)
                if part:
                    await stream.send_all(part)
                await stream.aclose()
        _, body = await exchange(await trio.open_unix_socket(path), get())
        assert body == BODY
    assert not caplog.records


async def test_a_failure_is_logged_and_costs_one_answer(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    async def failing(accept: str) -> tuple[bytes, str]:
        calls.append(accept)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "no more")
        return await text(accept)

    async with serving(path, page=failing):
        head, _ = await exchange(await trio.open_unix_socket(path), get())
        assert head.startswith(b"HTTP/1.1 500 ")
        _, body = await exchange(await trio.open_unix_socket(path), get())
        assert body == BODY
    assert "a request over HTTP failed" in caplog.text
