"""Fork bombs that code leaves behind: their foreground ends at once, and no time limit ends them.

`:(){ :|:& };:` is one in Bash. Its processes are copies of the interpreter that copies have made.
Programs in the background are not: they have become something else, or the interpreter itself has
started them.

A program in the background that multiplies is not ended: it cannot be told surely from a server
whose workers have workers.
"""

from __future__ import annotations

import time

from sandbox.processes import NewestPid, read_children, read_command, read_processes, tree_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.agent import Agent
    from sandbox.interpreters.base import Interpreter
    from sandbox.processes import Process


BOMB_LOOK_S = 0.01
"""Time between two looks at copies while the result waits. Afterwards it doubles with each look."""

BOMB_HOLD_S = 10.0
"""How long the result of code waits for copies that may still multiply: that have not had their
turn yet, that compute and have multiplied within `BOMB_QUIET_S`, or that are many once as many
processes have been started as the session may have."""

TURN_TICKS = 5
"""Time on a processor, in clock ticks, after which a copy that multiplies has made another one."""

BOMB_QUIET_S = 0.5
"""Time without a new process after which copies that compute are expected to make none."""

BOMB_WATCH_S = 60.0
"""How long copies are looked at that code has left behind."""

BOMB_SHARE = 1 / 3
BOMB_FULL = 0.9
"""Shares of the limit of processes: that of copies of copies, and that of all processes that there
are or have been, at which they are a fork bomb. Near the limit some give up."""

MANY_COPIES = 8
"""Copies of copies above which the result waits, once as many processes were started as the session
may have."""


class ForkBombs:
    """Watch over what code has left behind; what multiplies up to the limit is ended."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._newest = NewestPid()
        self._finish: Callable[[], None] | None = None
        self._first_pid = self._started = 0
        self._grew = 0.0

    def open(self) -> None:
        """Begin, in the process that is to look."""
        self._newest.open()

    def look(self, interpreter: Interpreter, first_pid: int, finish: Callable[[], None]) -> None:
        """Look at what code has left behind that has just ended.

        Args:
            first_pid: process id that was given last when the code began.
            finish: called when its result may be told, at once as a rule; not if the interpreter
                has been ended.
        """
        if self._finish is not None:  # it says so once more
            return
        children = self._agent.trees.children.pids() - self._agent.helpers
        if not (read_children(interpreter.pid) or children - {interpreter.pid}):
            finish()
            return
        self._finish, self._first_pid = finish, first_pid
        self._started = 0
        self._look(interpreter, interpreter.pid, time.monotonic(), BOMB_LOOK_S)

    def release(self) -> bool:
        """Tell the result that waits, if one does; return whether that is so."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return finish is not None

    def drop(self) -> None:
        """Hold no result any more: it is told now."""
        self._finish = None

    def _look(self, interpreter: Interpreter, pid: int, began: float, next_s: float) -> None:
        limit = self._agent.limits.resources.get("processes", 0)
        if not limit or interpreter.pid != pid:
            self.release()
            return
        table = read_processes()
        copies = self._copies(table, interpreter)
        of_copies = sum(row.parent != pid for row in copies)
        started = self._newest.pid() - self._first_pid
        if of_copies > BOMB_SHARE * limit and max(started, len(table)) > BOMB_FULL * limit:
            self._agent.executions.end_interpreter(
                interpreter,
                f"was ended with {len(copies)} copies of itself that code had left behind, which "
                f"multiplied up to the session's limit of {limit} processes (a fork bomb)",
            )
            return
        now = time.monotonic()
        if of_copies and started > self._started:
            self._started, self._grew = started, now
        runs = [row for row in copies if row.state in (b"R", b"D")]
        lasted_s = now - began
        waits = (
            (copies and lasted_s < BOMB_LOOK_S)  # one look may find all of them between two steps
            or any(row.ticks < TURN_TICKS for row in runs)
            or (of_copies and runs and now - self._grew < BOMB_QUIET_S)
            or (of_copies > MANY_COPIES and started > BOMB_FULL * limit)
        )
        if not waits or lasted_s > BOMB_HOLD_S:
            self.release()
        later_s = 2 * next_s if self._finish is None else BOMB_LOOK_S
        if copies and lasted_s < BOMB_WATCH_S:
            self._agent.poller.at(
                "fork bomb",
                now + next_s,
                lambda: self._look(interpreter, pid, began, later_s),
            )

    def _copies(self, table: dict[int, Process], interpreter: Interpreter) -> list[Process]:
        """Processes of the session that an interpreter has become by forks alone."""
        agent = self._agent
        command = read_command(interpreter.pid)
        below = tree_of(table, agent.pid, [agent.pid])
        others = below - {agent.pid, interpreter.pid, *agent.helpers}
        return [table[pid] for pid in others if table[pid].alive and read_command(pid) == command]
