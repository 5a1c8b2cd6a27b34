"""nsm's processes are killed one after the other: no session is lost, doubled or wrong.

``SOAK_KILLS`` is the number of kills, ``SOAK_SEED`` repeats the moments.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import secrets
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import variables_for
from live_forks import needs_scopes
from nsm.wire.errors import ForkRefusedError
from soak.faults import send
from soak.household import Household

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.jail, pytest.mark.node, pytest.mark.slow, pytest.mark.alone, needs_scopes]

KILLS = int(os.environ.get("SOAK_KILLS") or "25")
SEED = int(os.environ.get("SOAK_SEED") or secrets.randbits(32))

LATEST_S = 0.06
"""Latest moment of a kill, after something has begun that takes as long."""

FORKS = 10
"""Forks of one session, as the kernel refuses the 16th."""

END_S = 60.0

VICTIMS = ("supervisors", "holders", "templates", "fork_helpers")

COUNT = {
    "python": "import time; n = globals().get('n', 0) + 1; time.sleep({0}); print(n)",
    "bash": "n=$((${{n:-0}} + 1)); sleep {0}; echo $n",
    "node": "globalThis.n = (globalThis.n || 0) + 1; await new Promise("
    "then => setTimeout(then, {0} * 1000)); console.log(n)",
}
NAMES = tuple(f"{env}-{number}" for env in COUNT for number in range(3))


class CountingSessions:
    """Sessions that count what they ran, while processes of nsm are killed.

    Attributes:
        kills: number of kills of each kind.
    """

    def __init__(self, household: Household, client: nsm.Client) -> None:
        self.kills: Counter[str] = Counter()
        self._household = household
        self._client = client
        self._chance = random.Random(SEED)
        self._counts: Counter[str] = Counter()
        for name in NAMES:
            self._count(name)
        self._known = {(row.name, row.id, row.pid) for row in client.sessions()}
        assert len(self._known) == len(NAMES)
        self._targets = itertools.count()
        self._target, self._forks = "", FORKS

    def _count(self, name: str, seconds: float = 0) -> None:
        """Have a session count, and check that it is the one that has counted so far."""
        env = name.partition("-")[0]
        result = self._client.run(COUNT[env].format(seconds), env=env, session=name)
        self._counts[name] += 1
        assert (result.stdout, result.exit_code) == (f"{self._counts[name]}\n", 0), result
        assert result.session.created == (self._counts[name] == 1), result

    def kill(self, victim: str) -> None:
        """Kill one of these processes while nsm works for it, and look at all sessions."""
        forks = victim == "fork_helpers"
        if forks and self._forks == FORKS:
            self._renew_target()
        name = self._chance.choice(NAMES)
        with InThread(self._fork if forks else lambda: self._count(name, LATEST_S)):
            threading.Event().wait(self._chance.uniform(0, LATEST_S))
            pids: list[int] = getattr(self._household.members(), victim)
            if pids and send(self._chance.choice(pids), signal.SIGKILL):
                self.kills[victim] += 1
        self._see_all()

    def _renew_target(self) -> None:
        if self._target:
            self._client.kill([self._target])
        self._target, self._forks = f"target-{next(self._targets)}", 0
        self._client.run("x = 5", env="python", session=self._target)

    def _fork(self) -> None:
        self._forks += 1
        with suppress(ForkRefusedError):
            for fork in self._client.fork(self._target).forks:
                assert self._shown(fork.name) == "5\n"
                self._client.kill([fork.name])

    def _shown(self, name: str) -> str:
        return self._client.run("print(x)", env="python", session=name).stdout

    def _see_all(self) -> None:
        for name in NAMES:
            self._count(name)
        if self._target:
            assert self._shown(self._target) == "5\n"
        assert self._client.run("print(6 * 7)", env="python").stdout == "42\n"
        rows = [row for row in self._client.sessions() if row.name not in (None, self._target)]
        assert {(row.name, row.id, row.pid) for row in rows} == self._known
        assert len(rows) == len(NAMES)


class InThread:
    """A function that runs in a thread while the block lasts; raises what it raises."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(END_S)
        assert not self._thread.is_alive(), "there is no answer"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001  # told by the main thread
            self._failure = error


def test_kills_one_after_the_other_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, Household() as household:
        for name, value in variables_for(Path(path)).items():
            monkeypatch.setenv(name, value)
        began_s = time.monotonic()
        with nsm.Client(scope="kills") as client:
            sessions = CountingSessions(household, client)
            try:
                while sessions.kills.total() < KILLS:
                    sessions.kill(VICTIMS[sessions.kills.total() % len(VICTIMS)])
            except BaseException:
                log = Path(path) / "state" / "nsm" / "supervisor.log"
                print(log.read_text(errors="replace")[-6000:])
                raise
            finally:
                print(f"seed {SEED}: {dict(sessions.kills)} in {time.monotonic() - began_s:.0f} s")
                client.shutdown()
                left = household.wait_empty(END_S)
                for process in left:
                    send(process.pid, signal.SIGKILL)
        assert not left
