"""Ports of sessions, opened on the host by a real supervisor."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import Supervisor, supervisor, wait_gone
from nsm.wire.errors import BadRequestError, NsmError, OverloadedError, UnknownSessionError
from relay_bench import connect, received, was_reset
from soak.load import Load, scaled

if TYPE_CHECKING:
    from pathlib import Path

    from nsm import PortRow

pytestmark = pytest.mark.jail

ECHO = """
import asyncio, threading

async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, ADDRESS, 8000, backlog=1024)
    begun.set()
    await server.serve_forever()

begun = threading.Event()
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
assert begun.wait(120)
"""
"""A program in the session that sends back what it gets."""

LISTS = """
import sys, nsm
with nsm.Client(socket_path=sys.argv[1], autostart=False) as client:
    print(len(client.ports.list()), flush=True)
    while True:
        client.ports.list()
"""
"""A client that is about to be killed."""

SEED = int(os.environ.get("NSM_SOAK_SEED", "20"))
FEW_FAULTS = 3


def begin(client: nsm.Client, session: str = "web", address: str = "127.0.0.1") -> None:
    """Start the program."""
    code = ECHO.replace("ADDRESS", repr(address))
    result = client.run(code, env="python", session=session)
    assert result.exit_code == 0, result.stderr


def place(port: PortRow) -> str | tuple[str, int]:
    """Address as the `socket` module has it."""
    if port.address.startswith("unix:"):
        return port.address.removeprefix("unix:")
    host, _, number = port.address.rpartition(":")
    return host, int(number)


def echoes(connection: socket.socket, text: bytes = b"hello") -> bool:
    sender = threading.Thread(target=connection.sendall, args=(text,))
    sender.start()
    data = bytearray()
    while len(data) < len(text) and (piece := connection.recv(65536)):
        data += piece
    sender.join()
    return bytes(data) == text


def wait_refused(port: PortRow) -> None:
    """Wait until nobody listens: connections that came before are reset."""
    while True:
        try:
            connect(place(port)).close()
        except ConnectionResetError:
            continue
        except ConnectionRefusedError:
            return


def works(port: PortRow) -> bool:
    """Return whether a new connection reaches the program."""
    with connect(place(port)) as connection:
        return echoes(connection)


def kill(pid: int | None) -> None:
    """Kill a process, and wait until it is gone."""
    assert pid is not None
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pidfd])


def relay_of(client: nsm.Client) -> int:
    (row,) = client.ports.list("web")
    assert row.relay_pid is not None
    return row.relay_pid


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.slow)])
def test_a_program_is_reached_and_its_session_has_no_network(
    client: nsm.Client, address: str
) -> None:
    begin(client, address=address)
    port = client.ports.open("web", 8000)
    assert works(port)
    assert client.network("web").mode == "off"
    assert [(row.port, row.address) for row in client.ports.list()] == [(8000, port.address)]
    (row,) = client.sessions()
    assert [(each.port, each.address) for each in row.ports] == [(8000, port.address)]
    assert client.inspect("web").ports[0].address == port.address
    client.ports.close("web", 8000)
    assert client.ports.list() == []
    with pytest.raises(ConnectionRefusedError):
        connect(place(port))
    with pytest.raises(BadRequestError, match="not open"):
        client.ports.close("web", 8000)


def test_ports_are_opened_and_closed_in_quick_succession(client: nsm.Client) -> None:
    """Each relay that has no port any more leaves; its last connections go on."""
    begin(client)
    earlier: list[socket.socket] = []
    for _ in range(8):
        port = client.ports.open("web", 8000)
        assert works(port)
        if len(earlier) < 5:
            earlier.append(connect(place(port)))
            assert echoes(earlier[-1])
        client.ports.close("web", 8000)
    for connection in earlier:
        with connection:
            assert echoes(connection)


def test_a_port_that_nobody_listens_on_yet(shared: Supervisor, client: nsm.Client) -> None:
    client.run("1", env="python", session="web")
    port = client.ports.open("web", 8000)
    with connect(place(port)) as connection:
        assert was_reset(connection)
    (row,) = client.ports.list("web")
    assert (row.total, row.refused, row.connections) == (1, 1, 0)
    begin(client)
    assert works(port)
    shown = shared.run("nsm", "port").stdout
    assert port.address in shown


def test_a_unix_socket_is_for_its_user_and_goes_with_the_session(
    client: nsm.Client, short_dir: Path
) -> None:
    path = short_dir / "web.sock"
    begin(client)
    port = client.ports.open("web", 8000, listen=f"unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    assert works(port)
    with connect(place(port)) as connection:
        assert echoes(connection)
        relay = os.pidfd_open(relay_of(client))
        client.kill("web")
        assert connection.recv(9) == b""
    wait_gone([relay])
    assert not path.exists()
    assert client.ports.list() == []


def test_ports_that_cannot_be_opened_are_refused_with_the_reason(
    client: nsm.Client, short_dir: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client.run("1", env="python", session="web")
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadRequestError, match="Address already in use"):
            client.ports.open("web", 8000, listen=address)
        with pytest.raises(BadRequestError, match="other machines"):
            client.ports.open("web", 8000, listen="0.0.0.0:0")
        with pytest.raises(BadRequestError, match="No such file"):
            client.ports.open("web", 8000, listen=f"unix:{short_dir}/none/s")
        with pytest.raises(BadRequestError, match="expected an absolute path behind unix:"):
            client.ports.open("web", 8000, listen="unix:")
        for number in (0, 65536):
            with pytest.raises(BadRequestError, match="is not a port"):
                client.ports.open("web", number)
        with pytest.raises(UnknownSessionError):
            client.ports.open("gone", 8000)
        assert client.ports.list() == []
        with_public = client.ports.open("web", 8000, listen="0.0.0.0:0", public=True)
        assert with_public.address.startswith("0.0.0.0:")
        for _ in range(31):
            client.ports.open("web", 8000)
        with pytest.raises(NsmError, match="32 ports"):
            client.ports.open("web", 8000)
        client.ports.close("web", 8000)
        assert client.ports.list() == []


def test_ports_that_are_opened_at_once_respect_the_limits(
    shared: Supervisor, client: nsm.Client
) -> None:
    refusals: list[str] = []

    async def open_one(client: nsm.AsyncClient, session: str) -> None:
        try:
            await client.ports.open(session, 8000)
        except OverloadedError as error:
            refusals.append(error.message)

    async def open_many() -> None:
        async with shared.async_client() as client, trio.open_nursery() as nursery:
            for _ in range(35):
                for session in ("one", "two", "three"):
                    nursery.start_soon(open_one, client, session)

    for session in ("one", "two", "three"):
        client.run("1", env="bash", session=session)
    trio.run(open_many)
    rows = client.ports.list()
    assert len(rows) == len({row.address for row in rows}) == 64
    assert len(refusals) == 3 * 35 - 64
    assert max(len(client.ports.list(each)) for each in ("one", "two", "three")) <= 32


@pytest.mark.slow
def test_ports_of_the_configuration(short_dir: Path) -> None:
    path = short_dir / "web.sock"
    config = f'[ports]\nopen = ["web:8000=unix:{path}"]\n'
    with supervisor(short_dir, config=config) as it:
        with it.client("other") as client:  # only the command line's sessions are meant
            client.run("1", env="python", session="web")
            assert client.ports.list() == []
        with it.client("cli") as client:
            begin(client)
            while not (rows := client.ports.list()):
                pass
            assert [(row.port, row.client) for row in rows] == [(8000, "configuration")]
            assert works(rows[0])
            assert it.run("nsm", "reload").returncode == 0
            assert [row.address for row in client.ports.list()] == [rows[0].address]
            assert works(rows[0])


@pytest.mark.slow
def test_a_port_of_the_configuration_that_is_taken_is_shown(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = f'[ports]\nopen = ["web:8000={address}", "web:8001"]\n'
        with supervisor(short_dir, config=config) as it, it.client("cli") as client:
            begin(client)
            while len(rows := client.ports.list()) < 2:
                pass
            opened, refused = rows
            assert (opened.port, opened.is_open, opened.problem) == (8001, True, None)
            assert (refused.port, refused.is_open, refused.address) == (8000, False, address)
            assert refused.problem is not None
            assert "use" in refused.problem
            assert [row.port for row in client.inspect("web").ports] == [8001, 8000]
            (session,) = client.sessions()
            assert [port.port for port in session.ports] == [8001]
            status = client.status().ports
            assert (status.open, status.unopened) == (1, 1)
            assert "not open: " in it.run("nsm", "port").stdout
            assert "not opened: 1; `nsm port` says why" in it.run("nsm", "status").stdout
            assert "nsm_ports_not_open 1.0" in it.run("nsm", "status", "metrics").stdout
            # Who opens it elsewhere has dealt with it.
            client.ports.open("web", 8000)
            assert [row.is_open for row in client.ports.list()] == [True, True]
            assert client.status().ports.unopened == 0
            client.kill_all()
            assert client.ports.list() == []


@pytest.mark.slow
def test_relays_that_die_have_successors_at_the_same_address(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            begin(client)
            port = client.ports.open("web", 8000)
            before = client.ports.list("web")[0].total
            for _ in range(5):
                with connect(place(port)) as connection:
                    assert echoes(connection)
                    kill(relay_of(client))
                    was_reset(connection)  # or its end came first
                assert works(port)
            assert client.ports.list("web")[0].total == before + 10
            kill(relay_of(client))
        first.kill()
        with (
            connect(place(port)) as waiting,  # nobody accepts it yet
            supervisor(short_dir) as it,
            it.client() as client,
        ):
            assert echoes(waiting)
            assert works(port)
            assert client.ports.list("web")[0].relay_pid


class UsedPort:
    """A session with an open port, and one connection that stays open."""

    def __init__(self, it: Supervisor) -> None:
        self.begin(it)

    def begin(self, it: Supervisor) -> None:
        """Start the session, and open the port and the connection."""
        with it.client() as client:
            begin(client)
            self.port = client.ports.open("web", 8000)
        self.connect()

    def connect(self) -> None:
        self.connection = connect(place(self.port))
        assert echoes(self.connection)

    def was_reset(self) -> None:
        was_reset(self.connection)
        self.connection.close()

    def check_new(self, data: bytes) -> None:
        """A new connection brings all bytes back, and ends properly."""
        with connect(place(self.port)) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert received(connection) == data


@pytest.mark.parametrize("faults", [FEW_FAULTS, pytest.param(scaled(150), marks=pytest.mark.slow)])
def test_any_process_may_be_killed(
    short_dir: Path, faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relays, supervisors, agents and clients, in any order."""
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    monkeypatch.setenv("NSM_AUTOSTART", "0")  # the next supervisor is this test's to start
    rng = random.Random(SEED)
    print("seed", SEED)
    with supervisor(short_dir) as first, ExitStack() as stack:
        used, it = UsedPort(first), first
        if faults > FEW_FAULTS:
            stack.enter_context(Load(first.socket, threads=1))
        left = faults
        while left:
            # Several faults for each supervisor; the last kills it, alone or with the relay.
            for _ in range(min(left - 1, rng.randrange(6))):
                left -= 1
                inject(used, it, rng)
                used.check_new(rng.randbytes(50_000))
            left -= 1
            with it.client() as client:
                relay = relay_of(client)
            it.kill()
            both = rng.random() < 0.3
            if both:
                kill(relay)
                used.was_reset()
            else:
                assert echoes(used.connection)
                used.check_new(b"without a supervisor")
            if not left:
                break
            it = stack.enter_context(supervisor(short_dir, keep=True))
            if both:
                used.connect()
            assert echoes(used.connection)
        used.connection.close()
        with supervisor(short_dir) as last, last.client() as client:
            assert [row.address for row in client.ports.list()] == [used.port.address]
            used.check_new(b"in the end")


