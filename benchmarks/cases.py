"""What is compared with what. Each function measures one row of the table."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, TextIO

import anyio
from mcp import Client, StdioServerParameters, stdio_client

import nsm
import private_supervisor
from measure import Comparison, Pair, Target, alternate, pss_mb, timed

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
PASS = (sys.executable, "-c", "pass")
PASS_NAME = "python -c pass"
SHIM = (str(BIN / "nsm-mcp"),)
SDK_SERVER = (sys.executable, str(HERE / "peers/sdk_server.py"))
SDK_NAME = "MCP SDK's stdio server"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every case needs.

    Attributes:
        rounds: pairs to measure.
        variables: lead nsm's programs to the supervisor that runs.
    """

    rounds: int
    variables: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """The environment for programs."""
        return {**os.environ, **self.variables}

    def client(self) -> nsm.Client:
        """A client of the supervisor."""
        return nsm.Client(socket_path=self.variables["NSM_SOCKET"], autostart=False)


def measure_all(bench: Bench) -> Generator[Comparison]:
    """Every row, in the order of the table."""
    yield shim_start(bench)
    yield from shim_memory(bench)
    yield run_through_shim(bench)
    yield from exec_on_socket(bench)
    yield supervisor_start(bench)
    yield process_list(bench)


# nsm-mcp


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


def shim_start(bench: Bench) -> Comparison:
    """From starting the program to having read its answer."""

    def start(command: tuple[str, ...]) -> float:
        with ExitStack() as stack:  # ends the server outside of what is timed
            return timed(lambda: stack.enter_context(initialized(command, bench)))

    return Comparison(
        name="nsm-mcp, start to initialize",
        peer=SDK_NAME,
        pairs=alternate(lambda: start(SHIM), lambda: start(SDK_SERVER), rounds=bench.rounds),
        unit="ms",
        target=Target(bound="≤", value=0.1),
    )


