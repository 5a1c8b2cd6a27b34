"""How code is stopped: interrupt, again and wider, kill; and how fork bombs that it leaves are."""

from __future__ import annotations

import signal
import time

from sandbox.processes import (
    read_children,
    read_process,
    read_processes,
    signal_child,
    signal_process,
    tree_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.interpreters.base import CurrentExecution, Interpreter
    from sandbox.polling import Poller
    from sandbox.processes import Process, ProcessTrees
    from sandbox.session import SharedSession


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


BOMB_SEARCH_INTERVAL_S = 0.001

BOMB_FIRST_WAIT_S = 0.003
"""How long a result waits for copies that compute: as a rule each becomes a program meanwhile."""

BOMB_MAX_VAIN_SEARCHES = 20
"""Searches that find no more copies of copies than before, after which a result does not wait for
them. They are counted, and not timed: a search takes longer where there are many processes, and
where the machine has much to do.
"""

BOMB_MAX_WAIT_S = 1.0
"""How long a result waits for copies that multiply."""

BOMB_WATCH_S = 60.0
"""How long copies are searched for after the result."""

BOMB_MAX_INTERVAL_S = 0.1
"""Longest time between two of these searches if there are copies of copies."""

BOMB_KILL_TIMEOUT_S = 2.0
"""How long the agent goes on to kill copies that multiply; milliseconds, as a rule."""


class Copies:
    """Copies of an interpreter that code has left behind.

    Attributes:
        all: those that run.
        of_copies: those of them that copies have made, or whose makers have ended.
        session: the number of processes of the whole session.
    """

    def __init__(self, every: list[Process], of_copies: list[Process], session: int) -> None:
        self.all, self.of_copies, self.session = every, of_copies, session


class ForkBombs:
    """Ends copies of interpreters that code leaves behind, once they are a fork bomb: their
    foreground ends at once, and no time limit ends them.

    `:(){ :|:& };:` is one in Bash. Its processes are copies of the interpreter that copies have
    made: they have not become another program, and the interpreter itself has not started them.
    Once these alone are more than half of the processes that the session may have, and all of its
    processes are nearly as many as it may have, the copies are killed and a note says so.

    That is a rule about what may be left behind, since nothing tells for sure what code is going to
    do. It ends no interpreter, and searches for nothing while the interpreter runs code: what
    belongs to that code could not be told from what was left behind.

    Programs in the background that multiply (`perl -e 'fork while 1' &`) are not ended: they could
    be a server whose workers have workers.
    """

    def __init__(self, session: SharedSession, trees: ProcessTrees) -> None:
        self._session = session
        self._trees = trees
        # Interpreters, by pid, of which copies of copies were there when code had ended.
        self._suspected: set[int] = set()

    def end(self, interpreter: Interpreter, *, may_wait: bool) -> bool:
        """End a fork bomb that code has left behind, and note it for the next result. Return True
        if there was one, of this code.

        If that may wait, it waits while copies multiply, unless earlier code has left them behind.
        """
        if not self._limit:
            return False
        earlier = interpreter.pid in self._suspected
        began = time.monotonic()
        most = vain = 0
        while True:
            copies = self._find_copies(interpreter)
            if self._end(interpreter, copies):
                return not earlier
            count = len(copies.of_copies)
            vain = 0 if count > most else vain + 1
            most = max(most, count)
            lasted_s = time.monotonic() - began
            fresh = lasted_s < BOMB_FIRST_WAIT_S and any(row.state == b"R" for row in copies.all)
            multiply = count > 1 and vain < BOMB_MAX_VAIN_SEARCHES
            if earlier or not may_wait or lasted_s > BOMB_MAX_WAIT_S or not (fresh or multiply):
                break
            time.sleep(BOMB_SEARCH_INTERVAL_S)
        if multiply and may_wait and not earlier:
            interpreter.add_note(
                f"{len(copies.all)} copies of {interpreter.name} are left in the background and "
                "multiply (a fork bomb?); a fresh interpreter (reset) ends them"
            )
        self._watch(interpreter, copies, time.monotonic() + BOMB_WATCH_S, BOMB_SEARCH_INTERVAL_S)
        return False

    @property
    def _limit(self) -> int:
        """Number of processes that the session may have; 0 if that is not limited."""
        return self._session.limits.resources.get("processes", 0)

    def _watch(
        self, interpreter: Interpreter, copies: Copies, until: float, after_s: float
    ) -> None:
        """Search for copies again while nothing runs, ever more seldom."""
        pid = interpreter.pid
        self._suspected.discard(pid)
        if len(copies.of_copies) > 1:
            self._suspected.add(pid)
            after_s = min(after_s, BOMB_MAX_INTERVAL_S)
        now = time.monotonic()

        def search() -> None:
            if interpreter.pid == pid and not interpreter.runs:
                copies = self._find_copies(interpreter)
                if not self._end(interpreter, copies):
                    self._watch(interpreter, copies, until, 2 * after_s)

        if copies.all and now < until:
            self._session.poller.at(f"copies of {interpreter.name}", now + after_s, search)

    def _find_copies(self, interpreter: Interpreter) -> Copies:
        trees, agent = self._trees, self._session.pid
        own = read_process(interpreter.pid)
        trees.find_helpers()
        apart = {*trees.helpers, *(each.pid for each in trees.owners())}
        first = (trees.children.pids() | read_children(interpreter.pid)) - apart
        if own is None or not own.stack or not any(_may_be_copy(pid, own) for pid in first):
            return Copies([], [], 0)
        table = read_processes()
        # Without forks of the session, which /proc shows, too.
        below = tree_of(table, agent, [agent])
        rows = [table[pid] for pid in below - apart - {agent}]
        copies = [row for row in rows if row.alive and row.stack == own.stack]
        of_copies = [row for row in copies if row.parent != interpreter.pid]
        return Copies(copies, of_copies, len(below))

    def _end(self, interpreter: Interpreter, copies: Copies) -> bool:
        """Kill copies that copies have made, and their makers, until there are no more; not if
        there are too few.

        None of the agent's children is reaped meanwhile, so that they leave no room for others.
        """
        limit = self._limit
        if 2 * len(copies.of_copies) <= limit or 10 * copies.session <= 9 * limit:
            return False
        killed: set[int] = set()
        deadline = time.monotonic() + BOMB_KILL_TIMEOUT_S
        while copies.of_copies and time.monotonic() < deadline:
            makers = {row.parent for row in copies.of_copies}
            for row in copies.all:
                if row in copies.of_copies or row.pid in makers:
                    signal_process(row, signal.SIGKILL)
                    killed.add(row.pid)
            copies = self._find_copies(interpreter)
        self._suspected.discard(interpreter.pid)
        interpreter.add_note(
            f"ended {len(killed)} copies of {interpreter.name} that code had left in the background"
            f" and that multiplied up to the session's limit of {limit} processes (a fork bomb)"
        )
        return True


def _may_be_copy(pid: int, own: Process) -> bool:
    """Return whether a process has not become another program, or has ended just now."""
    row = read_process(pid)
    return row is None or not row.alive or row.stack == own.stack