def inject(used: UsedPort, it: Supervisor, rng: random.Random) -> None:
    """Kill something other than the supervisor."""
    with it.client() as client:
        match rng.choice(("relay", "agent", "client", "reload")):
            case "relay":
                kill(relay_of(client))
                used.was_reset()
                used.connect()
            case "agent":
                row = next(row for row in client.sessions() if row.name == "web")
                relay = os.pidfd_open(relay_of(client))
                kill(row.pid)
                wait_gone([relay])
                while client.ports.list():
                    pass
                used.was_reset()
                used.begin(it)
            case "client":
                with subprocess.Popen(
                    [sys.executable, "-P", "-c", LISTS, it.socket], stdout=subprocess.PIPE
                ) as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == b"1\n"
                    process.kill()
            case _:
                assert it.run("nsm", "reload").returncode == 0
    assert echoes(used.connection)


def test_agents_that_die_close_their_ports(client: nsm.Client) -> None:
    for _ in range(2):
        begin(client)
        port = client.ports.open("web", 8000)
        relay = os.pidfd_open(relay_of(client))
        with connect(place(port)) as connection:
            assert echoes(connection)
            kill(client.sessions()[0].pid)
            connection.settimeout(30)
            was_reset(connection)  # or its end came first
        wait_gone([relay])
        wait_refused(port)
        assert client.ports.list() == []


