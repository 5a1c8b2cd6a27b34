"""A session's network against agents that lie, and against clients that do what they like."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from netbench import Names, change_brokers, open_world
from nsm.wire.errors import BadRequestError
from nsmd.agent_link.frames import AgentProtocolError
from nsmd.model.host_rules import parse_rules
from nsmd.model.values import NetworkRule
from nsmd.network import listener, session_proxy
from nsmd.network.gateway import Gateway
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.named import NamedChannel
from nsmd.network.session_proxy import MAX_SESSION_CONNECTIONS
from processes import descriptors
from proxy_bench import ALLOWED, open_bench, read_all, say, tunnel_to
from sandbox.linux import listen_on_loopback


def udp() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def not_listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def unix() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(b"")
    made.listen()
    return made


LIES: dict[str, tuple[Callable[[], Any], str]] = {
    "a file": (partial(open, "/dev/null", "rb"), "is not a socket"),
    "a datagram socket": (udp, "not a TCP socket that listens"),
    "a socket that does not listen": (not_listening, "not a TCP socket that listens"),
    "a Unix socket": (unix, "not a TCP socket that listens"),
    "another address": (partial(socket.create_server, ("0.0.0.0", 0)), "on the loopback"),
    "the other family": (
        partial(socket.create_server, ("::1", 0), family=socket.AF_INET6),
        "not a TCP socket that listens",
    ),
}


@pytest.mark.parametrize("lie", list(LIES))
async def test_a_descriptor_that_is_no_listener_is_closed(lie: str) -> None:
    make, says = LIES[lie]
    before = descriptors()
    async with open_bench(NetworkRule()) as bench:
        told: list[str] = []

        async def allow() -> None:
            try:
                await bench.network.allow(parse_rules(["x.org"]))
            except BadRequestError as error:
                told.append(error.message)

        with make() as made:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(allow)
                request = await bench.asked()
                answer = {"type": "listening", "id": request["id"], "port": 3128}
                bench.answer(answer, made.fileno())
        assert says in told[0]
        assert bench.failure is None
        # It may be asked again, and do better.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.network.allow, parse_rules(["x.org"]))
            port = await bench.listen()
        assert bench.network.facts()["port"] == port
    assert descriptors() == before


async def test_descriptors_that_nobody_waits_for_are_dropped_and_a_second_one_is_a_lie() -> None:
    async with open_bench(NetworkRule()) as bench:
        before = descriptors()
        bench.answer({"type": "pong"}, *[bench.agent.fileno()] * 5)
        await trio.testing.wait_all_tasks_blocked()
        assert descriptors() == before
    before = descriptors()
    async with open_bench(NetworkRule(mode="allow")) as bench:
        await bench.asked()
        bench.answer({"type": "pong"}, bench.agent.fileno(), bench.agent.fileno())
        await trio.testing.wait_all_tasks_blocked()
        assert bench.failure is None  # the kernel drops what there is no room for
        bench.answer({"type": "pong"}, bench.agent.fileno())
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(bench.failure, AgentProtocolError)
    assert descriptors() == before


async def test_a_listener_that_is_made_to_block_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_TIMEOUT_S", 0.2)
    made = listen_on_loopback(0)
    made.setblocking(True)  # as whoever passed it can at any time
    limiter = trio.CapacityLimiter(4)
    failures: list[ListenerError] = []
    taken: list[trio.SocketStream] = []

    async def accept() -> None:
        one = NamespaceListener(os.dup(made.fileno()))
        try:
            taken.append(await one.accept(limiter))
        except ListenerError as error:
            failures.append(error)
        finally:
            one.close()

    with made, trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            # Both see a connection, and one gets it.
            nursery.start_soon(accept)
            nursery.start_soon(accept)
            await trio.testing.wait_all_tasks_blocked()
            client = await trio.open_tcp_stream("127.0.0.1", made.getsockname()[1])
    await client.aclose()
    for stream in taken:
        await stream.aclose()
    assert len(taken) + len(failures) == 2
    assert failures


async def test_connections_of_a_listener_that_lingers_are_closed_at_once() -> None:
    """Close would wait for a client that does not read, and with it the whole supervisor."""
    lingers = struct.pack("ii", 1, 3600)
    limiter = trio.CapacityLimiter(1)
    made = listen_on_loopback(0)
    one = NamespaceListener(os.dup(made.fileno()))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingers)  # whoever passed it still can
    with made, socket.create_connection(made.getsockname()):
        taken = await one.accept(limiter)
        assert taken.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[:4] == bytes(4)
        await taken.aclose()
    one.close()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = NamedChannel(ours.detach())
    with theirs, socket.create_server(("127.0.0.1", 0)) as server:
        passed = socket.create_connection(server.getsockname())
        passed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingers)
        socket.send_fds(theirs, [b"connected a.test 80"], [passed.fileno()])
        said = await channel.receive()
        assert said.connection is not None
        assert passed.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[:4] == bytes(4)
        passed.close()
        await said.connection.aclose()
    channel.close()


def test_a_socket_that_is_refused_does_not_linger() -> None:
    """The client that passed it may have closed its own: then the last close is ours."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as passed,
    ):
        passed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        with pytest.raises(ListenerError, match="is not a TCP socket that listens"):
            NamespaceListener(os.dup(passed.fileno()))
        assert passed.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[:4] == bytes(4)


