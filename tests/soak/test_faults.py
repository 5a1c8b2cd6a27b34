"""A seeded soak: work with state goes on while nsm's processes are killed, stopped and pestered.

At the end no session may be lost but those whose own process was killed, which must have been told;
no answer mismatched, missing or doubled (`soak.ledgers`); no process, descriptor, file or control
group left.

``SOAK_SEED`` repeats what is drawn; what it meets depends on time as well. ``SOAK_EVERY_S`` is the
mean time between faults, ``SOAK_FAULTS`` a pattern for those that are wanted.
"""

from __future__ import annotations

import faulthandler
import os
import random
import re
import secrets
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import variables_for
from soak.callers import AioCaller, ApiCaller, Caller, CommandCaller, Desk, ShimCaller
from soak.faults import Faults
from soak.household import Household
from soak.ledgers import READ, TOKEN, Life, Lost, Wrong, one_shot

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, pytest.mark.node, pytest.mark.slow, pytest.mark.alone]

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
SECONDS = 60 * (MINUTES if MINUTES >= 10 else MINUTES / 3)
"""One of several soaks: `make soak SOAK_MINUTES=3` is over soon, an hour is an hour."""

SEED = int(os.environ.get("SOAK_SEED") or secrets.randbits(32))
EVERY_S = float(os.environ.get("SOAK_EVERY_S", "2"))
WANTED = re.compile(os.environ.get("SOAK_FAULTS", ""))

PARKED = 30
"""Sessions that live through all of it, and are asked now and then."""

ENVS = ("python", "python", "bash", "node")

CONFIG = """
[pool]
max_spares = 3
[session]
max_sessions = 400
"""

END_S = 30.0

SHOWN = 40
"""Lines of each kind that are printed at the end."""

KEPT = frozenset({"config", "sessions", "start.lock", "state", "supervisor.lock", "work"})
"""Content of nsm's directory when all has ended."""

HOLDERS_OWN = 4
"""Descriptors that a holder has beside those that it keeps."""

SHARED = 4 * 4 + 3 * 3 * 2
"""Descriptors that are kept of no session: of each template four, of each kind of session (by
environment, project, and whether it was forked) its description."""


@dataclass(slots=True)
class Tally:
    """Totals of the soak. Lists grow in threads, one `append` at a time.

    Attributes:
        untold: sessions of which the answer only said that they were new, and not why.
        unexcused: what nothing that was done here explains.
    """

    turns: Counter[str] = field(default_factory=Counter[str])
    sessions: int = 0
    lost: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    untold: list[str] = field(default_factory=list[str])
    unexcused: list[str] = field(default_factory=list[str])


