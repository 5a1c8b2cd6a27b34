"""Fork bombs that code leaves behind: their foreground ends at once, and no time limit ends them.

`:(){ :|:& };:` is one in Bash. Its processes are copies of the interpreter that copies have made:
they have not become another program, and the interpreter itself has not started them. Once these
alone are more than half of the processes that the session may have, and all of its processes are
nearly as many as it may have, the copies are killed and a note says so.

That is a rule about what may be left behind, since nothing tells for sure what code is going to do.
It ends no interpreter, and searches for nothing while the interpreter runs code: what belongs to
that code could not be told from what was left behind.

Programs in the background that multiply (`perl -e 'fork while 1' &`) are not ended: they could be a
server whose workers have workers.
"""

from __future__ import annotations

import signal
import time

from sandbox.processes import read_children, read_process, read_processes, signal_process, tree_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandbox.interpreters.base import Interpreter
    from sandbox.processes import Process, ProcessTrees
    from sandbox.session import SharedSession


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
    """Ends the copies of interpreters that code leaves behind, once they are a fork bomb."""

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