async def test_a_client_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_brokers(monkeypatch, "broker.REQUEST_TIMEOUT_S = 0.1")
    async with open_bench(ALLOWED) as bench:
        port = await bench.listen()
        with trio.fail_after(120):
            for words in (b"", b"CONNECT exam", b"\x05\x01"):
                assert await read_all(await say(port, words)) == b""
        assert bench.network.made == 0


async def test_one_session_has_so_many_connections_and_further_ones_wait() -> None:
    async with open_bench(ALLOWED) as bench:
        port = await bench.listen()
        with trio.fail_after(120):
            held = [await say(port, b"") for _ in range(MAX_SESSION_CONNECTIONS)]
            last = await say(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            assert bench.network.made == 0
            await held.pop().aclose()
            assert (await read_all(last)).startswith(b"HTTP/1.1 400 ")
            for stream in held:
                await stream.aclose()


async def test_connections_for_which_none_makes_room_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A silent one among them costs no other its answer."""
    monkeypatch.setattr(session_proxy, "STUCK_S", 0.1)
    change_brokers(monkeypatch, "broker.REQUEST_TIMEOUT_S = 1.0")
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        request = tunnel_to(silent)
        async with open_bench(ALLOWED) as bench:
            port = await bench.listen()
            with trio.fail_after(120):
                held = [await say(port, request) for _ in range(MAX_SESSION_CONNECTIONS)]
                for stream in held:
                    assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200 ")
                further = [await say(port, words) for words in (b"", *[request] * 20)]
                nothing, *answers = [await read_all(stream) for stream in further]
                assert nothing == b""
                for answer in answers:
                    assert answer.startswith(b"HTTP/1.1 503 Too many connections (nsm)\r\n")
                    assert b"64 connections are open, which is all that may be at once" in answer
                for stream in held:
                    await stream.aclose()


@pytest.mark.parametrize("kind", ["tunnel", "request"])
async def test_clients_that_give_up_on_a_server_that_hangs_make_room(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    change_brokers(monkeypatch, "broker.CLIENT_ENDED_S = 0.1")
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        host = f"host.nsm.internal:{silent.getsockname()[1]}"
        plain = f"GET http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        async with open_bench(ALLOWED) as bench:
            port = await bench.listen()
            with trio.fail_after(120):
                for _ in range(MAX_SESSION_CONNECTIONS):
                    client = await say(port, tunnel_to(silent) if kind == "tunnel" else plain)
                    await client.aclose()
                last = await say(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await read_all(last)).startswith(b"HTTP/1.1 400 ")


class Helpers:
    """A `Granter` whose helpers read requests the first so many times that somebody asks."""

    def __init__(self, times: int) -> None:
        self._times = times

    def held_by(self, owner: str) -> Helpers | None:
        del owner
        self._times -= 1
        return self if self._times >= 0 else None

    def takes(self, host: str, port: int) -> bool:
        del host, port
        return True

    @property
    def stand_ins(self) -> dict[str, str]:
        return {}

    async def intercept(self, *words: object) -> None:
        raise AssertionError("there is no such helper")


@pytest.mark.parametrize(
    "times",
    [None, pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("wide", ["*:*", "host.nsm.internal:*"])
async def test_no_pattern_leads_past_rules_for_requests_that_nobody_reads(
    wide: str, times: int | None
) -> None:
    """Not even if the helper goes away while a connection begins."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rule = f"GET https://host.nsm.internal:{server.getsockname()[1]}/x"
        gateway = Gateway(Names())
        async with open_bench(NetworkRule(mode="allow", allow=(rule, wide)), gateway) as bench:
            port = await bench.listen()
            if times is not None:
                gateway.secrets = Helpers(times)  # type: ignore[assignment]
            with trio.fail_after(60):
                answer = await read_all(await say(port, tunnel_to(server)))
            if b" 403 " in answer:
                assert b"the helper that reads them has ended" in answer
            else:
                assert answer == b""
                assert times, "it began to connect"
            server.settimeout(0)
            with suppress(BlockingIOError):
                link, _ = server.accept()
                with link:
                    assert link.recv(1) == b""


async def test_sessions_that_take_all_they_can_leave_room_for_the_next() -> None:
    gateway = Gateway(Names(), max_connections=12)
    async with (
        open_world() as world,
        open_bench(ALLOWED, gateway) as greedy,
        open_bench(ALLOWED, gateway) as second,
        open_bench(ALLOWED, gateway) as modest,
    ):
        request = f"GET http://host.nsm.internal:{world.port}/ HTTP/1.0\r\nHost: x\r\n\r\n".encode()
        with trio.fail_after(120):
            held: list[trio.SocketStream] = []
            for bench in (greedy, second):
                port = await bench.listen()
                for _ in range(12):
                    held.append(await say(port, b""))
                    await trio.testing.wait_all_tasks_blocked()
            assert gateway.room.available_tokens >= 3
            port = await modest.listen()
            for _ in range(3):
                assert (await read_all(await say(port, request))).startswith(b"HTTP/1.1 200 ")
            for stream in held:
                await stream.aclose()


async def test_refused_connections_hold_few_descriptors() -> None:
    gateway = Gateway(max_connections=1)
    gateway.refusing.total_tokens = 1
    async with open_bench(ALLOWED, gateway) as bench:
        port = await bench.listen()
        with trio.fail_after(120):
            held = [await say(port, b"") for _ in range(2)]
            await trio.testing.wait_all_tasks_blocked()
            assert await read_all(await say(port, b"")) == b""  # at once, whatever it wants
            for stream in held:
                await stream.send_eof()
                assert await read_all(stream) == b""  # ended there, too
            await trio.testing.wait_all_tasks_blocked()
            assert await read_all(await say(port, b"x y\r\n\r\n")) != b""


async def test_a_shortage_of_descriptors_costs_no_session_its_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, failures = listener._Accepting.accept, [errno.EMFILE, errno.ENFILE]  # pyright: ignore[reportPrivateUsage]

    def fail_first(self: Any) -> None:
        if failures:
            raise OSError(failures.pop(), "short")
        accept(self)

    monkeypatch.setattr(listener._Accepting, "accept", fail_first)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(listener, "PAUSE_S", 0)
    async with open_bench(ALLOWED) as bench:
        port = await bench.listen()
        with trio.fail_after(120):
            assert await read_all(await say(port, b"x y\r\n\r\n")) != b""
        assert not failures


async def test_each_direction_of_a_tunnel_ends_for_itself() -> None:
    async def count(stream: trio.SocketStream) -> None:
        async with stream:
            size = 0
            while data := await stream.receive_some(65536):
                size += len(data)
            await stream.send_all(b"%d" % size)

    async with open_bench(ALLOWED) as bench, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        target = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, count, listeners)
        port = await bench.listen()
        with trio.fail_after(120):
            stream = await say(
                port, f"CONNECT host.nsm.internal:{target} HTTP/1.0\r\n\r\nearly".encode()
            )
            assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 200 ")
            await stream.send_all(bytes(1_000_000))
            await stream.send_eof()
            assert await read_all(stream) == b"1000005"
            # Once this is answered, the broker's report has been read.
            assert b" 403 " in await read_all(await say(port, b"CONNECT a.b:1 HTTP/1.0\r\n\r\n"))
        counters = bench.network.facts()["counters"]
        assert (counters["sent_bytes"], counters["received_bytes"]) == (1_000_005, 7)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("host", "name", "address"),
    [
        ("base.test", "base.test:*", "127.0.0.0/8:*"),
        ("host.nsm.internal", "*:*", "host.nsm.internal:*"),
    ],
)
async def test_a_connection_ends_with_the_pattern_of_its_address(
    host: str, name: str, address: str
) -> None:
    """The name is still allowed, and did not suffice when it was made."""
    rule = NetworkRule(mode="allow", allow=(name, address, "other.test"))
    gateway = Gateway(Names({"base.test": ["127.0.0.1"]}))
    async with open_bench(rule, gateway) as bench, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        target = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, hold, listeners)
        port = await bench.listen()
        with trio.fail_after(120):
            stream = await say(port, f"CONNECT {host}:{target} HTTP/1.0\r\n\r\n".encode())
            assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 200 ")
            bench.network.deny(parse_rules(["other.test"]))
            assert bench.network.facts()["connections"] == 1
            bench.network.deny(parse_rules([address]))
            assert await read_all(stream) == b""
        nursery.cancel_scope.cancel()


