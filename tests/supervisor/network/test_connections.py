"""The user's own proxy: when it is used, and what it may answer."""

from __future__ import annotations

import contextlib
from ipaddress import ip_address

import pytest
import trio
import trio.testing

from netbench import Names
from nsmd.model.host_rules import Host
from nsmd.network import connections
from nsmd.network.connections import connect_through, is_excepted
from nsmd.network.decisions import RefusedError


@pytest.mark.parametrize(
    ("host", "port", "excepted", "expected"),
    [
        ("a.test", 443, "a.test", True),
        ("b.a.test", 443, "a.test", True),
        ("b.a.test", 443, ".a.test", True),
        ("b.a.test", 443, "*.a.test", True),
        ("ba.test", 443, "a.test", False),
        ("a.test", 443, "a.test:443", True),
        ("a.test", 443, "a.test:80", False),
        ("a.test", 443, "*", True),
        ("a.test", 443, "", False),
        (ip_address("10.1.2.3"), 80, "10.0.0.0/8", True),
        (ip_address("10.1.2.3"), 80, "10.1.2.3:80", True),
        (ip_address("11.1.2.3"), 80, "10.0.0.0/8,a.test", False),
        (ip_address("::1"), 80, "::1", True),
        (ip_address("fd00::1"), 80, "[fd00::/8]", True),
    ],
)
def test_hosts_without_the_user_s_proxy(
    host: Host, port: int, excepted: str, expected: bool
) -> None:
    assert is_excepted(host, port, tuple(each for each in excepted.split(",") if each)) is expected


async def refusal(url: str, host: str = "a.test") -> str:
    names = Names({"proxy.test": ["127.0.0.1"]})
    with pytest.raises(RefusedError) as refused:
        await connect_through(url, host, 443, names)
    return refused.value.detail


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("socks5://proxy.test", "socks5://, where nsm can use http:// only"),
        ("https://proxy.test", "https://, where nsm can use http:// only"),
        ("http://proxy.test:x", "an invalid URL"),
        ("http://eve:secret@0x7f.1", "an invalid URL"),
        ("http://eve:secret@proxy.test:1", "does not answer at proxy.test:1: "),
        ("nobody.test:80", "nobody.test is allowed, but has no address"),
    ],
)
async def test_proxies_that_nsm_cannot_use(url: str, words: str) -> None:
    told = await refusal(url)
    assert words in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\nsecret", "it says 407 Proxy Auth"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "it gives no answer"),
        (b"HTTP/1.1 200", "it gives no answer"),
        (b"", "it gives no answer"),
        (b"HTTP/1.1 200 OK\r\n\r\nearly", "it says 200 OK"),
        (b"A" * 100_000, "it gives no answer"),
    ],
)
async def test_answers_of_a_proxy(answer: bytes, words: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            asked = await stream.receive_some()
            assert asked.startswith(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n")
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        (port,) = {each.socket.getsockname()[1] for each in listeners[:1]}
        told = await refusal(f"http://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()
    assert words in told
    assert "secret" not in told


async def test_a_proxy_that_hangs_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    ours, its = trio.testing.memory_stream_pair()
    del its
    with pytest.raises(RefusedError, match="gives no answer"):
        await connections.open_tunnel(ours, "a.test", 443, "")  # type: ignore[arg-type]
