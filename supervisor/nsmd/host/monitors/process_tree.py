"""Processes below this one, and ways to end them; standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from nsmd.host.processes import ProcessStat, processes, send

SWEEP_S = 2.0
"""Time for killed processes to be gone. Only one in an uninterruptible sleep needs longer."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Prctl(Protocol):
    def __call__(self, option: int, argument: int, /) -> int: ...


class Ladder:
    """Signals that ask for an end, and the time of each.

    Args:
        signals: signals, one after the other.
        step_s: seconds between two of them.

    Attributes:
        due_s: time of the next one, on the monotonic clock; infinite before `begin` and after the
            last.
        begun: somebody asked for the end.
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
    """Kill all processes below this one. When their parents are gone, they are its children.

    Args:
        reaped: gets the process id and the wait status of each reaped process.
        limit_s: seconds after which processes that have not ended are left.
    """
    deadline_s = time.monotonic() + limit_s
    # Blocked, so that a child that ends between looking and waiting is not missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while _reap(reaped) and time.monotonic() < deadline_s:
        for process in _stopped(deadline_s):
            with suppress(ProcessLookupError, PermissionError):
                send(process, signal.SIGKILL)
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
                send(process, signal.SIGSTOP)


def signal_tree(
    numbers: Sequence[signal.Signals], *, but: Collection[int] = (), until_s: float = float("inf")
) -> None:
    """Send signals to all processes below this one that it may signal.

    Args:
        but: process groups that already got it.
        until_s: time on the monotonic clock after which no more are signalled. Thousands of busy
            processes leave this one little time, and the next signal has to be sent, too.
    """
    for process in descendants(os.getpid()):
        if time.monotonic() >= until_s:
            return
        with suppress(ProcessLookupError, PermissionError):
            if but and os.getpgid(process.pid) in but:
                continue
            send(process, *numbers)


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