def shim_memory(bench: Bench) -> Generator[Comparison]:
    """PSS of servers that wait, and of a Python that does nothing but wait."""
    against_pass: list[Pair] = []
    against_sdk: list[Pair] = []
    for _ in range(max(3, bench.rounds // 4)):
        with (
            initialized(SHIM, bench) as shim,
            initialized(SDK_SERVER, bench) as sdk,
            waiting_python() as plain,
        ):
            ours = pss_mb(shim.pid)
            against_pass.append((ours, pss_mb(plain.pid)))
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
        name=name,
        peer=SDK_NAME,
        pairs=tuple(against_sdk),
        unit="MB",
        target=Target(bound="≤", value=0.15),
    )


@contextmanager
def waiting_python() -> Generator[subprocess.Popen[bytes]]:
    """`python -c pass`, kept from ending: there is nothing to measure in a process that is gone."""
    code = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        stdin, stdout = pipes(process)
        stdout.readline()
        yield process
        stdin.close()


def run_through_shim(bench: Bench) -> Comparison:
    """The tool `run` in a live session against a tool that does nothing; one SDK client each."""
    with Path(os.devnull).open("w") as nowhere:
        pairs = anyio.run(call_tools, bench, nowhere)
    return Comparison(
        name="run in a live session, through the shim",
        peer="no-op tool of the SDK's server",
        pairs=pairs,
        unit="ms",
        target=Target(bound="≤", value=1.3),
    )


async def call_tools(bench: Bench, errors: TextIO) -> tuple[Pair, ...]:
    """Median times of a few calls each, alternating."""
    shim = StdioServerParameters(command=SHIM[0], env=dict(bench.variables))
    peer = StdioServerParameters(command=SDK_SERVER[0], args=list(SDK_SERVER[1:]))
    run = {"code": "pass", "env": "python", "session": "bench"}
    pairs: list[Pair] = []
    async with (
        Client(stdio_client(shim, errlog=errors)) as ours,
        Client(stdio_client(peer, errlog=errors)) as theirs,
    ):
        for _ in range(bench.rounds + 1):
            mine, yours = list[float](), list[float]()
            for _ in range(CALLS_PER_ROUND):
                mine.append(await call_time(ours, "run", run))
                yours.append(await call_time(theirs, "noop", {}))
            pairs.append((median(mine), median(yours)))
    return tuple(pairs[1:])


async def call_time(client: Client, tool: str, arguments: dict[str, str]) -> float:
    """How long one call takes, milliseconds."""
    started_s = anyio.current_time()
    result = await client.call_tool(tool, arguments)
    took_s = anyio.current_time() - started_s
    assert not result.is_error, result
    return took_s * 1000


# The control socket


def exec_on_socket(bench: Bench) -> Generator[Comparison]:
    """One statement in a live session against the same in a live Jupyter kernel."""
    try:
        jupyter_client: Any = importlib.import_module("jupyter_client.manager")
    except ImportError:
        print("left out: exec against ipykernel; `make bench` installs it", file=sys.stderr)
        return
    with bench.client() as client, tempfile.TemporaryDirectory() as kernel_home:
        # The kernel's own files (history, connection file) stay out of the user's home.
        os.environ.update(IPYTHONDIR=kernel_home, JUPYTER_RUNTIME_DIR=kernel_home)
        manager, kernel = jupyter_client.start_new_kernel(
            kernel_name="python3", stderr=subprocess.DEVNULL
        )
        try:

            def ours() -> float:
                def once() -> None:
                    result = client.run("pass", env="python", session="bench")
                    assert result.exit_code == 0

                return median(timed(once) for _ in range(CALLS_PER_ROUND))

            def theirs() -> float:
                def once() -> None:
                    reply = kernel.execute("pass", reply=True, timeout=30)
                    assert reply["content"]["status"] == "ok"

                return median(timed(once) for _ in range(CALLS_PER_ROUND))

            yield Comparison(
                name="exec in a live session, control socket",
                peer="ipykernel round trip",
                pairs=alternate(ours, theirs, rounds=bench.rounds),
                unit="ms",
                target=Target(bound="≥", value=10),
                faster=True,
            )
        finally:
            kernel.stop_channels()
            manager.shutdown_kernel(now=True)


def supervisor_start(bench: Bench) -> Comparison:
    """From nothing to an answer on the control socket, in a directory of its own."""

    def start() -> float:
        with tempfile.TemporaryDirectory(prefix="nsm-bench-") as path:
            variables = private_supervisor.variables_for(Path(path))
            started_s = time.perf_counter()
            process, reading = private_supervisor.start(variables, Path(path, "log"))
            try:
                with open(reading, "rb") as ready:
                    assert ready.readline() == b"\n", private_supervisor.tail(Path(path, "log"))
                ping(variables["NSM_SOCKET"])
                return (time.perf_counter() - started_s) * 1000
            finally:
                private_supervisor.end(process)

    return Comparison(
        name="cold start of the supervisor",
        peer=PASS_NAME,
        pairs=alternate(start, run_pass, rounds=max(3, bench.rounds // 2)),
        unit="ms",
    )


def ping(socket_path: str) -> None:
    """Ask the supervisor for anything."""
    with nsm.Client(socket_path=socket_path, autostart=False) as client:
        client.status()


# The command line


def process_list(bench: Bench) -> Comparison:
    """The whole process `nsm ps`, with sessions to show."""
    command = [str(BIN / "nsm"), "ps"]

    def ps() -> float:
        return timed(
            lambda: subprocess.run(
                command, env=bench.environment, check=True, stdout=subprocess.DEVNULL
            )
        )

    with bench.client() as client:
        for name in ("one", "two", "three"):
            client.run("pass", env="python", session=name)
        return Comparison(
            name="nsm ps, the whole process",
            peer=PASS_NAME,
            pairs=alternate(ps, run_pass, rounds=bench.rounds),
            unit="ms",
            target=Target(bound="≤", value=4),
        )


def run_pass() -> float:
    """How long `python -c pass` takes, milliseconds."""
    return timed(lambda: subprocess.run(PASS, check=True))


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Both ends that we hold."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
