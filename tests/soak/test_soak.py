"""Hours of mixed work in minutes: memory, descriptors and processes end where they began.

Loads run side by side and stop together every now and then; at these quiet points, with every
session ended and the pool full again, the supervisor and all below it are measured. What is kept on
purpose (results, transcripts, ends of sessions) is bounded, so the first third of the time fills
it, and growth is looked for after that.
"""

from __future__ import annotations

import faulthandler
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from e2e_support import END_TIMEOUT_S, descendants, supervisor
from nsm.wire.errors import OverloadedError, SessionEndedError, SessionLimitError
from soak.callers import ShimCaller
from soak.programs import programs

if TYPE_CHECKING:
    import nsm
    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.node, pytest.mark.slow, pytest.mark.alone]

SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "3"))
QUIET_POINTS = 15

GROWTH = 1.02
GROWTH_MIB = 2.0
"""How far the last third's median may be above the middle third's most. What is kept on purpose
comes and goes by ten MiB with the size of the last outputs; a leak goes on past that."""

CONFIG = "[pool]\nmin_spares = 2\nmax_spares = 6\n"
"""Configuration with the same pool for each environment, whatever was asked for lately, so that it
comes to rest.
"""

FILLING = 300
"""Jails with a long output: a transcript keeps half a megabyte of each, all together 64."""

ENVS = ("python", "bash", "node")

Load = Callable[["Supervisor", random.Random], None]