async def hold(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_each_request_on_a_connection_is_decided_anew() -> None:
    """However early it comes."""
    async with open_world() as world, open_bench(ALLOWED) as bench:
        port = await bench.listen()
        host = f"host.nsm.internal:{world.port}"
        requests = [
            f"POST http://{host}/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody",
            f"GET http://{host}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://other.test/3 HTTP/1.1\r\nHost: x\r\n\r\n",
            f"GET http://{host}/4 HTTP/1.1\r\nHost: x\r\n\r\n",
        ]
        with trio.fail_after(120):
            answer = await read_all(await say(port, "".join(requests).encode()))
        # With a refusal, the connection ends.
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"200", b"403"]
        assert answer.count(b"world: POST /1 body") == answer.count(b"world: GET /2 ") == 1
        assert [request.splitlines()[0] for request in world.requests] == ["POST /1", "GET /2"]
        verdicts = [decision.verdict for decision in bench.network.decisions_since()]
        assert verdicts == ["allowed", "allowed", "not-allowed"]


async def test_decisions_are_bounded_and_so_is_their_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with open_bench(NetworkRule(mode="allow")) as bench:
        for number in range(1000):
            bench.network.decided("connect", f"h{number}.test", 443, "not-allowed", "why")
        assert len(bench.network.decisions_since()) == 256
        assert [d.host for d in bench.network.refused_since(998)] == ["h998.test", "h999.test"]
        assert bench.network.facts()["counters"]["not-allowed"] == 1000
    assert len(caplog.records) == 100
