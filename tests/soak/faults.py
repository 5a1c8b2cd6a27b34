"""Faults every few seconds, drawn from a seed, and the complaints that each one excuses."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import nsm
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from soak.household import Household, Members

LATE_S = 15.0
"""A session that its owner could not look up yet may be one that was killed so long ago."""

CONNECTIONS = 40
"""Silent connections at a time."""

REFILL_S = 1.0
"""Time for a supervisor to hand everything to a new holder, which takes milliseconds."""


class Faults(threading.Thread):
    """Does something to somebody every now and then, until `stop`.

    Attributes:
        counts: how often what was done.
        log: when what was done to whom, for people.
    """

    def __init__(
        self,
        household: Household,
        rng: random.Random,
        directory: Path,
        every_s: float,
        wanted: Callable[[str], bool],
    ) -> None:
        super().__init__(name="faults")
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.failures: list[BaseException] = []
        self._household = household
        self._rng = rng
        self._directory = directory
        self._every_s = every_s
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._killed: dict[str, dict[int, float]] = {"session": {}, "interpreter": {}}
        every: dict[str, tuple[float, Callable[[Members], str | None]]] = {
            "kill the supervisor": (3, lambda members: self._kill(members.supervisors)),
            "kill the supervisor and the next": (0.5, self._kill_again),
            "kill the holder": (1, self._kill_holder),
            "reload": (1, self._reload),
            "stop the holder": (0.5, lambda members: self._pause(members.holders)),
            "kill an agent": (0.5, self._kill_agent),
            "kill an interpreter": (1, self._kill_interpreter),
            "kill a template": (1, lambda members: self._kill(members.templates)),
            "kill a shim": (1, lambda members: self._kill(members.shims)),
            "stop the supervisor": (1, lambda members: self._pause(members.supervisors)),
            "freeze all": (0.5, self._freeze),
            "stop a shim": (0.5, lambda members: self._pause(members.shims)),
            "stop a template": (0.5, lambda members: self._pause(members.templates)),
            "stop an agent": (1, lambda members: self._pause(members.agents)),
            "stop an interpreter": (1, lambda members: self._pause(list(members.interpreters))),
            "garbage": (0.5, self._garbage),
            "silence": (0.5, self._silence),
        }
        self._kinds = {kind: way for kind, way in every.items() if wanted(kind)}

    def run(self) -> None:
        while not self._over.wait(self._rng.uniform(0.2, 1.8) * self._every_s):
            try:
                self._once()
            except BaseException as error:  # noqa: BLE001  # told by the main thread
                self.failures.append(error)
                return

    def stop(self) -> None:
        """No more of it; returns when the last one is over."""
        self._over.set()
        self.join()

    def excused(self, what: str, pid: int | None) -> bool:
        """Return whether a fault from here excuses a lost session or interpreter.

        Args:
            what: ``session`` or ``interpreter``.
            pid: the session's first process; None where its owner never knew it.
        """
        killed = self._killed[what] | (self._killed["session"] if what == "interpreter" else {})
        if pid is not None:
            return pid in killed
        return any(time.monotonic() - at_s < LATE_S for at_s in killed.values())

    def _once(self) -> None:
        members = self._household.members()
        kinds = list(self._kinds)
        weights = [self._kinds[kind][0] for kind in kinds]
        for _ in range(len(kinds)):
            (kind,) = self._rng.choices(kinds, weights)
            said = self._kinds[kind][1](members)
            if said is not None:
                self.counts[kind] += 1
                self.log.append(f"{time.monotonic() - self._began_s:8.2f} {kind} {said}")
                return

    def _kill(self, pids: list[int]) -> str | None:
        if not pids:
            return None
        pid = self._rng.choice(pids)
        return str(pid) if send(pid, signal.SIGKILL) else None

    def _kill_again(self, members: Members) -> str | None:
        """The next one too, while it takes up what it has found."""
        first = self._kill(members.supervisors)
        if first is None:
            return None
        deadline = time.monotonic() + LATE_S
        while time.monotonic() < deadline:
            others = [pid for pid in self._household.members().supervisors if str(pid) != first]
            if others:
                time.sleep(self._rng.uniform(0, 0.7))
                return f"{first}, {self._kill(others)}"
            time.sleep(0.02)
        return first

    def _kill_holder(self, members: Members) -> str | None:
        """While there is somebody who notices: of both at once nothing could remain."""
        if not members.holders or not self._ask("ping"):
            return None
        killed = self._kill(members.holders)
        deadline = time.monotonic() + LATE_S
        while time.monotonic() < deadline:
            if set(self._household.members().holders) - set(members.holders):
                time.sleep(REFILL_S)
                return killed
            time.sleep(0.05)
        raise AssertionError("nobody has started another holder")

    def _reload(self, _members: Members) -> str | None:
        return "" if self._ask("reload") else None

    def _ask(self, op: str) -> bool:
        """Have the supervisor do something; whether it is there to do it."""
        path = os.fspath(self._directory / "control.sock")
        try:
            with nsm.Client(socket_path=path, autostart=False) as client:
                client.call(op)
        except NsmError:
            return False
        return True

    def _kill_agent(self, members: Members) -> str | None:
        if not members.agents:
            return None
        pid = self._rng.choice(members.agents)
        self._killed["session"][pid] = time.monotonic()
        return str(pid) if send(pid, signal.SIGKILL) else None

    def _kill_interpreter(self, members: Members) -> str | None:
        if not members.interpreters:
            return None
        pid = self._rng.choice(list(members.interpreters))
        agent = members.interpreters[pid]
        self._killed["interpreter"][agent] = time.monotonic()
        return f"{pid} of {agent}" if send(pid, signal.SIGKILL) else None

    def _pause(self, pids: list[int]) -> str | None:
        if not pids:
            return None
        pid, seconds = self._rng.choice(pids), self._rng.uniform(0.05, 3)
        if not send(pid, signal.SIGSTOP):
            return None
        time.sleep(seconds)  # it is a time without that process that is wanted
        send(pid, signal.SIGCONT)
        return f"{pid} for {seconds:.1f} s"

    def _freeze(self, members: Members) -> str | None:
        """All of nsm, as a container is frozen."""
        kinds = (members.supervisors, members.holders, members.templates, members.agents)
        stopped = [pid for pids in kinds for pid in pids] + list(members.interpreters)
        seconds = self._rng.uniform(1, 5)
        stopped = [pid for pid in stopped if send(pid, signal.SIGSTOP)]
        time.sleep(seconds)  # it is a time without them that is wanted
        for pid in stopped:
            send(pid, signal.SIGCONT)
        return f"for {seconds:.1f} s"

    def _garbage(self, _members: Members) -> str | None:
        """To every socket that there is."""
        paths = [path for path in self._directory.iterdir() if path.is_socket()]
        for path in paths:
            kind = socket.SOCK_SEQPACKET if path.name == "keeper.sock" else socket.SOCK_STREAM
            with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
                connection.settimeout(2)
                connection.connect(os.fspath(path))
                beginning = self._rng.choice(
                    [b"", b"{", b'{"nsm":1,', b"\0\0\1\0", b"\0\0\0\5\xa1"]
                )
                connection.sendall(beginning + self._rng.randbytes(self._rng.randrange(5000)))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        return f"to {', '.join(path.name for path in paths)}"

    def _silence(self, _members: Members) -> str | None:
        """Connections that say nothing, or half of what they began, and go after a while."""
        silent: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            with suppress(OSError):
                connection = socket.socket(socket.AF_UNIX)
                silent.append(connection)
                connection.settimeout(2)
                connection.connect(os.fspath(self._directory / "control.sock"))
                connection.sendall(self._rng.choice([b"\0", b"\0\0\0\x50\xa1", b'{"nsm"']))
        time.sleep(self._rng.uniform(0, 1))
        for connection in silent:
            connection.close()
        return f"{len(silent)} connections"


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; whether it was there."""
    assert pid > 1
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
