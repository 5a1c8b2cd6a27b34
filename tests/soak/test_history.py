"""Undo, save and restore while their processes are killed at any moment."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, supervisor, wait_gone
from nsm.saves import Saves, kept
from nsm.saves.save_file import PARTS, opened
from nsm.wire.errors import SessionEndedError
from soak.household import Household
from soak.load import FULL_MINUTES, MINUTES

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.jail, pytest.mark.slow]

SEED = int(os.environ.get("SOAK_SEED") or "23")
KILLS = 600 if MINUTES >= FULL_MINUTES else max(12, round(10 * MINUTES))
"""A third of them for each action."""

CONFIG = "[session]\nundo = 3\n"
VICTIMS = ("interpreter", "agent", "template", "supervisor")
JOIN_S = 120.0

FILL = "import os; noise = os.urandom(3_000_000); x = {number}; open('f', 'w').write('{number}')"
SPOIL = "x = -1; open('f', 'w').write('-1')"
LOOK = "print(globals().get('x'), open('f').read() if os.path.exists('f') else None)"


class Rounds:
    """One kill after another, each amid an action.

    Attributes:
        outcomes: how many actions were done, or failed.
    """

    def __init__(self, it: Supervisor, household: Household) -> None:
        self.outcomes = {"done": 0, "failed": 0}
        self._it = it
        self._household = household
        self._chance = random.Random(SEED)
        self._took_s = 0.1
        self._may_be_dying = False  # an interpreter that was killed can still take a call

    def client(self) -> nsm.Client:
        return nsm.Client(socket_path=self._it.socket, scope="test", autostart=False)

    def look(self, session: str) -> str:
        """Return the state of a session; a new one has nothing."""
        return self.run(f"import os\n{LOOK}", session).strip()

    def run(self, code: str, session: str = "work") -> str:
        """Run code in a session, which may have to be told first that it has ended."""
        with self.client() as client:
            try:
                result = client.run(code, env="python", session=session)
            except SessionEndedError:
                result = client.run(code, env="python", session=session)
            if self._may_be_dying and "SIGKILL" in result.restart_reason:
                result = client.run(code, env="python", session=session)
            self._may_be_dying = False
        assert result.exit_code == 0, result
        return result.stdout

    def have_supervisor(self) -> None:
        assert self._it.run("nsm", "run", "-e", "bash", ":").returncode == 0

    def amid(self, victim: str, session: str, act: Callable[[nsm.Client], object]) -> object:
        """Kill something while another thread acts; returns what came of it, perhaps an error."""
        outcome: list[object] = []

        def run() -> None:
            try:
                with self.client() as client:
                    outcome.append(act(client))
            except (nsm.NsmError, OSError) as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        began_s = time.monotonic()
        thread.start()
        threading.Event().wait(self._chance.uniform(0, 1.2 * self._took_s))
        hit = self._kill(victim, session)
        if victim == "supervisor":
            self.have_supervisor()
        thread.join(JOIN_S)
        assert outcome, "it hangs"
        if not hit:
            self._took_s = time.monotonic() - began_s
        failed = isinstance(outcome[0], Exception)
        self.outcomes["failed" if failed else "done"] += 1
        return outcome[0]

    def _kill(self, victim: str, session: str) -> bool:
        """Kill one; returns whether it was there."""
        with self.client() as client, suppress(nsm.NsmError, LookupError, OSError, StopIteration):
            if victim == "supervisor":
                pid = client.status().pid
                ended = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                wait_gone([ended])
                return True
            if victim == "template":
                os.kill(self._chance.choice(self._household.members().templates), signal.SIGKILL)
                return True
            row = next(row for row in client.sessions() if row.name == session)
            inside = [p.pid for p in client.inspect(session).processes if p.inside != 1]
            os.kill(row.pid if victim == "agent" else self._chance.choice(inside), signal.SIGKILL)
            self._may_be_dying = victim != "agent"
            return True
        return False


def undo(rounds: Rounds, victim: str, number: int) -> None:
    """Find the state from before the call or from after it, and from one of them only."""
    for code in (FILL.format(number=number), SPOIL):
        rounds.run(code)
    result = rounds.amid(victim, "work", lambda client: client.undo("work"))
    before, after = f"{number} {number}", "-1 -1"
    undone = isinstance(result, nsm.RunResult) and result.exit_code == 0
    found = rounds.look("work")
    if victim in ("supervisor", "template"):
        assert found in ((before,) if undone else (before, after)), (found, result)
    else:
        lost = {f"None {number}", "None -1", "None None"}
        assert found in {before, after, *lost}, (found, result)


def save(rounds: Rounds, victim: str, number: int) -> None:
    """The save is there as a whole or not at all, and the session goes on."""
    rounds.run(FILL.format(number=number))
    rounds.amid(victim, "work", lambda client: Saves(client).save("work", path_of("other")))
    for entry in os.listdir(kept.directory()):
        with opened(os.path.join(kept.directory(), entry)) as reader:
            for name in PARTS:
                reader.read_part(name, lambda _: None)
    if victim in ("supervisor", "template"):
        assert rounds.look("work") == f"{number} {number}"


def restore(rounds: Rounds, victim: str, _: int) -> None:
    """Find the whole session, or none."""
    result = rounds.amid(
        victim, "again", lambda client: Saves(client).restore(path_of("good"), "again")
    )
    with rounds.client() as client:
        names = [row.name for row in client.sessions()]
    if isinstance(result, Exception):
        assert "again" not in names, result
    elif victim in ("supervisor", "template"):
        assert rounds.look("again") == "7 7"
    with rounds.client() as client:
        if "again" in names:
            client.kill(["again"])


def path_of(name: str) -> str:
    return kept.path_of(name)


def test_kills_leave_nothing_half_made(monkeypatch: pytest.MonkeyPatch) -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    monkeypatch.setenv("NSM_AUTOSTART", "0")  # the command line starts the next supervisor
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, Household() as household:
        monkeypatch.setenv("XDG_DATA_HOME", f"{path}/data")
        with supervisor(Path(path), config=CONFIG, keep=True) as it:
            rounds = Rounds(it, household)
            with it.client() as client:
                client.run(FILL.format(number=7), env="python", session="good")
                Saves(client).save("good", path_of("good"))
            try:
                for number in range(KILLS):
                    rounds.have_supervisor()
                    victim = VICTIMS[number // 3 % len(VICTIMS)]
                    (undo, save, restore)[number % 3](rounds, victim, number)
            finally:
                assert it.run("nsm", "shutdown").returncode == 0
            print(f"{KILLS} kills: {rounds.outcomes}")
            assert min(rounds.outcomes.values()) > 0, "kills come too early or too late"
        assert not household.wait_empty(30)
