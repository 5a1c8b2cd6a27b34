"""The relay: bytes, ends, resets, limits, and agents that lie."""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nsmd.ports import relay
from nsmd.ports.relayed import FAILED, FULL, OPEN
from relay_bench import (
    WAIT_S,
    RelayBench,
    accept,
    connect,
    connect_for,
    program,
    received,
    was_reset,
)

if TYPE_CHECKING:
    from collections.abc import Generator

RESET = struct.pack("ii", 1, 0)
MANY = 1000
DATA = os.urandom(1 << 20) * 8


def fill(connection: socket.socket) -> None:
    """Send until there has been no room for half a second."""
    connection.setblocking(False)
    room = select.poll()
    room.register(connection, select.POLLOUT)
    while room.poll(500):
        connection.send(DATA)


@pytest.fixture
def bench() -> Generator[RelayBench]:
    with RelayBench() as it:
        it.start()
        yield it


@pytest.fixture
def server() -> Generator[tuple[socket.socket, int]]:
    with program() as it:
        yield it


@pytest.mark.parametrize("first", ["host", "inside"])
def test_an_end_goes_through_and_leaves_the_other_direction(
    bench: RelayBench, server: tuple[socket.socket, int], first: str
) -> None:
    host = connect(bench.open(server[1]))
    inside = accept(server[0])
    with host, inside:
        ends = (host, inside) if first == "host" else (inside, host)
        ends[0].sendall(b"question")
        ends[0].shutdown(socket.SHUT_WR)
        assert received(ends[1]) == b"question"

        def answer() -> None:
            ends[1].sendall(DATA)
            ends[1].close()

        sender = threading.Thread(target=answer)
        sender.start()
        assert received(ends[0]) == DATA
        sender.join()


@pytest.mark.parametrize("first", ["host", "inside"])
def test_a_reset_goes_through(
    bench: RelayBench, server: tuple[socket.socket, int], first: str
) -> None:
    host = connect(bench.open(server[1]))
    inside = accept(server[0])
    with host, inside:
        ends = (host, inside) if first == "host" else (inside, host)
        ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        ends[0].close()
        assert was_reset(ends[1])


def test_a_reader_that_stops_holds_its_writer_back_and_nobody_else(
    bench: RelayBench, server: tuple[socket.socket, int]
) -> None:
    address = bench.open(server[1])
    with connect(address) as stopped, accept(server[0]) as writer:
        fill(writer)
        assert resident_bytes(bench) < 32 << 20
        with connect(address) as host, accept(server[0]) as inside:
            inside.sendall(b"hello")
            assert host.recv(9) == b"hello"
        assert stopped.recv(9)


def resident_bytes(bench: RelayBench) -> int:
    assert bench.process is not None
    with open(f"/proc/{bench.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_connections(bench: RelayBench, server: tuple[socket.socket, int]) -> None:
    address = bench.open(server[1])
    hosts = [connect(address) for _ in range(MANY)]
    insides = [accept(server[0]) for _ in range(MANY)]
    for number, host in enumerate(hosts):
        host.sendall(b"%d\n" % number)
    told = {inside.recv(9) for inside in insides}
    assert told == {b"%d\n" % number for number in range(MANY)}
    assert (bench.count(OPEN), bench.count(FULL)) == (MANY, 1)
    assert resident_bytes(bench) < 32 << 20
    for end in (*hosts, *insides):
        end.close()
    with connect(address) as host, accept(server[0]):
        host.send(b"one more")


def test_more_connections_than_the_limit_wait() -> None:
    with RelayBench() as bench, program() as (server, port):
        bench.start_here(2)
        address = bench.open(port)
        hosts = [connect(address) for _ in range(3)]
        insides = [accept(server) for _ in range(2)]
        hosts[2].sendall(b"last")
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            server.accept()
        assert (bench.count(OPEN), bench.count(FULL)) == (2, 1)
        hosts[0].close()
        insides[0].close()
        server.settimeout(WAIT_S)
        with accept(server) as inside:
            assert inside.recv(9) == b"last"
        for end in (*hosts, *insides):
            end.close()
        bench.control.close()


def test_an_agent_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.2)

    def say_nothing(channel: socket.socket, number: bytes, port: int) -> None:
        """Read the request, and leave it at that."""

    with RelayBench(say_nothing) as bench:
        bench.start_here(10)
        with connect(bench.open(1)) as host:
            assert was_reset(host)
        assert (bench.count(FAILED), bench.count(OPEN)) == (1, 0)
        bench.control.close()


def test_a_port_whose_program_accepts_nobody_is_in_the_way_of_no_other_port() -> None:
    stuck, asked = 1, threading.Semaphore(0)

    def answer_others(channel: socket.socket, number: bytes, port: int) -> None:
        """Do not answer for one port, as while its program's backlog is full."""
        if port == stuck:
            asked.release()
        else:
            connect_for(channel, number, port)

    with RelayBench(answer_others) as bench, program() as (server, port), ExitStack() as owned:
        bench.start()
        silent, address = bench.open(stuck), bench.open(port)
        for _ in range(100):
            owned.enter_context(connect(silent))
        for _ in range(relay.PORT_ASKED):
            assert asked.acquire(timeout=WAIT_S)
        server.settimeout(relay.ANSWER_S / 4)
        for _ in range(50):
            with connect(address) as host, accept(server) as inside:
                inside.sendall(b"hello")
                assert host.recv(9) == b"hello"


