"""The ladder that stops code: interrupt, interrupt again and wider, kill."""

from __future__ import annotations

import signal
import time

from sandbox.processes import read_process, read_processes, signal_child, signal_process, tree_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.interpreters.base import CurrentExecution, Interpreter
    from sandbox.polling import Poller


EARLY_S = 0.05

REPEAT_S = 0.1
"""An interrupt this soon after the start may come before the code does, and is repeated."""

JOB_S = 0.1
"""How long a shell may take to stop before the job is interrupted that it seems to wait for."""

AGAIN_S = 0.1
"""Time until an interrupt is sent again to an interpreter that may have missed it; twice as long
before each further one."""


class Stopper:
    """Stops the running execution, at its time limit or on request."""

    def __init__(self, poller: Poller, end_input: Callable[[], None]) -> None:
        self._poller = poller
        self._end_input = end_input

    def limit(self, execution: CurrentExecution, timeout_s: float) -> None:
        """Have it stopped so long after its start."""

        def on_timeout() -> None:
            if not execution.stopping:
                execution.timed_out = True
                self.interrupt(execution)

        self._poller.at("stop", execution.started + timeout_s, on_timeout)

    def interrupt(self, execution: CurrentExecution) -> None:
        now = time.monotonic()
        killed = f"did not stop within {execution.grace_s:g} s of an interrupt and was killed"
        end = execution.interpreter.end
        self._poller.at("stop", now + execution.grace_s, lambda: end(killed))
        self._poller.at("repeat", now + execution.grace_s / 2, lambda: self._repeat(execution))
        if execution.interpreter.may_miss_interrupt and now - execution.started < EARLY_S:
            self._poller.at("early", now + REPEAT_S, lambda: self._signal(execution, wide=False))
        if execution.interpreter.has_jobs:
            self._poller.at("job", now + JOB_S, lambda: self.signal_job(execution))
        self._signal(execution, wide=False)
        self._send_again(execution, AGAIN_S)

    def _send_again(self, execution: CurrentExecution, after_s: float) -> None:
        """Have the interpreter interrupted again, and again, while the code has not ended."""

        def send() -> None:
            execution.interpreter.interrupt_again()
            self._send_again(execution, 2 * after_s)

        self._poller.at("again", time.monotonic() + after_s, send)

    def _repeat(self, execution: CurrentExecution) -> None:
        # Node is not woken by a signal where it waits for input, but by the end of that.
        self._end_input()
        self._signal(execution, wide=True)

    def _signal(self, execution: CurrentExecution, *, wide: bool) -> None:
        """Interrupt the interpreter and its foreground: what Ctrl-C reaches, but not processes of
        earlier executions. `wide`: processes in groups of their own too, such as a shell's jobs
        under `set -m`."""
        interpreter = execution.interpreter
        leader = interpreter.pid
        interpreter.hold()
        table = read_processes()
        below = [table[pid] for pid in tree_of(table, leader, ()) - {leader}]
        new = [row for row in below if row.alive and execution.has_started(row)]
        foreground = [row for row in new if row.group == leader]
        interpreter.send_interrupt(execution.number)
        # The interpreter first: a shell whose child is gone before would go on with the next.
        if interpreter.takes_signals:
            signal_child(leader, signal.SIGINT)
        # The rest all at once, as a terminal does it: else the last of a pipeline sees its input
        # end before it sees the signal, and its normal exit has the shell go on.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            for row in foreground:
                signal_process(row, number)
        if wide:
            for row in below if interpreter.resumes_jobs else new:
                if row.alive and row not in foreground:
                    signal_process(row, signal.SIGINT)
        interpreter.release(execution.number)
        # Held, or stopped by its own code: a stopped process handles no other signal. (Node that
        # stops itself has torn itself down before, believing that it would end.)
        if interpreter.takes_signals:
            signal_child(leader, signal.SIGCONT)

    def signal_job(self, execution: CurrentExecution, *, rested: bool = False) -> None:
        """Interrupt the job that a shell waits for, if that has a process group of its own.

        A shell that does not sleep has not come to its interrupt yet, as the machine is busy. One
        that sleeps may have stopped just now, so its messages are read before it is looked at
        again.

        Without a terminal nothing tells which one that is. But a shell that waits starts nothing,
        so it is the one that it has started last, unless code has resumed another one: then it
        takes the second interrupt, which all jobs get. Jobs in the background are left alone, since
        a shell that does not wait for a job has stopped by now.

        Args:
            rested: it slept already at the look before this one.
        """
        leader = execution.interpreter.pid
        shell = read_process(leader)
        rests = shell is not None and shell.state == b"S"
        if not (rests and rested):
            self._poller.at(
                "job",
                time.monotonic() + (0 if rests else JOB_S),
                lambda: self.signal_job(execution, rested=rests),
            )
            return
        resumes = execution.interpreter.resumes_jobs
        table = read_processes()
        children = [row for row in table.values() if row.parent == leader and row.alive]
        if resumes and len({row.group for row in children}) > 1:
            return
        last = max(children, key=lambda row: (row.started, row.pid), default=None)
        if last and last.group != leader and (resumes or execution.has_started(last)):
            # The last first: else the last of a pipeline sees its input end before it sees the
            # signal. No SIGSTOP, since the shell would see that its job has stopped.
            job = [row for row in table.values() if row.group == last.group]
            for row in sorted(job, key=lambda row: (row.started, row.pid), reverse=True):
                signal_process(row, signal.SIGINT)

    def signal_latecomers(self, execution: CurrentExecution) -> None:
        """Interrupt what the shell was about to start when it was interrupted itself.

        A child that is forked after the look at the processes and before the signal reaches the
        shell would live on in the background. A job that was meant to ignores the signal.
        """
        leader = execution.interpreter.pid
        execution.interpreter.await_forks()
        table = read_processes()
        for pid in tree_of(table, leader, ()) - {leader}:
            row = table[pid]
            if row.alive and row.group == leader and execution.has_started(row):
                signal_process(row, signal.SIGINT)

    def on_interruptible(self, interpreter: Interpreter) -> None:
        """The interpreter takes signals from now on: here is the one that came too early."""
        execution = interpreter.execution
        if execution is not None and execution.stopping:
            self._signal(execution, wide=False)

    def cancel_timers(self) -> None:
        self._poller.cancel("stop", "repeat", "early", "job", "again")