class Sample(NamedTuple):
    """The supervisor and all below it at a quiet point."""

    memory_mib: float
    descriptors: int
    threads: int
    processes: int

    @classmethod
    def take(cls, shared: Supervisor) -> Sample:
        status = Path(f"/proc/{shared.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        rollup = Path(f"/proc/{shared.pid}/smaps_rollup").read_text()
        private = sum(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")
        )
        return cls(
            memory_mib=private / 1024,
            descriptors=len(os.listdir(f"/proc/{shared.pid}/fd")),
            threads=int(fields["Threads"]),
            processes=len(descendants(shared.pid)),
        )


# Each load is one turn of something that people and models do; a thread repeats it.


def conversation(shared: Supervisor, rng: random.Random) -> None:
    """A model's session: some programs one after the other, then it is ended."""
    env = rng.choice(ENVS)
    name = f"conversation-{rng.getrandbits(32):x}"
    with shared.client() as client:
        for chosen in rng.sample([p for p in PROGRAMS if p.env == env], 5):
            _run(client, chosen.code, env=env, session=name, timeout_s=0.5)
        client.kill([name])


def one_shots(shared: Supervisor, rng: random.Random) -> None:
    chosen = rng.choice(PROGRAMS)
    with shared.client() as client:
        _run(client, chosen.code, env=chosen.env, timeout_s=0.5)


def small_calls(shared: Supervisor, rng: random.Random) -> None:
    """Many calls of a session that stays."""
    with shared.client() as client:
        for n in range(100):
            result = _run(client, f"print({n})", env="python", session="small")
            assert result is None or result.stdout == f"{n}\n"


def big_output(shared: Supervisor, rng: random.Random) -> None:
    with shared.client() as client:
        size = rng.randrange(1, 8) << 20
        code = f"head -c {size} /dev/zero | tr '\\0' x"
        _run(client, code, env="bash", session="big", on_output=ignore)


def editor(shared: Supervisor, rng: random.Random) -> None:
    """A shim that comes, makes a few calls, and goes without a word."""
    variables = {**shared.variables, "NSM_AUTOSTART": "0"}
    shim = ShimCaller(shared.directory, "editor", variables)
    try:
        for n in range(5):
            reply = shim.call("python", rng.choice(["e", "f"]), f"print({n})", stream=False)
            assert reply.text, reply
    finally:
        if rng.random() < 0.5:
            shim.kill()
        shim.close()


def garbage(shared: Supervisor, rng: random.Random) -> None:
    """Something that is no client connects, says something and goes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(shared.socket)
        connection.settimeout(5)
        with suppress(OSError):  # it was shown the door
            connection.sendall(rng.randbytes(rng.randrange(1, 2000)))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    time.sleep(0.05)  # a nuisance beside the others, no flood


def ignore(_stream: str, _text: str) -> None:
    """Output that is wanted as it comes, and then not looked at."""


LOADS: tuple[Load, ...] = (conversation, one_shots, small_calls, big_output, editor, garbage)


def _run(client: nsm.Client, code: str, **options: Any) -> nsm.RunResult | None:
    """Run it; an ended session or a full queue is part of life here."""
    with suppress(SessionEndedError, OverloadedError, SessionLimitError):
        return client.run(code, **options)
    return None


class Crew:
    """The loads' threads, which work between `go` and `rest`."""

    def __init__(self, shared: Supervisor) -> None:
        self.turns = dict.fromkeys((load.__name__ for load in LOADS), 0)
        self.failures: list[BaseException] = []
        self._shared = shared
        self._working = threading.Event()
        self._over = False
        self._resting = threading.Barrier(len(LOADS) + 1)
        self._threads = [
            threading.Thread(target=self._work, args=(load, seed))
            for seed, load in enumerate(LOADS)
        ]
        for thread in self._threads:
            thread.start()

    def go(self, seconds: float) -> None:
        """Let them work for that long; returns when all rest."""
        self._working.set()
        self._resting.wait()
        time.sleep(seconds)
        self._working.clear()
        self._resting.wait()

    def end(self) -> None:
        self._over = True
        self._working.set()
        self._resting.wait()
        for thread in self._threads:
            thread.join()

    def _work(self, load: Load, seed: int) -> None:
        rng = random.Random(seed)
        while True:
            self._working.wait()
            self._resting.wait()
            if self._over:
                return
            while self._working.is_set() and not self.failures:
                try:
                    load(self._shared, rng)
                except BaseException as error:  # noqa: BLE001  # told by the main thread
                    self.failures.append(error)
                self.turns[load.__name__] += 1
            self._resting.wait()


PROGRAMS = programs(ENVS)


def test_nothing_grows() -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    with supervisor(config=CONFIG) as shared:
        crew = Crew(shared)
        samples: list[Sample] = []
        try:
            fill(shared)
            full = quiet(shared)
            for _ in range(QUIET_POINTS):
                crew.go(SECONDS / QUIET_POINTS)
                if crew.failures:
                    raise crew.failures[0]
                samples.append(quiet(shared))
                print(samples[-1], crew.turns)
        finally:
            crew.end()
    third = QUIET_POINTS // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    assert min(crew.turns.values()) > 0
    for what in ("descriptors", "threads", "processes"):
        # Threads wait some seconds for more work before they end, so their number comes and goes
        # all the time: what there was at any earlier time is no growth.
        earlier = samples[: 2 * third] if what == "threads" else middle
        most = max(getattr(sample, what) for sample in earlier)
        after = statistics.median(getattr(sample, what) for sample in last)
        assert after <= most, (what, samples)
    before = max(sample.memory_mib for sample in (full, *samples[: 2 * third]))
    after = statistics.median(sample.memory_mib for sample in last)
    assert after <= before * GROWTH + GROWTH_MIB, samples


def fill(shared: Supervisor) -> None:
    """Fill what the supervisor keeps on purpose: results and transcripts, up to their bounds."""
    with shared.client() as client:
        for _ in range(FILLING):
            _run(client, "head -c 1M /dev/zero | tr '\\0' x; echo >&2", env="bash")


def quiet(shared: Supervisor) -> Sample:
    """End all sessions, wait until the pool is full again, and measure."""
    with shared.client() as client:
        client.kill_all()
        deadline = time.monotonic() + END_TIMEOUT_S
        seen: Sample | None = None
        while time.monotonic() < deadline:
            # One-shots fill the spare that was taken: the count is steady once nothing starts.
            time.sleep(0.5)
            sample = Sample.take(shared)
            if seen is not None and sample[1:] == seen[1:]:
                return sample
            seen = sample
    raise AssertionError(f"it does not come to rest: {seen}")
