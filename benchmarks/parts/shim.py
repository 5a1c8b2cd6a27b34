"""`nsm-mcp` against the MCP SDK's own stdio server.

Its start is timed from starting the process to its answer to `initialize`, while a supervisor runs.
Memory is the proportional set size (PSS) of processes that wait for input, all at the same moment.
A call runs one statement; the peer's tool does nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TextIO

import anyio
from mcp import Client, StdioServerParameters, stdio_client

from bench import PASS_NAME, SHIM, Bench, pipes
from machine import pss_mb
from measure import Comparison, Distribution, Findings, Pair, Target, alternate, timed
from peers.floors import Chain, chain

SDK_SERVER = (sys.executable, str(Path(__file__).resolve().parents[1] / "peers/sdk_server.py"))
SDK_NAME = "MCP SDK's stdio server"
NOOP_NAME = "no-op tool of the SDK's server"

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}

CALLS_PER_ROUND = 20  # of calls that take about a millisecond

PROCESSES_BEHIND_SHIM = 4  # shim, supervisor, agent, interpreter


def measure(bench: Bench) -> Findings:
    """Start, memory, and calls."""
    yield start(bench)
    yield from memory(bench)
    yield from calls(bench)


@contextmanager
def initialized(command: tuple[str, ...], bench: Bench) -> Generator[subprocess.Popen[bytes]]:
    """A stdio server that has answered `initialize` and waits for more."""
    with subprocess.Popen(
        command,
        env=bench.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        stdin, stdout = pipes(process)
        stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        assert "serverInfo" in answer["result"], answer
        yield process
        stdin.close()


def start(bench: Bench) -> Comparison:
    """Measure the time from starting the program to reading its answer."""

    def once(command: tuple[str, ...]) -> float:
        with ExitStack() as stack:  # ends the server outside of what is timed
            return timed(lambda: stack.enter_context(initialized(command, bench)))

    return Comparison(
        name="nsm-mcp, start to initialize",
        peer=SDK_NAME,
        pairs=alternate(
            lambda: once(SHIM), lambda: once(SDK_SERVER), rounds=bench.some_rounds(0.5)
        ),
        unit="ms",
        target=Target(bound="≤", value=0.1),
    )


def memory(bench: Bench) -> Findings:
    """PSS of servers that wait, and of a Python that does nothing but wait."""
    against_pass: list[Pair] = []
    against_sdk: list[Pair] = []
    floor: list[Pair] = []
    for _ in range(bench.some_rounds(0.25)):
        with (
            initialized(SHIM, bench) as shim,
            initialized(SDK_SERVER, bench) as sdk,
            waiting_python() as plain,
            waiting_python(imports="socket") as bare,
        ):
            ours = pss_mb(shim.pid)
            against_pass.append((ours, pss_mb(plain.pid)))
            floor.append((pss_mb(bare.pid), pss_mb(plain.pid)))
            against_sdk.append((ours, pss_mb(sdk.pid)))
    name = "nsm-mcp, memory (PSS)"
    yield Comparison(
        name=name,
        peer=PASS_NAME,
        pairs=tuple(against_pass),
        unit="MB",
        target=Target(bound="≤", value=1.5),
    )
    yield Comparison(
        name="python -c 'import socket', that waits",
        peer=PASS_NAME,
        pairs=tuple(floor),
        unit="MB",
        floor=True,
    )
    yield Comparison(
        name=name,
        peer=SDK_NAME,
        pairs=tuple(against_sdk),
        unit="MB",
        target=Target(bound="≤", value=0.15),
    )


@contextmanager
def waiting_python(imports: str = "sys") -> Generator[subprocess.Popen[bytes]]:
    """`python -c pass`, kept from ending: there is nothing to measure in a process that is gone."""
    code = (
        f"import {imports}, sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        stdin, stdout = pipes(process)
        stdout.readline()
        yield process
        stdin.close()


def calls(bench: Bench) -> Findings:
    """The tool `run` in a live session against a tool that does nothing; one SDK client each."""
    with (
        Path(os.devnull).open("w") as nowhere,
        chain(bench.python, processes=PROCESSES_BEHIND_SHIM) as hops,
    ):
        ours, theirs, floor = anyio.run(call_tools, bench, nowhere, hops)
    name = "run in a live session, through the shim"
    rounds = [slice(at, at + CALLS_PER_ROUND) for at in range(0, len(ours), CALLS_PER_ROUND)]
    yield Comparison(
        name=name,
        peer=NOOP_NAME,
        pairs=tuple((median(ours[part]), median(theirs[part])) for part in rounds),
        unit="ms",
        target=Target(bound="≤", value=1.3),
    )
    yield Comparison(
        name="that no-op call, and one message from shim to interpreter and back",
        peer=NOOP_NAME,
        pairs=tuple(
            (median(theirs[part]) + median(floor[part]), median(theirs[part])) for part in rounds
        ),
        unit="ms",
        floor=True,
    )
    yield Distribution(name="run, through the shim", samples=tuple(ours))
    yield Distribution(name=NOOP_NAME, samples=tuple(theirs))


async def call_tools(
    bench: Bench, errors: TextIO, hops: Chain
) -> tuple[list[float], list[float], list[float]]:
    """Times of many calls of each, in turn; the first round is left out."""
    shim = StdioServerParameters(command=SHIM[0], env=dict(bench.variables))
    peer = StdioServerParameters(command=SDK_SERVER[0], args=list(SDK_SERVER[1:]))
    run = {"code": "pass", "env": "python", "session": "bench"}
    ours, theirs, floor = list[float](), list[float](), list[float]()
    async with (
        Client(stdio_client(shim, errlog=errors)) as our_client,
        Client(stdio_client(peer, errlog=errors)) as their_client,
    ):
        for _ in range((bench.rounds + 1) * CALLS_PER_ROUND):
            ours.append(await call_time(our_client, "run", run))
            theirs.append(await call_time(their_client, "noop", {}))
            floor.append(timed(hops))
    return ours[CALLS_PER_ROUND:], theirs[CALLS_PER_ROUND:], floor[CALLS_PER_ROUND:]


async def call_time(client: Client, tool: str, arguments: dict[str, str]) -> float:
    """How long one call takes, milliseconds."""
    started_s = anyio.current_time()
    result = await client.call_tool(tool, arguments)
    took_s = anyio.current_time() - started_s
    assert not result.is_error, result
    return took_s * 1000
