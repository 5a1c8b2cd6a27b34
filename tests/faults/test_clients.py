"""Clients that say nothing, read a byte a second, or want ten thousand things at once.

Time is virtual; `tests/soak/test_storm.py` and `tests/e2e/test_floods.py` have real ones.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

import nsm
from control_bench import Peer, bench
from e2e_support import supervisor
from nsm.wire.errors import OverloadedError
from nsmd.control.connection import HELLO_TIMEOUT_S
from nsmd.control.outgoing import HIGH_WATER_BYTES
from nsmd.host.descriptors import MAX_CONNECTIONS

if TYPE_CHECKING:
    pass

SILENT = 1000
CALLS = 10_000

GROWTH_KIB = 32 * 1024
"""Growth of a real supervisor, for ten thousand calls at once, all of which are refused
in the end.
"""

LIST_TOOLS = (
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", '
    '"params": {"protocolVersion": "2025-06-18"}}\n'
    '{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
    '{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n'
)


async def works(peer: Peer) -> bool:
    result = await peer.call("run", env="python", code="works", session="bystander")
    return bool(result["stdout"] == "works")


async def test_a_thousand_silent_clients_delay_no_other(
    many_descriptors: None, autojump_clock: trio.abc.Clock
) -> None:
    async with bench() as it:
        worker = await it.connect()
        assert await works(worker)
        silent = [it.raw() for _ in range(SILENT)]
        await trio.testing.wait_all_tasks_blocked()
        assert it.server.connections == SILENT + 1
        assert await works(worker)
        silent += [it.raw() for _ in range(MAX_CONNECTIONS - SILENT - 1)]
        await trio.testing.wait_all_tasks_blocked()
        refused = Peer(it.raw())
        with pytest.raises(OverloadedError, match="connections already"):
            await refused.answer(0)
        assert await works(worker)
        await trio.sleep(HELLO_TIMEOUT_S + 1)
        assert it.server.connections == 1
        assert all(end.recv(1) == b"" for end in silent)
        assert await works(await it.connect())


async def test_a_client_that_reads_a_byte_a_second_delays_no_other(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with bench() as it:
        end = it.raw()
        slow, worker = Peer(end), await it.connect()
        await slow.hello()
        texts = [f"{number}:".ljust(200_000, "x") for number in range(40)]
        asked: list[str] = []

        async def ask() -> None:
            for text in texts:
                await slow.start("run", env="python", code=text, session="slow")
                asked.append(text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert len(asked) < len(texts), "nothing more is taken from who does not read"
            assert len(asked) * len(texts[0]) < 8 * HIGH_WATER_BYTES
            read = b""
            for _ in range(60):
                read += await slow.stream.receive_some(1)
                await trio.sleep(1)
                assert await works(worker)
            assert len(read) == 60
            slow.connection.receive_data(read)
            answers = [await slow.next_result() for _ in texts]
        assert [answer["stdout"] for answer in answers] == texts


@pytest.mark.jail
@pytest.mark.slow
def test_ten_thousand_calls_cost_a_real_supervisor_no_memory() -> None:
    config = "[session]\nmax_sessions = 8\n[pool]\nmax_spares = 0\n"
    with supervisor(config=config) as it, it.client() as client:
        client.run("x = 41", env="python", session="kept")
        # Its MCP server is loaded then, which would come in the middle otherwise.
        assert '"tools"' in it.run("nsm-mcp", stdin=LIST_TOOLS).stdout
        trio.run(flood, it.socket)
        before = peak_kib(it.pid)
        trio.run(flood, it.socket)
        assert peak_kib(it.pid) - before < GROWTH_KIB
        assert client.run("print(x + 1)", env="python", session="kept").stdout == "42\n"


async def flood(socket_path: str) -> None:
    """Ten thousand calls at once, each of a session of its own, which is one too many."""
    refused: Counter[str] = Counter()

    async def call(client: nsm.AsyncClient, number: int) -> None:
        try:
            await client.run("1", env="python", session=f"s{number % 4000}")
            refused["none"] += 1
        except nsm.NsmError as error:
            refused[error.code] += 1

    async with (
        nsm.AsyncClient(socket_path=socket_path, scope="test", autostart=False) as client,
        trio.open_nursery() as nursery,
    ):
        for number in range(CALLS):
            nursery.start_soon(call, client, number)
    assert sum(refused.values()) == CALLS
    assert refused["session-limit"] + refused["overloaded"] > CALLS - 100, refused


def peak_kib(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(line)