class Worker(threading.Thread):
    """One client that lives through sessions, one after the other.

    Args:
        turns: how many a session has before it is looked through and ended; None for one session
            that stays until the end.
    """

    def __init__(
        self, kind: str, caller: Caller, soak: Soak, seed: int, turns: range | None
    ) -> None:
        super().__init__(name=f"{kind}-{seed}")
        self.failure: BaseException | None = None
        self._kind = kind
        self._caller = caller
        self._soak = soak
        self._rng = random.Random(seed)
        self._turns = turns
        self._lives = 0

    def run(self) -> None:
        try:
            while not self._soak.over.is_set():
                self._live()
        except BaseException as error:  # noqa: BLE001  # told by the main thread
            self.failure = error
            self._soak.over.set()
        finally:
            self._caller.close()

    def _live(self) -> None:
        self._lives += 1
        self._soak.tally.sessions += 1
        life = Life(self._rng.choice(ENVS), f"{self.name}-{self._lives}")
        turns = self._rng.choice(self._turns) if self._turns else None
        pid: int | None = None
        done = 0
        while not self._soak.over.is_set() and (turns is None or done < turns):
            done += 1
            lost = self._turn(life, pid)
            if lost is not None:
                self._blame(life, lost, pid)
            if lost is not None and lost.what == "session":
                pid = None
            if life.begun and pid is None:
                pid = self._soak.desk.pid_of(self._caller.scope, life.name)
            self._soak.over.wait(self._rng.uniform(0, 0.4 if turns else 5))
            if self._rng.random() < 0.1:
                self._one_shot(life.env)
        self._end(life, pid)

    def _turn(self, life: Life, pid: int | None) -> Lost | None:
        slow = self._rng.random() < 0.3
        steps = self._rng.randrange(1, 5) if slow else 0
        token, code = life.ask(steps=steps, pause_s=self._rng.uniform(0.1, 0.7))
        reply = self._caller.call(
            life.env, life.name, code, stream=slow and self._rng.random() < 0.5
        )
        began = life.begun
        lost = life.take(token, reply)
        tally = self._soak.tally
        tally.turns[self._kind] += 1
        if reply.kind == "unknown":
            line = f"{self._soak.since()} {life.name}: {reply.text}"
            tally.unknown.append(line)
            # With a session, or with its client, goes what only they could have said; and of one
            # that has never answered, nobody can tell whether it came to be.
            excused = not began or self._soak.faults.excused("session", pid)
            if not excused and "the shim is gone" not in reply.text:
                tally.unexcused.append(line)
        elif reply.kind == "refused":
            tally.refused.append(f"{self.name}: {reply.text}")
            self._soak.over.wait(0.5)
        return lost

    def _blame(self, life: Life, lost: Lost, pid: int | None) -> None:
        line = f"{self._soak.since()} {life.name} (process {pid}): {lost.what} lost: {lost.told}"
        tally = self._soak.tally
        tally.lost.append(line)
        if not lost.told:
            tally.untold.append(line)
        if not lost.told or not self._soak.faults.excused(lost.what, pid):
            tally.unexcused.append(line)

    def _one_shot(self, env: str) -> None:
        token = f"turn-{secrets.token_hex(8)}"
        reply = self._caller.call(env, None, one_shot(env, token), stream=False)
        if set(TOKEN.findall(reply.text)) - {token}:
            raise Wrong(f"another's output for {token}: {reply}")
        killed = reply.kind == "ended" or reply.failed or reply.restarted
        if killed and not self._soak.faults.excused("interpreter", None):
            raise Wrong(f"nobody killed a session, but {reply}")
        if reply.kind == "ran" and not killed and token not in reply.text:
            raise Wrong(f"no output of its own for {token}: {reply}")
        self._soak.tally.turns[f"{self._kind} one-shot"] += 1

    def _end(self, life: Life, pid: int | None) -> None:
        """Read the ledger, and end the session."""
        said = ""
        for _ in range(5):
            if not life.begun:
                break  # it was lost with its last answer
            reply = self._caller.call(life.env, life.name, READ[life.env], stream=False)
            if reply.kind == "ended" or reply.created:
                self._blame(life, Lost("session", reply.replaced or reply.text), pid)
                break
            if reply.kind == "ran" and not reply.failed:
                lines = [line for line in reply.text.splitlines() if TOKEN.match(line)]
                life.audit("\n".join(lines))
                break
            said = reply.text
            self._soak.over.wait(0.5)
        else:
            raise Wrong(f"the ledger of {life.name} cannot be read: {said}")
        self._soak.desk.kill(self._caller.scope, life.name)


