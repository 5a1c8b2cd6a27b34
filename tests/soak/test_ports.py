"""An open port while relays, supervisors, agents and clients are killed in any order."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, supervisor, wait_gone
from relay_bench import connect, received, was_reset
from soak.load import Load, scaled

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm import PortRow

pytestmark = pytest.mark.jail

SEED = int(os.environ.get("NSM_SOAK_SEED", "20"))

SERVER = """
import asyncio, threading

async def answer(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 8000, backlog=1024)
    begun.set()
    await server.serve_forever()

begun = threading.Event()
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
assert begun.wait(30)
"""

LISTS = """
import sys, nsm
with nsm.Client(socket_path=sys.argv[1], autostart=False) as client:
    print(len(client.ports.list()), flush=True)
    while True:
        client.ports.list()
"""
"""A client that is about to be killed."""


def kill(pid: int) -> None:
    """Kill a process, and wait until it is gone."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pidfd])


def place(port: PortRow) -> tuple[str, int]:
    host, _, number = port.address.rpartition(":")
    return host, int(number)


class World:
    """A session with an open port, and one connection that stays open."""

    def __init__(self, it: Supervisor) -> None:
        self.begin(it)

    def begin(self, it: Supervisor) -> None:
        """Start the session, and open the port and the connection."""
        with it.client() as client:
            assert client.run(SERVER, env="python", session="web").exit_code == 0
            self.port = client.ports.open("web", 8000)
        self.connection = connect(place(self.port))
        self.check_connection()

    def check_connection(self) -> None:
        """The connection that stays open still works."""
        self.connection.sendall(b"still")
        assert self.connection.recv(9) == b"still"

    def check_new(self, data: bytes) -> None:
        """A new connection brings all bytes back, and ends properly."""
        with connect(place(self.port)) as connection:
            connection.sendall(data)
            connection.shutdown(1)
            assert received(connection) == data

    def relay(self, client: nsm.Client) -> int:
        (row,) = client.ports.list("web")
        assert row.relay_pid is not None
        return row.relay_pid


@pytest.fixture
def short_dir() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.mark.parametrize("faults", [3, pytest.param(scaled(150), marks=pytest.mark.slow)])
def test_any_process_may_be_killed(
    short_dir: Path, faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    monkeypatch.setenv("NSM_AUTOSTART", "0")  # the next supervisor is this test's to start
    rng = random.Random(SEED)
    print("seed", SEED)
    with supervisor(short_dir) as first, ExitStack() as stack:
        world, it = World(first), first
        stack.enter_context(Load(first.socket, threads=1))
        left = faults
        while left:
            # Several faults for each supervisor; the last kills it, alone or with the relay.
            for _ in range(min(left - 1, rng.randrange(6))):
                left -= 1
                inject(world, it, rng)
                world.check_new(rng.randbytes(50_000))
            left -= 1
            with it.client() as client:
                relay = world.relay(client)
            it.kill()
            both = rng.random() < 0.3
            if both:
                kill(relay)
                was_reset(world.connection)
                world.connection.close()
            else:
                world.check_connection()
                world.check_new(b"without a supervisor")
            if not left:
                break
            it = stack.enter_context(supervisor(short_dir, keep=True))
            if both:
                world.connection = connect(place(world.port))
            world.check_connection()
        world.connection.close()
        with supervisor(short_dir) as last, last.client() as client:
            assert [row.address for row in client.ports.list()] == [world.port.address]
            world.check_new(b"in the end")


def inject(world: World, it: Supervisor, rng: random.Random) -> None:
    """Kill something other than the supervisor."""
    match rng.choice(("relay", "agent", "client", "reload")):
        case "relay":
            with it.client() as client:
                kill(world.relay(client))
            was_reset(world.connection)
            world.connection.close()
            world.connection = connect(place(world.port))
        case "agent":
            with it.client() as client:
                row = next(row for row in client.sessions() if row.name == "web")
                relay = os.pidfd_open(world.relay(client))
                kill(row.pid)
                wait_gone([relay])
                while client.ports.list():
                    pass
            was_reset(world.connection)
            world.connection.close()
            world.begin(it)
        case "client":
            with subprocess.Popen(
                [sys.executable, "-P", "-c", LISTS, it.socket], stdout=subprocess.PIPE
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"1\n"
                process.kill()
        case _:
            assert it.run("nsm", "reload").returncode == 0
    world.check_connection()
