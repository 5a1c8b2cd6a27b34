"""Clients in processes of their own, for what many clients get done together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import pipes

Kind = Literal["exec", "fresh", "kernel", "cold"]
PROGRAM = Path(__file__).resolve().parent / "load_client.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Outcome of some seconds of work.

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

    def spell(self, seconds: float) -> Spell:
        """Let all work at once."""
        for process in self._processes:
            stdin, _ = pipes(process)
            stdin.write(b"%f\n" % seconds)
            stdin.flush()
        rate, samples = 0.0, list[float]()
        for process in self._processes:
            answer = json.loads(pipes(process)[1].readline())
            rate += len(answer["samples_ms"]) / answer["took_s"]
            samples += answer["samples_ms"]
        return Spell(rate=rate, samples=tuple(samples))


@contextmanager
def load(kind: Kind, places: list[str]) -> Generator[Load]:
    """A client for each place: what `load_client.py` says about its kinds."""
    with ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        for place in places:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), kind, place],
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
    """A number of clients in words."""
    return "1 client" if number == 1 else f"{number} clients"