class Soak:
    """Everything of one run."""

    def __init__(self, directory: Path, household: Household) -> None:
        self.over = threading.Event()
        self.tally = Tally()
        self.socket = str(directory / "control.sock")
        self.desk = Desk(self.socket)
        self.faults = Faults(
            household,
            random.Random(SEED),
            directory,
            EVERY_S,
            lambda kind: WANTED.search(kind) is not None,
        )
        self._began_s = time.monotonic()
        work = directory / "work"
        work.mkdir()
        some = range(5, 40)
        aio = AioCaller(self.socket)
        makers: list[tuple[str, Caller, range | None]] = [
            *(("api", ApiCaller(self.socket), some) for _ in range(3)),
            *(("aio", aio.share(), some) for _ in range(4)),
            *(("shim", ShimCaller(work), some) for _ in range(4)),
            *(("command", CommandCaller(work), some) for _ in range(1)),
            *(("parked", ApiCaller(self.socket, "parked"), None) for _ in range(PARKED)),
        ]
        self.workers = [
            Worker(kind, caller, self, SEED + number, turns)
            for number, (kind, caller, turns) in enumerate(makers)
        ]

    def since(self) -> str:
        """Seconds since the beginning, for people."""
        return f"{time.monotonic() - self._began_s:8.2f}"

    def run(self, seconds: float) -> None:
        """Work with faults for so long; raises what a worker has found to be wrong."""
        threads: list[threading.Thread] = [*self.workers, self.faults]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.faults.stop()
        self.over.set()
        for worker in self.workers:
            worker.join()
        self.report()
        failures = [*self.faults.failures, *(w.failure for w in self.workers if w.failure)]
        if failures:
            raise failures[0]

    def see_that_nothing_is_left(self, household: Household) -> None:
        """Check that nothing is kept of any session once all have ended."""
        deadline = time.monotonic() + END_S
        while rows := self.desk.do(lambda client: client.sessions()):
            assert time.monotonic() < deadline, rows
            time.sleep(0.2)  # one-shots whose client was killed end with their code
        for holder in household.members().holders:
            while (held := len(os.listdir(f"/proc/{holder}/fd"))) > HOLDERS_OWN + SHARED:
                assert time.monotonic() < deadline, f"{held} descriptors are kept of no session"
                time.sleep(0.2)

    def report(self) -> None:
        """Print a summary for people."""
        tally = self.tally
        print(f"seed {SEED}, {self.since()} s, {tally.sessions} sessions, {dict(tally.turns)}")
        print(f"faults: {sum(self.faults.counts.values())} {dict(self.faults.counts)}")
        for name in ("lost", "untold", "unknown", "refused", "unexcused"):
            lines: list[str] = getattr(tally, name)
            shown = None if name == "unexcused" else SHOWN
            print(f"{name}: {len(lines)}", *lines[:shown], sep="\n  ")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A directory for all of nsm's files, and variables that lead there."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        directory = Path(path)
        (directory / "config" / "nsm").mkdir(parents=True)
        (directory / "config" / "nsm" / "config.toml").write_text(CONFIG)
        for name, value in variables_for(directory).items():
            monkeypatch.setenv(name, value)
        yield directory


def test_no_session_is_lost_over_random_faults(place: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    groups = control_groups()
    with Household() as household:
        soak = Soak(place, household)
        try:
            soak.run(SECONDS)
            soak.see_that_nothing_is_left(household)
        except BaseException:
            print(*soak.faults.log[-SHOWN:], sep="\n")
            print(_log(place)[-6000:])
            raise
        finally:
            _shut_down(soak)
            left = household.wait_empty(END_S)
            for process in left:
                os.kill(process.pid, 9)
    assert not left, left
    assert {path.name for path in place.iterdir()} <= KEPT
    assert control_groups() <= groups
    assert not soak.tally.unexcused, _log(place)[-6000:]


def control_groups() -> set[str]:
    """Control groups of nsm, whichever supervisor made them."""
    return {
        path
        for path, _, _ in os.walk("/sys/fs/cgroup")
        if "nsm" in path.rpartition("/")[2] or "/nsm" in path
    }


def _shut_down(soak: Soak) -> None:
    soak.desk.close()
    with nsm.Client(socket_path=soak.socket) as client:
        client.shutdown()


def _log(place: Path) -> str:
    log = place / "state" / "nsm" / "supervisor.log"
    return log.read_text(errors="replace") if log.exists() else ""
