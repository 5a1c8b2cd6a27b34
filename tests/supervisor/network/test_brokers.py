"""Brokers of proxies: each for one session, replaced if it dies, and not trusted."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from netbench import Names, change_brokers
from nsmd.host.processes import has_ended
from nsmd.model.host_rules import parse_rules, show_host
from nsmd.model.values import NetworkRule
from nsmd.network import broker_process, session_proxy
from nsmd.network.broker_messages import BrokerProtocolError, parse_message
from nsmd.network.gateway import Gateway
from proxy_bench import ALLOWED, Bench, open_bench, read_all, say, tunnel_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsmd.model.host_rules import Address


def broker_of(bench: Bench) -> int:
    pid: int = bench.network.facts()["broker_pid"]
    return pid


async def hold_tunnel(bench: Bench, port: int, server: socket.socket) -> trio.SocketStream:
    stream = await say(port, tunnel_to(server))
    assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 200 ")
    assert bench.network.facts()["connections"] == 1
    return stream


async def test_a_killed_broker_ends_its_connections_and_is_replaced() -> None:
    gateway = Gateway(Names())
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with open_bench(ALLOWED, gateway) as bench, open_bench(ALLOWED, gateway) as other:
            port, port_of_other = await bench.listen(), await other.listen()
            assert broker_of(bench) == 0  # until somebody connects
            with trio.fail_after(120):
                stream = await hold_tunnel(bench, port, server)
                untouched = await hold_tunnel(other, port_of_other, server)
                first = broker_of(bench)
                assert first != broker_of(other)
                os.kill(first, signal.SIGKILL)
                assert await read_all(stream) == b""
                again = await hold_tunnel(bench, port, server)
                assert broker_of(bench) not in (0, first, broker_of(other))
                last = os.pidfd_open(broker_of(bench))
                await again.aclose()
                assert other.network.facts()["connections"] == 1
                await untouched.aclose()
    assert has_ended(last)
    os.close(last)


async def test_a_broker_without_connections_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "IDLE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with open_bench(ALLOWED) as bench:
            port = await bench.listen()
            with trio.fail_after(120):
                stream = await hold_tunnel(bench, port, server)
                first = os.pidfd_open(broker_of(bench))
                with trio.move_on_after(0.2):
                    await trio.lowlevel.wait_readable(first)
                assert not has_ended(first)
                server.accept()[0].close()
                await stream.aclose()
                await trio.lowlevel.wait_readable(first)
                os.close(first)
                await (await hold_tunnel(bench, port, server)).aclose()


async def test_a_connection_whose_host_is_denied_ends_though_its_broker_keeps_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with open_bench(ALLOWED) as bench:
            port = await bench.listen()
            with trio.fail_after(120):
                stream = await hold_tunnel(bench, port, server)
                link, _ = server.accept()
                os.kill(broker_of(bench), signal.SIGSTOP)
                bench.network.deny(parse_rules(ALLOWED.allow))
                with link:
                    link.setblocking(False)
                    await trio.lowlevel.wait_readable(link)
                    assert link.recv(1) == b""
                assert await read_all(stream) == b""


async def never_resolve(name: str) -> Sequence[Address]:
    del name
    await trio.sleep_forever()
    raise AssertionError


WRONG_MESSAGES = {
    "nonsense": [b"x"],
    "an invalid host": [b"ask 1 http 127.1:80"],
    "an unknown connection": [b"ask 2 http a.test:80"],
    "a tunnel that nobody offered": [b"given 1 early"],
    "the end of what has not begun": [b"done 1 "],
    "one request after the other": [b"ask 1 connect slow.test:80"] * 20,
    "a refusal in the supervisor's place": [b"refused 1 http a.test:80 allowed x"],
    "a large message": [b"given 1 " + bytes(170_000)],
}


FAST = ("nonsense", "an unknown connection")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in WRONG_MESSAGES
    ],
)
async def test_a_broker_that_sends_a_wrong_message_is_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_proxy, "RESTART_INTERVAL_S", 0)
    with monkeypatch.context() as patch:
        change_brokers(
            patch,
            "import socket; control = socket.socket(fileno=0); "
            "[control.recv(100) for _ in range(2)]; "
            f"[control.send(each) for each in {WRONG_MESSAGES[name]!r}]; "
            "control.recv(100); control.recv(100)",
        )
        rule = NetworkRule(mode="allow", allow=("slow.test",))
        async with open_bench(rule, Gateway(never_resolve)) as bench:
            port = await bench.listen()
            with trio.fail_after(120):
                assert await read_all(await say(port, b"")) == b""
                patch.undo()
                # The session goes on.
                assert b" 400 " in await read_all(await say(port, b"x y\r\n\r\n"))
            assert bench.network.facts()["counters"].get("allowed", 0) == 0


async def test_messages_beyond_the_rate_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "MAX_MESSAGES_S", 10)
    change_brokers(
        monkeypatch,
        "import socket; control = socket.socket(fileno=0); "
        "[control.send(b'moved 0 1 0') for _ in range(100)]; control.recv(1)",
    )
    began_s, came_s = trio.current_time(), list[float]()
    enough = trio.Event()

    def moved(_sent: int, _received: int) -> None:
        came_s.append(trio.current_time())
        if len(came_s) == 11:
            enough.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker_process.BrokerProcess.start({}, moved).listen, "test")
        with trio.fail_after(120):
            await enough.wait()
        nursery.cancel_scope.cancel()
    assert came_s[10] - began_s >= 1.0


@given(
    st.lists(
        st.sampled_from([b"ask", b"refused", b"given", b"moved", b"over", b"done", b"1", b"-", b""])
        | st.sampled_from([b"http", b"connect", b"socks5", b"a.test:80", b"[::1]:1", b"secret"])
        | st.binary(max_size=12)
    ).map(b" ".join)
)
def test_any_packet_is_a_message_or_is_refused(data: bytes) -> None:
    try:
        message = parse_message(data)
    except BrokerProtocolError:
        return
    assert 0 <= message.number <= 2**53
    assert message.verdict in ("bad-request", "secret")
    assert message.detail.isprintable()
    assert message.kind != "ask" or show_host(message.host, message.port).isprintable()
