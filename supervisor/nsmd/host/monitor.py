"""The loop of a monitor: start a program, watch it to its end, report; standard library only.

A monitor is a process between the supervisor and a program of the host, and ends all that its
program started. A program's children can leave its process group and its session. Only a subreaper
(PR_SET_CHILD_SUBREAPER(2const)) still sees all of them. It is a process of its own because it must
outlive a supervisor that is killed, until it has ended them.

A control group for each program would need a delegated part of the tree, which many hosts lack. A
PID namespace would need a user namespace, in which Nix's own sandbox and its daemon's idea of the
user differ from what is set up.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from nsmd.host.processes import ProcessStat, processes, send_signals

SWEEP_S = 2.0
"""Time for killed processes to be gone. Only one in an uninterruptible sleep needs longer."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Prctl(Protocol):
    def __call__(self, option: int, argument: int, /) -> int: ...


class Ladder:
    """Signals that ask for an end, and the time of each.

    Attributes:
        due_s: time of the next one, on the monotonic clock; infinite before `begin` and after the
            last.
    """

    def __init__(self, signals: Sequence[signal.Signals], step_s: float) -> None:
        self._signals = list(signals)
        self._step_s = step_s
        self.begun = False
        self.due_s = float("inf")

    def begin(self, now_s: float) -> None:
        """Ask for the end; harmless if asked before."""
        if not self.begun:
            self.begun, self.due_s = True, now_s

    def step(self, now_s: float) -> signal.Signals | None:
        """The signal to send now, if one is due."""
        if now_s < self.due_s:
            return None
        number = self._signals.pop(0)
        self.due_s = now_s + self._step_s if self._signals else float("inf")
        return number


def adopt_orphans() -> Callable[[signal.Signals], None]:
    """Make this process adopt orphans below it.

    Returns:
        A function for a child after a fork: it makes the kernel send it a signal when this process
            ends.
    """
    prctl: _Prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def die_with_parent(number: signal.Signals) -> None:
        prctl(_PR_SET_PDEATHSIG, number)

    return die_with_parent


def watch_signals() -> int:
    """Open a descriptor from which the numbers of signals are read: SIGCHLD, and those that ask for
    an end.
    """
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _seen_through_the_descriptor)
    return wake


