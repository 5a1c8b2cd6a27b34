"""Process trees of interpreters: which process belongs to which, and how a tree is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from sandbox.linux import identity_of
from sandbox.processes import (
    Children,
    await_end,
    read_processes,
    signal_child,
    signal_group,
    tree_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sandbox.agent import Agent
    from sandbox.interpreters.base import Interpreter
    from sandbox.job import JobProcess


END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""


class ProcessTrees:
    """Knows whose each process of the session is.

    Attributes:
        orphans: processes whose parent has ended, and the interpreters and jobs that they are of.
        children: children of the agent.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.orphans: dict[int, Interpreter | JobProcess] = {}
        self.children = Children()

    def background(self) -> set[int]:
        """The processes in the session besides the agent's and its interpreters'."""
        table = read_processes()
        ours = {
            self._agent.pid,
            *self._agent.helpers,
            *(i.pid for i in self._agent.interpreters.values()),
        }
        # Not all that /proc shows: it shows forks of this session, too, and hides what has made
        # itself unreadable (prctl(2), PR_SET_DUMPABLE).
        inside = tree_of(table, self._agent.pid, [self._agent.pid])
        hidden = self.children.pids() - inside
        return (hidden | {pid for pid in inside if table[pid].alive}) - ours

    def owners(self) -> list[Interpreter | JobProcess]:
        """All whose processes are to be told apart: interpreters and jobs that run, and jobs that
        have left processes behind."""
        live: list[Interpreter | JobProcess] = [*self._agent.live_interpreters()]
        live += self._agent.live_jobs()
        left = {each for each in self.orphans.values() if each.is_job and not each.pid}
        return [*live, *left]

    def note_orphans(self, owner: Interpreter | JobProcess) -> None:
        """Remember whose the orphans are that have not been seen yet; later nothing tells.

        Args:
            owner: the one that was running, or whose end has made them orphans.
        """
        leaders = {each.pid for each in self.owners()}
        for pid in self.children.pids() - leaders - self._agent.helpers - set(self.orphans):
            self.orphans[pid] = self._recognise(pid) or owner

    def note_others_orphans(self, job: Interpreter | JobProcess) -> None:
        """Remember whose the orphans are that nobody has seen yet: the job's if they are
        recognised, since nothing else tells them from those of an interpreter.
        """
        self.note_orphans(next((each for each in self.owners() if each is not job), job))

    def _recognise(self, pid: int) -> Interpreter | JobProcess | None:
        """The interpreter or job in whose session an orphan is, or whose pipes it has."""
        owners = self.owners()
        with contextlib.suppress(OSError):
            session = os.getsid(pid)
            for each in owners:
                if each.leader == session:
                    return each
        pipes = {pipe.identity: each for each in owners for pipe in each.pipes.values()}
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                owner = pipes.get(identity_of(os.stat(f"/proc/{pid}/fd/{fd}")))
                if owner is not None:
                    return owner
        return None

    def kill(self, owner: Interpreter | JobProcess) -> None:
        """Kill everything that came from an interpreter or a job, daemons in their own sessions
        included, and wait until it has ended, for `END_S` at most. Processes of others live on.

        A process whose parent has ended becomes a child of the agent. So the agent kills those of
        its children that are the owner's, until no other one comes, whatever /proc hides. A process
        that is being killed starts none. Their numbers stay their own, since the agent reaps none
        meanwhile, and so a fork bomb has no more room for processes than its limit leaves.

        Forks of the session are in PID namespaces below the agent's, but never its children.
        `kill(-1)` would reach them.
        """
        if owner.is_job:
            self.note_others_orphans(owner)
        else:
            self.note_orphans(owner)
        if owner.pid:
            signal_group(owner.pid, signal.SIGKILL)  # most of a fork bomb, at once
        killed: set[int] = set()
        deadline = time.monotonic() + END_S
        while fresh := self._belongings(owner, killed):
            for pid in fresh:
                signal_child(pid, signal.SIGKILL)
            for pid in fresh:
                await_end(pid, deadline)
            killed |= fresh

    def kill_left(self, job: JobProcess) -> None:
        """Kill what a job that has ended left behind."""
        if any(each is job for each in self.orphans.values()):
            self.kill(job)

    def _belongings(self, owner: Interpreter | JobProcess, known: AbstractSet[int]) -> set[int]:
        """Children of the agent that are an owner's, without those that are known."""
        others = {each.pid for each in self.owners() if each is not owner}
        return {
            pid
            for pid in self.children.pids() - known - others - self._agent.helpers
            # An orphan that has not been noted was made by the killing.
            if (self.orphans.get(pid) or self._recognise(pid) or owner) is owner
        }
