"""Sessions that are made by the first test of a run and used by the last ones.

So the time between is spent on the other tests and not on waiting. The workers of a run share them,
since the first and the last test may be different workers'.
"""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import nsm
from e2e_support import run, variables_for

if TYPE_CHECKING:
    from pathlib import Path

CODE = {"python": ("x = 42", "print(x)"), "bash": ("x=42", "echo $x"), "node": ("let x = 42", "x")}
"""Code of each environment that its sessions are to keep, and code that shows that they did."""

SECONDS = (15, 70)


@dataclass(frozen=True, slots=True)
class Idle:
    """A supervisor whose sessions were last used at `since_s` by the monotonic clock.

    Attributes:
        socket_path: ended with the run (see `runworkers.MainProcess`).
    """

    socket_path: str
    since_s: float

    def client(self) -> nsm.Client:
        return nsm.Client(socket_path=self.socket_path, autostart=False)


def session_name(env: str, seconds: float) -> str:
    return f"{env}-{seconds}"


def idle_sessions(run_directory: Path) -> Idle:
    """Idle sessions of this run, made for the first test that asks."""
    with (run_directory / "idle.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if text := file.read():
            return Idle(**json.loads(text))
        made = _make(run_directory / "idle")
        file.write(json.dumps(asdict(made)))
        return made


def _make(directory: Path) -> Idle:
    directory.mkdir(0o700)
    variables = variables_for(directory)
    # Started by a program that ends, as it is for most people: it must not be a child of the test
    # run, whose other tests see to it that they leave no child.
    started = run("nsm", "env", variables=variables)
    assert started.returncode == 0, started.stderr
    it = Idle(variables["NSM_SOCKET"], 0.0)
    with it.client() as client:
        for env, (first, _) in CODE.items():
            for seconds in SECONDS:
                client.run(first, env=env, session=session_name(env, seconds))
    return Idle(it.socket_path, time.monotonic())