@pytest.mark.slow
def test_a_session_that_ends_without_a_supervisor(short_dir: Path) -> None:
    path = short_dir / "web.sock"
    with supervisor(short_dir) as first:
        with first.client() as client:
            begin(client)
            client.ports.open("web", 8000, listen=f"unix:{path}")
            relay = os.pidfd_open(relay_of(client))
            pid = client.sessions()[0].pid
        first.kill()
        kill(pid)
        wait_gone([relay])
        with supervisor(short_dir) as it, it.client() as client:
            assert client.ports.list() == []
            assert not path.exists()


def test_a_reload_keeps_connections_and_the_audit_has_the_port(short_dir: Path) -> None:
    with supervisor(short_dir) as it, it.client() as client:
        begin(client)
        port = client.ports.open("web", 8000)
        relay = relay_of(client)
        with connect(place(port)) as connection:
            done = it.run("nsm", "reload")
            assert done.returncode == 0, done.stderr
            assert echoes(connection)
            assert works(port)
        assert relay_of(client) == relay
        kill(relay)
        assert works(port)
        client.ports.close("web", 8000)
    lines = (short_dir / "state/nsm/audit.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    told = [event for event in events if event["event"].startswith("port_")]
    assert [event["event"] for event in told] == ["port_opened", "port_closed"]
    assert told[0]["address"] == port.address
    assert told[0]["client"] == told[1]["client"] == "nsm"


def test_many_connections_and_much_data(client: nsm.Client) -> None:
    begin(client)
    port = client.ports.open("web", 8000)
    connections = [connect(place(port)) for _ in range(200)]
    for number, connection in enumerate(connections):
        assert echoes(connection, b"%d" % number)
    assert client.ports.list("web")[0].connections == 200
    assert echoes(connections[0], os.urandom(200_000))
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert works(port)


def test_the_command_line(shared: Supervisor, client: nsm.Client, short_dir: Path) -> None:
    served = shared.run(
        *("nsm", "run", "-e", "bash", "-s", "web"),
        "cd /tmp; echo page > index.html; python3 -m http.server 8000 >/dev/null 2>&1 & "
        "until (: </dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done",
    )
    assert served.returncode == 0, served.stderr
    opened = shared.run("nsm", "port", "web", "8000", "--listen", "localhost:0")
    assert opened.returncode == 0
    assert "any web page" in opened.stderr
    assert "other machines" not in opened.stderr
    wide = shared.run("nsm", "port", "web", "8001", "--public", "--listen", "0.0.0.0:0")
    assert "other machines" in wide.stderr
    assert shared.run("nsm", "port", "web", "--close", "8001").returncode == 0
    with urllib.request.urlopen(f"http://{opened.stdout.strip()}/") as answer:
        assert answer.read() == b"page\n"
    assert shared.run("nsm", "port", "web", "8000", "--listen", f"unix:{short_dir}/s").stderr == ""
    listed = json.loads(shared.run("nsm", "port", "web", "--json").stdout)
    assert [each["address"] for each in listed] == [opened.stdout.strip(), f"unix:{short_dir}/s"]
    assert f"{opened.stdout.strip()}->8000" in shared.run("nsm", "ps").stdout
    assert opened.stdout.strip() in shared.run("nsm", "inspect", "web").stdout
    assert shared.run("nsm", "port", "web", "--close", "8000").returncode == 0
    assert shared.run("nsm", "port").stdout == "No open ports.\n"
    assert shared.run("nsm", "port", "web", "--close", "8000").returncode == 1
    assert shared.run("nsm", "port", "--close", "8000").returncode == 2
    assert shared.run("nsm", "port", "web", "--listen", "x").returncode == 2
    assert client.ports.list() == []
