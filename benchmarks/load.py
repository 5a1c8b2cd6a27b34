"""Clients in processes of their own, which work at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import pipes

Kind = Literal["exec", "fresh", "map", "kernel", "cold"]
PROGRAM = Path(__file__).resolve().parent / "load_client.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """Outcome of clients that worked at once for some seconds.

    Attributes:
        rate: calls a second, all clients together.
        samples: milliseconds of each call.
    """

    rate: float
    samples: tuple[float, ...] = ()


class Load:
    """Clients that wait for their start."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def run(self, seconds: float) -> LoadRun:
        """Let all clients work at once."""
        for process in self._processes:
            stdin, _ = pipes(process)
            stdin.write(b"%f\n" % seconds)
            stdin.flush()
        rate, samples = 0.0, list[float]()
        for process in self._processes:
            answer = json.loads(pipes(process)[1].readline())
            rate += len(answer["samples_ms"]) / answer["took_s"]
            samples += answer["samples_ms"]
        return LoadRun(rate=rate, samples=tuple(samples))


@contextmanager
def load(kind: Kind, places: list[str]) -> Generator[Load]:
    """Start clients of one kind of `load_client.py`, one for each place."""
    with started([sys.executable, str(PROGRAM), kind, place] for place in places) as clients:
        yield clients


@contextmanager
def started(
    commands: Iterable[Sequence[str]], environ: Mapping[str, str] | None = None
) -> Generator[Load]:
    """Start programs that answer as `load_client.py` does."""
    with ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        for command in commands:
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is ours; it ends with its input
                )
            )
            processes.append(process)
        for process in processes:
            assert pipes(process)[1].readline() == b"ready\n", "a client did not start; see above"
        yield Load(processes)


def clients(number: int) -> str:
    """Say how many clients there are."""
    return "1 client" if number == 1 else f"{number} clients"
