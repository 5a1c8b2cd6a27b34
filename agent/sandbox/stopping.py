"""The ladder that stops code: interrupt, interrupt again and wider, kill."""

from __future__ import annotations

import signal
import time

from sandbox.processes import read_processes, send_signal, tree_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandbox.agent import Agent
    from sandbox.execution import Execution
    from sandbox.interpreters.base import Interpreter


EARLY_S = 0.05

REPEAT_S = 0.1
"""An interrupt this soon after the start may come before the code does, and is repeated."""


class Stopper:
    """Stops the running execution, at its time limit or on request."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def on_timeout(self) -> None:
        execution = self._agent.running
        if execution is not None and not execution.stopping:
            execution.timed_out = True
            self.interrupt(execution)

    def interrupt(self, execution: Execution) -> None:
        now = time.monotonic()
        self._agent.poller.at("stop", now + execution.grace_s, self._on_grace_over)
        self._agent.poller.at("repeat", now + execution.grace_s / 2, self._repeat)
        if execution.interpreter.may_miss_interrupt and now - execution.started < EARLY_S:
            self._agent.poller.at(
                "early", now + REPEAT_S, lambda: self._signal(execution, wide=False)
            )
        self._signal(execution, wide=False)

    def _repeat(self) -> None:
        if self._agent.running is not None:
            self._signal(self._agent.running, wide=True)

    def _signal(self, execution: Execution, *, wide: bool) -> None:
        """Interrupts the interpreter and its foreground: what Ctrl-C reaches, but not processes
        of earlier executions.

        Args:
            wide: processes in groups of their own too, such as a shell's jobs under `set -m`.
        """
        interpreter = execution.interpreter
        leader = interpreter.pid
        interpreter.hold()
        table = read_processes()
        below = [table[pid] for pid in tree_of(table, leader, ()) - {leader}]
        new = [row for row in below if row.alive and execution.has_started(row)]
        foreground = [row.pid for row in new if row.group == leader]
        interpreter.send_interrupt(execution.number)
        # The interpreter first: a shell whose child is gone before would go on with the next.
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGINT)
        # The rest all at once, as a terminal does it: else the last of a pipeline sees its input
        # end before it sees the signal, and its normal exit has the shell go on.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            for pid in foreground:
                send_signal(pid, number)
        if wide:
            for pid in {row.pid for row in new} - set(foreground):
                send_signal(pid, signal.SIGINT)
        interpreter.release(execution.number)
        # Held, or stopped by its own code: a stopped process handles no other signal. (Node that
        # stops itself has torn itself down before, believing that it would end.)
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGCONT)

    def signal_latecomers(self, execution: Execution) -> None:
        """Interrupts what the shell was about to start when it was interrupted itself.

        A child that is forked after the look at the processes and before the signal reaches the
        shell would live on in the background. A job that was meant to ignores the signal.
        """
        leader = execution.interpreter.pid
        execution.interpreter.await_forks()
        table = read_processes()
        for pid in tree_of(table, leader, ()) - {leader}:
            row = table[pid]
            if row.alive and row.group == leader and execution.has_started(row):
                send_signal(pid, signal.SIGINT)

    def _on_grace_over(self) -> None:
        execution = self._agent.running
        if execution is not None:
            self._agent.executions.end_interpreter(
                execution.interpreter,
                f"did not stop within {execution.grace_s:g} s of an interrupt and was killed",
            )

    def on_interruptible(self, interpreter: Interpreter) -> None:
        """The interpreter takes signals from now on: here is the one that came too early."""
        execution = self._agent.running
        if execution is not None and execution.interpreter is interpreter and execution.stopping:
            self._signal(execution, wide=False)

    def cancel_timers(self) -> None:
        for timer in ("stop", "repeat", "early"):
            self._agent.poller.cancel(timer)
