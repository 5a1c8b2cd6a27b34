"""Shared parts of a run: supervisors, kernels, clients, and the number of measurements."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import nsm
from measure import timed
from peers.kernels import Kernels
from private_supervisor import private_supervisor

BIN = Path(sys.executable).parent
SHIM = (str(BIN / "nsm-mcp"),)
PASS = (sys.executable, "-c", "pass")
PASS_NAME = "python -c pass"

MOST_SESSIONS = 2700
CONFIGURATION = f"[session]\nmax_sessions = {MOST_SESSIONS + 100}\n"

SETTLE_STEP_S = 0.01
"""Between looks at the pool; each look is a call."""
SETTLE_TIMEOUT_S = 20.0
"""A pool that still refills after this long is measured as it is."""


class Bench:
    """One run.

    Resources: what is started on first use is ended with `stack`, whoever needed it.

    Args:
        rounds: pairs of each kind; what is slow takes fewer.
        most_sessions: how many live ones to go up to.
        stack: owns supervisors and kernels.
    """

    def __init__(self, *, rounds: int, most_sessions: int, stack: ExitStack) -> None:
        self.rounds = rounds
        self.most_sessions = most_sessions
        self._stack = stack
        self._variables: dict[str, str] | None = None
        self._kernels: Kernels | None = None
        self._python: str | None = None

    def some_rounds(self, part: float, least: int = 3) -> int:
        """A part of the rounds, for what takes long."""
        return max(least, round(self.rounds * part))

    @property
    def variables(self) -> Mapping[str, str]:
        """Lead nsm's programs to the supervisor that most parts use."""
        if self._variables is None:
            self._variables = self._stack.enter_context(supervisor())
        return self._variables

    @property
    def environment(self) -> dict[str, str]:
        """The environment for programs."""
        return {**os.environ, **self.variables}

    @property
    def socket_path(self) -> str:
        """The control socket of that supervisor."""
        return self.variables["NSM_SOCKET"]

    @property
    def python(self) -> str:
        """The interpreter of nsm's own Python sessions, for the peers that are jails too."""
        if self._python is None:
            with self.client() as client:
                rows = {row.name: row for row in client.envs()}
            program = rows["python"].program
            assert program, rows["python"].problem
            self._python = program
        return self._python

    @property
    def kernels(self) -> Kernels:
        """Jupyter kernels, of which parts start as many as they need.

        Raises:
            KernelsMissingError: jupyter_client or ipykernel is not installed.
        """
        if self._kernels is None:
            self._kernels = self._stack.enter_context(Kernels())
        return self._kernels

    def client(self) -> nsm.Client:
        """A client of the supervisor."""
        return connect(self.variables)


@contextmanager
def supervisor() -> Generator[dict[str, str]]:
    """A supervisor of our own with room for many sessions; yields its variables.

    It has served an MCP client: it loads what that takes for the first one or some time after its
    start, which would come in the middle of a measurement.
    """
    with private_supervisor("nsm-bench-", CONFIGURATION) as variables:
        ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
        environment = {**os.environ, **variables}
        shim = subprocess.run(SHIM, input=ping, env=environment, capture_output=True, check=True)
        assert b'"id"' in shim.stdout, shim
        yield variables


def connect(variables: Mapping[str, str]) -> nsm.Client:
    """A client of a supervisor of ours."""
    return nsm.Client(socket_path=variables["NSM_SOCKET"], autostart=False)


def supervisor_pid(client: nsm.Client) -> int:
    """Process id of the supervisor that is measured."""
    pid = client.server.pid
    assert pid is not None
    return pid


def run_once(client: nsm.Client, code: str = "pass", session: str | None = None) -> None:
    """Run Python code, which has to succeed."""
    result = client.run(code, env="python", session=session)
    if result.interrupted:  # by the first Ctrl-C, which the client gives to the code
        raise KeyboardInterrupt
    assert result.exit_code == 0, result


def settle(client: nsm.Client) -> None:
    """Wait until the pool has refilled, so that its work disturbs no measurement."""
    ends_s = time.perf_counter() + SETTLE_TIMEOUT_S
    while time.perf_counter() < ends_s:
        time.sleep(SETTLE_STEP_S)
        pool = client.call("pool")["totals"]
        if pool["starting"] == 0 and pool["ready"] >= pool["wanted"]:
            return


def run_pass() -> float:
    """How long `python -c pass` takes, milliseconds."""
    return timed(lambda: subprocess.run(PASS, check=True))


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Both ends that we hold."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
