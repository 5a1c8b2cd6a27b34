"""Ports of sessions: how fast bytes and connections pass the relay, beside a plain proxy.

The peer is the same server on the host behind a plain proxy. 1 GB goes out over one connection; all
1,000 connections are open before the first request.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import Bench
from measure import Comparison, Findings, Target, alternate
from peers.proxy import SERVER

PROXY = str(Path(__file__).parents[1] / "peers/proxy.py")
PEER = "plain local proxy"
PORT = 8000
GIGABYTE = 10**9
MANY = 1000

Address = tuple[str, int]


def measure(bench: Bench) -> Findings:
    """1 GB through an open port, one connection after the other, and 1,000 at once."""
    with ExitStack() as stack:
        client = stack.enter_context(bench.client())
        served = client.run(f"{SERVER}\nserve({PORT})", env="python", session="ports")
        assert served.exit_code == 0, served
        stack.callback(client.kill, "ports")
        host, _, number = client.ports.open("ports", PORT).address.rpartition(":")
        ours = host, int(number)
        behind = stack.enter_context(program("serve"))
        peer = "127.0.0.1", stack.enter_context(program("pass", str(behind)))
        yield Comparison(
            name="1 GB out of a session, through an open port",
            peer=PEER,
            pairs=alternate(
                partial(load, ours), partial(load, peer), rounds=bench.some_rounds(0.25)
            ),
            unit="s",
            target=Target(bound="≥", value=0.33),
            more=True,
        )
        yield Comparison(
            name="a connection to an open port, request and answer",
            peer=PEER,
            pairs=alternate(partial(ask, ours), partial(ask, peer), rounds=10 * bench.rounds),
            unit="ms",
        )
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        yield Comparison(
            name=f"{MANY:,} connections at once to an open port, request and answer on each",
            peer=PEER,
            pairs=alternate(
                partial(ask_many, ours), partial(ask_many, peer), rounds=bench.some_rounds(0.25)
            ),
            unit="ms",
        )


@contextmanager
def program(*arguments: str) -> Generator[int]:
    """A process of `peers/proxy.py`; yields its port."""
    process = subprocess.Popen(
        [sys.executable, PROXY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait()


def load(address: Address) -> float:
    """Seconds that a gigabyte takes."""
    buffer = bytearray(1 << 20)
    with socket.create_connection(address) as connection:
        began_s = time.perf_counter()
        connection.sendall(b"%d\n" % GIGABYTE)
        left = GIGABYTE
        while left:
            size = connection.recv_into(buffer)
            assert size, "it ended too early"
            left -= size
        return time.perf_counter() - began_s


def ask(address: Address) -> float:
    """Milliseconds until a new connection has had an answer."""
    began_s = time.perf_counter()
    with socket.create_connection(address) as connection:
        connection.sendall(b"1\n")
        assert connection.recv(2)
    return (time.perf_counter() - began_s) * 1000


def ask_many(address: Address) -> float:
    """Milliseconds until many connections that are open at once have had an answer each."""
    with ExitStack() as stack:
        began_s = time.perf_counter()
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(MANY)]
        for connection in connections:
            connection.sendall(b"1\n")
        for connection in connections:
            assert connection.recv(2)
        return (time.perf_counter() - began_s) * 1000
