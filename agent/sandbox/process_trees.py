"""Process trees of interpreters: which process belongs to which, and how a tree is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from sandbox.linux import identity_of
from sandbox.processes import has_children, read_children, read_processes, send_signal, tree_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandbox.agent import Agent
    from sandbox.interpreters.base import Interpreter
    from sandbox.job import JobProcess
    from sandbox.processes import Process


KILL_ROUNDS = 64
FREEZE_ROUND = 3
"""A tree that still grows in this round of killing is a fork bomb: everything is stopped first."""

END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""


class ProcessTrees:
    """Knows whose each process of the session is.

    Attributes:
        orphans: processes whose parent has ended, and the interpreters and jobs that they are of.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.orphans: dict[int, Interpreter | JobProcess] = {}

    def count_background(self) -> int:
        """The number of processes in the session besides the agent's and its interpreters'."""
        table = read_processes()
        ours = {
            self._agent.pid,
            *self._agent.helpers,
            *(i.pid for i in self._agent.interpreters.values()),
        }
        inside = (
            set(table)
            if self._agent.pid == 1
            else tree_of(table, self._agent.pid, [self._agent.pid])
        )
        return sum(1 for pid in inside - ours if table[pid].alive)

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
        for pid in (
            read_children(self._agent.pid) - leaders - self._agent.helpers - set(self.orphans)
        ):
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

    def kill(self, owner: Interpreter | JobProcess) -> set[int]:
        """Kill everything that came from an interpreter or a job, daemons in their own sessions
        included.

        Processes of others live on. Where there are none, one system call reaches
        all without a race; else rounds of looking and killing, which a fork bomb may outrun:
        then everything is stopped for the time it takes to sort out who is to go.

        Returns:
            Process ids of all that was killed; some may not have ended yet.
        """
        others = [each for each in self.owners() if each is not owner]
        checkpoints = self._agent.checkpoints
        spares = checkpoints is not None and checkpoints.pids
        if self._agent.pid == 1 and not others and not spares:
            if not has_children():
                return set()  # to signal them, the kernel looks at each process of the machine
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
            # A process that is being killed starts no other one, so these are all.
            return set(read_processes()) - {self._agent.pid}
        if owner.is_job:
            self.note_others_orphans(owner)
        else:
            self.note_orphans(owner)
        killed: set[int] = set()
        for attempt in range(KILL_ROUNDS):
            freeze = self._agent.pid == 1 and attempt == FREEZE_ROUND
            before = read_processes() if freeze else {}
            if freeze:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(-1, signal.SIGSTOP)
            table = read_processes()
            victims = self._belongings(table, owner, others)
            fresh = {pid for pid in victims - killed if table[pid].alive}
            for pid in fresh:
                send_signal(pid, signal.SIGKILL)
            killed |= fresh
            if freeze:
                for pid in set(table) - victims - {self._agent.pid}:
                    if pid not in before or before[pid].state != b"T":
                        send_signal(pid, signal.SIGCONT)
            if not fresh:
                break
        return killed

    def kill_left(self, job: JobProcess) -> None:
        """Kill what a job that has ended left behind."""
        if any(each is job for each in self.orphans.values()):
            self.kill(job)

    def await_end(self, killed: Iterable[int]) -> None:
        """Wait until processes that were killed are gone, for `END_S` at most.

        Until they are reaped they count against the session's limit of processes, so that after a
        fork bomb no new interpreter could be started.

        Args:
            killed: from `kill`.
        """
        left = set(killed)
        deadline = time.monotonic() + END_S
        ended = select.poll()
        ended.register(self._agent.wakeup_fd, select.POLLIN)
        while left and (left_s := deadline - time.monotonic()) > 0:
            self._agent.reap()
            left = {pid for pid in left if os.path.exists(f"/proc/{pid}")}
            if left:
                ended.poll(left_s * 1000)

    def _belongings(
        self,
        table: Mapping[int, Process],
        owner: Interpreter | JobProcess,
        others: Sequence[Interpreter | JobProcess],
    ) -> set[int]:
        """Pids of an interpreter or a job and all that it started, as far as can be told."""
        spared: set[int] = {self._agent.pid, *self._agent.helpers}
        for other in others:
            adopted = [pid for pid, known in self.orphans.items() if known is other]
            spared |= tree_of(table, other.leader, adopted)
        adopted = [
            pid
            for pid, row in table.items()
            if row.parent == self._agent.pid
            # An orphan that has not been noted was made by the killing.
            and self.orphans.get(pid, owner) is owner
        ]
        return tree_of(table, owner.leader, adopted) - spared