def _seen_through_the_descriptor(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor reports the signal (`signal.set_wakeup_fd`)."""


def sweep(reaped: Callable[[int, int], None] | None = None, limit_s: float = SWEEP_S) -> None:
    """Kill all processes below this one. When their parents are gone, they are its children."""
    deadline_s = time.monotonic() + limit_s
    # Blocked, so that a child that ends between looking and waiting is not missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while _reap(reaped) and time.monotonic() < deadline_s:
        for process in _stopped(deadline_s):
            with suppress(ProcessLookupError, PermissionError):
                send_signals(process, signal.SIGKILL)
        if _reap(reaped):
            signal.sigtimedwait({signal.SIGCHLD}, max(0.0, deadline_s - time.monotonic()))


def _reap(reaped: Callable[[int, int], None] | None) -> bool:
    """Reap ended processes; returns whether there are others."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if reaped is not None:
                reaped(*ended)
    except ChildProcessError:
        return False
    return True


def _stopped(deadline_s: float) -> list[ProcessStat]:
    """Stop all processes below, and return them. Processes that fork faster than they can be killed
    gain room with each one killed; stopped ones neither fork nor make room.
    """
    own = os.getpid()
    told: set[ProcessStat] = set()
    while True:
        found = descendants(own)
        fresh = [each for each in found if each._replace(state="") not in told]
        if not fresh or time.monotonic() >= deadline_s:
            return found
        for process in fresh:
            told.add(process._replace(state=""))
            with suppress(ProcessLookupError, PermissionError):
                send_signals(process, signal.SIGSTOP)


def signal_tree(
    numbers: Sequence[signal.Signals], *, but: Collection[int] = (), until_s: float = float("inf")
) -> None:
    """Send signals to all processes below this one that it may signal.

    Args:
        until_s: time on the monotonic clock after which no more are signalled. Thousands of busy
            processes leave this one little time, and the next signal has to be sent, too.
    """
    for process in descendants(os.getpid()):
        if time.monotonic() >= until_s:
            return
        with suppress(ProcessLookupError, PermissionError):
            if but and os.getpgid(process.pid) in but:
                continue
            send_signals(process, *numbers)


def descendants(ancestor: int) -> list[ProcessStat]:
    """Processes below a process that have not ended, parents before their children."""
    below: dict[int, list[ProcessStat]] = {}
    for process in processes():
        below.setdefault(process.parent, []).append(process)
    found: list[ProcessStat] = []
    waiting = [ancestor]
    while waiting:
        for process in below.pop(waiting.pop(), ()):
            waiting.append(process.pid)
            if process.state not in "ZX":
                found.append(process)
    return found


CHUNK_BYTES = 64 * 1024

SOFT_DESCRIPTORS = 1024
"""RLIMIT_NOFILE of programs, as everywhere. The supervisor has raised its own; with more, programs
that use select(2) fail, and those that close all descriptors are slow.
"""


class NotStartedError(Exception):
    """The program could not be started; the message says why."""


class Monitor(ABC):
    """One run of a program.

    Args:
        hold: becomes readable when the program should stop.
        signals: signals that ask for its end, one after the other; then the rest is killed.

    Attributes:
        interval_s: seconds between two reports, while it runs; `has_news`: there is one to send.
        ends_rest: processes that it leaves behind are killed; `sweep_s`: as for `sweep`.
        pid: set by `start`, like `outputs`: descriptors to read until they end.
    """

    interval_s = 0.2
    sweep_s = SWEEP_S
    ends_rest = True

    def __init__(
        self, hold: int, report: int, signals: Sequence[signal.Signals], step_s: float
    ) -> None:
        self.ladder = Ladder([*signals, signal.SIGKILL], step_s)
        self.outputs: set[int] = set()
        self.pid = 0
        self.status: int | None = None
        self.ended_s = 0.0
        self.has_news = False
        self._hold = hold
        self._report = report
        self._unsent = b""
        self._next_report_s = 0.0
        self._poll = select.poll()

    def run(self) -> None:
        """Start the program, watch it to its end, and report that."""
        wake = watch_signals()
        die_with_parent = adopt_orphans()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Without a limit it is the greatest number, or -1 (setrlimit(2)).
        soft = SOFT_DESCRIPTORS if hard < 0 else min(SOFT_DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            self.start(die_with_parent)
        except (NotStartedError, OSError) as error:
            self.send({"end": {"not_started": str(error)}})
            return
        os.set_blocking(self._report, False)
        if self._watch(wake) or self.ends_rest:
            sweep(self._reaped, self.sweep_s)
        os.set_blocking(self._report, True)
        with suppress(BrokenPipeError):
            write(self._report, self._unsent)
        self.finish()

    @abstractmethod
    def start(self, die_with_parent: Callable[[signal.Signals], None]) -> None:
        """Start the program, with the result of `adopt_orphans`.

        Raises `NotStartedError` or `OSError`.
        """

    @abstractmethod
    def read(self, descriptor: int) -> bool:
        """Read from an output; False at its end."""

    @abstractmethod
    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, which has not been reaped if it has no `status`."""

    @abstractmethod
    def news(self) -> Mapping[str, Any]:
        """Return the next report while the program runs; updates `has_news`."""

    @abstractmethod
    def finish(self) -> None:
        """Send the last reports."""

    def ends_at_s(self) -> float:
        """Return the time after which there is nothing to watch."""
        return self.ended_s if self.status is not None else float("inf")

    def how_it_ended(self) -> dict[str, Any]:
        """Facts of every last report."""
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        return {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "stopped": self.ladder.begun,
        }

    def send(self, report: Mapping[str, Any]) -> None:
        """Send a report, and wait until the supervisor has taken it."""
        with suppress(BrokenPipeError):  # nobody reads any more
            write(self._report, line(report))

    def reap(self) -> bool:
        """Reap ended processes. Returns whether any remain below."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                self._reaped(*ended)
        except ChildProcessError:
            return False
        return True

    def _reaped(self, pid: int, status: int) -> None:
        if pid == self.pid and self.status is None:
            self.status, self.ended_s = status, time.monotonic()

    def _watch(self, wake: int) -> bool:
        """Read its output until it has ended, and stop it when asked.

        Returns:
            True if it has not ended, and must be killed.
        """
        for descriptor in (self._hold, wake, *self.outputs):
            self._poll.register(descriptor, select.POLLIN)
        while True:
            now_s = time.monotonic()
            number = self.ladder.step(now_s)
            if number is signal.SIGKILL:
                return True
            if number is not None:
                self.send_signal(number)
            if now_s >= self.ends_at_s():
                return False
            self._tell(now_s)
            ready = {descriptor for descriptor, _ in self._poll.poll(self._patience_ms(now_s))}
            for descriptor in ready & self.outputs:
                if not self.read(descriptor):
                    self._poll.unregister(descriptor)
                    self.outputs.discard(descriptor)
            asked = self._hold in ready
            if asked:
                self._poll.unregister(self._hold)
            if wake in ready:
                asked |= bool(set(os.read(wake, CHUNK_BYTES)) - {signal.SIGCHLD})
                self.reap()
            if asked:
                if self.status is not None:
                    return False
                self.ladder.begin(now_s)

    def _patience_ms(self, now_s: float) -> float | None:
        """Milliseconds until there is something to do; None without a deadline."""
        due_s = min(self.ladder.due_s, self.ends_at_s())
        if not self._unsent and self.has_news:
            due_s = min(due_s, self._next_report_s)
        return None if due_s == float("inf") else max(0.0, due_s - now_s) * 1000

    def _tell(self, now_s: float) -> None:
        """Report news, if it is time, as far as the supervisor reads it."""
        if not self._unsent and now_s >= self._next_report_s and self.has_news:
            self._unsent = line(self.news())
            self._next_report_s = now_s + self.interval_s
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[os.write(self._report, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the supervisor is gone; the hold shows that, too
            self._unsent = b""
        if self._unsent:
            self._poll.register(self._report, select.POLLOUT)
        else:
            with suppress(KeyError):
                self._poll.unregister(self._report)


def line(report: Mapping[str, Any]) -> bytes:
    """Encode a report."""
    return json.dumps(report, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def write(descriptor: int, data: bytes) -> None:
    """Write all data, however long that takes."""
    while data:
        data = data[os.write(descriptor, data) :]