def test_a_supervisor_that_takes_over_repeats_what_is_open(
    bench: RelayBench, server: tuple[socket.socket, int]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as owned:
        listener.setblocking(False)
        for count in (1, 2):
            socket.send_fds(bench.control, [b"open 0 %d" % server[1]], [listener.fileno()])
            host = owned.enter_context(connect(listener.getsockname()))
            inside = owned.enter_context(accept(server[0]))
            inside.sendall(b"hello")
            assert host.recv(9) == b"hello"
            assert bench.count(OPEN) == count


# Ends.


def test_a_relay_ends_with_its_last_port_and_connection(
    bench: RelayBench, server: tuple[socket.socket, int]
) -> None:
    host = connect(bench.open(server[1]))
    inside = accept(server[0])
    with host:
        with inside:
            bench.control.send(b"close 0")
            inside.sendall(b"still")
            assert host.recv(9) == b"still"
        assert host.recv(9) == b""
    bench.wait_ended()


def test_the_end_of_the_session_lets_bytes_that_are_on_their_way_arrive(
    bench: RelayBench, server: tuple[socket.socket, int]
) -> None:
    with connect(bench.open(server[1])) as host:
        with accept(server[0]) as inside:
            inside.send(b"+")
            assert host.recv(1) == b"+"
            inside.sendall(DATA[:1000])
        bench.agent.shutdown(socket.SHUT_RDWR)
        assert received(host) == DATA[:1000]
    bench.wait_ended()


# Lies.


def pass_nothing(channel: socket.socket, number: bytes, _: int) -> None:
    channel.send(number + bytes(4))


def pass_file(channel: socket.socket, number: bytes, _: int) -> None:
    with open("/dev/null", "rb") as file:
        socket.send_fds(channel, [number + bytes(4)], [file.fileno()])


def pass_socket(channel: socket.socket, number: bytes, passed: socket.socket) -> None:
    with passed:
        socket.send_fds(channel, [number + bytes(4)], [passed.fileno()])


def pass_unix(channel: socket.socket, number: bytes, _: int) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    pass_socket(channel, number, theirs)


def pass_datagrams(channel: socket.socket, number: bytes, port: int) -> None:
    passed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    passed.connect(("127.0.0.1", port))
    pass_socket(channel, number, passed)


def pass_listener(channel: socket.socket, number: bytes, _: int) -> None:
    pass_socket(channel, number, socket.create_server(("127.0.0.1", 0)))


def pass_elsewhere(channel: socket.socket, number: bytes, _: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        pass_socket(channel, number, socket.create_connection(other.getsockname()))
        assert channel.recv(1) == b""  # the relay hangs up; until then the connection lives


def say_too_little(channel: socket.socket, number: bytes, _: int) -> None:
    channel.send(number)


def say_too_much(channel: socket.socket, number: bytes, _: int) -> None:
    channel.send(number + bytes(40))


@pytest.mark.parametrize(
    "lie",
    [
        pass_nothing,
        pass_file,
        pass_unix,
        pass_datagrams,
        pass_listener,
        pass_elsewhere,
        say_too_little,
        say_too_much,
    ],
)
def test_an_agent_that_lies_is_reported(lie: object) -> None:
    with RelayBench(lie) as bench, program() as (_, port):  # type: ignore[arg-type]
        bench.start()
        with connect(bench.open(port)) as host:
            assert bench.control.recv(256).startswith(b"wrong ")
            assert was_reset(host)
        bench.wait_ended()


def test_answers_that_nobody_asked_for_cost_no_descriptors(
    bench: RelayBench, server: tuple[socket.socket, int]
) -> None:
    with socket.socket() as spare:
        for number in range(3000):
            socket.send_fds(bench.agent, [number.to_bytes(8, "big") + bytes(4)], [spare.fileno()])
    address = bench.open(server[1])
    with connect(address) as host, accept(server[0]) as inside:
        inside.sendall(b"hello")
        assert host.recv(9) == b"hello"
    assert bench.process is not None
    assert len(os.listdir(f"/proc/{bench.process.pid}/fd")) < 20


def test_a_copy_that_blocks_and_lingers_blocks_nobody() -> None:
    """The agent keeps each socket and sets all that could make the relay wait."""
    copies: list[socket.socket] = []
    kept: queue.SimpleQueue[int] = queue.SimpleQueue()

    def keep(channel: socket.socket, number: bytes, port: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
        copies.append(connection)
        kept.put(port)
        socket.send_fds(channel, [number + bytes(4)], [connection.fileno()])

    with RelayBench(keep) as bench, program() as (server, port):
        bench.start()
        address = bench.open(port)
        full = connect(address)
        fill(full)  # nobody reads inside
        full.close()
        for _ in range(5):
            with connect(address) as host:
                host.send(b"x")
        for _ in range(6):
            kept.get(timeout=WAIT_S)
        bench.control.send(b"close 0")
        with connect(bench.open(port)):
            kept.get(timeout=WAIT_S)
        server.close()
        for copy in copies:
            copy.close()
