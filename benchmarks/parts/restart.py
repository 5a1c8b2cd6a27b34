"""How long nobody is served while a supervisor is replaced, with sessions to take up or none.

Two supervisors are killed with SIGKILL and started again, or asked to reload, in turn. One has
2,700 sessions, or as many as fit into 70 % of the free memory and its descriptors. It is timed to
the answer of the next program to `sessions`, and to a statement in one of them.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

import trio

import nsm
import private_supervisor
from bench import CONFIGURATION, Bench, connect, settle
from measure import Comparison, Findings, LeftOut, against_budget, alternate
from nsm.wire.errors import DisconnectedError
from parts.sessions import check_variable, check_variables, create, names_of

BUDGET_MS = 1500
"""The budget of the next answer after kill -9, with 2,700 sessions."""


def measure(bench: Bench) -> Findings:
    """Kill -9 and a new start, and `nsm reload`."""
    with ExitStack() as stack:
        many, none = (stack.enter_context(Replaced(number)) for number in (bench.most_sessions, 0))
        if many.sessions < bench.most_sessions:
            why = f"{many.sessions:,} fit here"
            yield LeftOut(what=f"a restart with {bench.most_sessions:,} sessions", why=why)
        ways: dict[str, Callable[[Replaced], float]] = {
            "kill -9 to the next answer": Replaced.kill,
            "nsm reload to the next answer": Replaced.reload,
        }
        for what, way in ways.items():
            row = Comparison(
                name=f"{what}, with {many.sessions:,} sessions",
                peer="the same with none",
                pairs=alternate(
                    partial(way, many), partial(way, none), rounds=bench.some_rounds(0.1, least=2)
                ),
                unit="ms",
            )
            yield row
            if way is Replaced.kill:
                yield against_budget(row.name, [ours for ours, _ in row.pairs], BUDGET_MS, "ms")
        with connect(many.variables) as client:
            check_variables(client, many.sessions)


class Replaced:
    """A supervisor in a directory of its own, replaced again and again.

    Args:
        most: number of sessions to make, if they fit.

    Attributes:
        sessions: how many there are to take up each time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.sessions = 0
        self._names: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsm-bench-")))
            self.variables = private_supervisor.variables_for(path)
            folder = Path(self.variables["XDG_CONFIG_HOME"], "nsm")
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text(CONFIGURATION)
            self._log = path / "log"
            self._process = self._start()
            stack.callback(self._end)
            self.sessions = trio.run(create, self.variables, 0, self._most)
            with connect(self.variables) as client:
                self._names = names_of(client, self.sessions)[:1]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self) -> float:
        """Kill the supervisor; return the milliseconds until the next one answers."""
        self._settle()
        began_s = time.perf_counter()
        self._process.kill()
        self._process.wait()
        self._process = self._start()
        self._ask()
        return (time.perf_counter() - began_s) * 1000

    def reload(self) -> float:
        """Reload; return the milliseconds between the last answer of the old program and the first
        of the new one. The old program first tries whether the new one can start.
        """
        self._settle()
        began_s = 0.0
        path = self.variables["NSM_SOCKET"]
        with (
            nsm.Client(socket_path=path, autostart=False, reconnect=False) as client,
            suppress(DisconnectedError),
        ):
            client.call("reload")
            while True:  # until the program that was asked is no more
                began_s = time.perf_counter()
                client.ping()
        self._ask()
        return (time.perf_counter() - began_s) * 1000

    def _ask(self) -> None:
        """Have it answer: with the state of a session, or with a list where there is none."""
        with connect(self.variables) as client:
            if not self._names:
                client.sessions()
            for session in self._names:
                check_variable(client, session)

    def _settle(self) -> None:
        with connect(self.variables) as client:
            settle(client)

    def _start(self) -> subprocess.Popen[bytes]:
        with private_supervisor.interrupts_deferred():
            process, reading = private_supervisor.start(self.variables, self._log)
        with open(reading, "rb") as ready:
            assert ready.readline() == b"\n", private_supervisor.tail(self._log)
        return process

    def _end(self) -> None:
        private_supervisor.end(self._process)
