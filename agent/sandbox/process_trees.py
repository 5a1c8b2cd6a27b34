"""Process trees of interpreters: which process belongs to which, and how a tree is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from sandbox.framing import READ_BYTES
from sandbox.linux import PR_SET_CHILD_SUBREAPER, identity_of, prctl, set_handler
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
    import resource
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Protocol

    from sandbox.session import SharedSession

    class Pipe(Protocol):
        """Output of processes, as the agent reads it."""

        @property
        def identity(self) -> tuple[int, int]: ...

    class Owner(Protocol):
        """Owner of processes: an interpreter or a job.

        Its `pid` is 0 when it is not running; `leader` leads the session of its processes.
        """

        @property
        def is_job(self) -> bool: ...
        @property
        def pid(self) -> int: ...
        @property
        def leader(self) -> int: ...
        @property
        def pipes(self) -> Mapping[str, Pipe]: ...

    ExitHandler = Callable[[int, int, resource.struct_rusage], None]


END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""


class ProcessTrees:
    """Knows whose each process of the session is, and reaps those that are the agent's children.

    Attributes:
        interpreters: those of the session, whether they run or not.
        jobs: jobs that run.
        had_jobs: there has been a job.
        orphans: processes whose parent has ended, and the interpreters and jobs that they are of.
        children: children of the agent.
        helpers: children that are nobody's, since code has not started them, until they are reaped.
        find_helpers: called before it is looked whose a process is, to add to `helpers`.
        exit_handlers: called with the pid, status and usage of each child that has ended.
        wakeup_fd: can be read when a child has ended or stopped.
    """

    wakeup_fd: int

    def __init__(self, session: SharedSession) -> None:
        self._session = session
        self.interpreters: list[Owner] = []
        self.jobs: list[Owner] = []
        self.had_jobs = False
        self.orphans: dict[int, Owner] = {}
        self.children = Children()
        self.helpers: set[int] = set()
        self.find_helpers: Callable[[], None] = no_helpers
        self.exit_handlers: list[ExitHandler] = []

    def open(self) -> None:
        """Begin, in the process that is to serve."""
        self.children.open()
        if self._session.pid != 1:  # to which orphans come by themselves
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wakeup_fd, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        set_handler(signal.SIGCHLD, wake_up)
        self._session.poller.watch(self.wakeup_fd, lambda _: self.reap())

    def reap(self) -> None:
        """Take the ends of children."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup_fd, READ_BYTES)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                # Code has made this process its tracer (PTRACE_TRACEME), and would wait for it.
                signal_child(pid, signal.SIGKILL)
                continue
            self.orphans.pop(pid, None)
            self.helpers.discard(pid)
            for handle in self.exit_handlers:
                handle(pid, status, usage)

    def live_interpreters(self) -> list[Owner]:
        return [each for each in self.interpreters if each.pid]

    def is_alone(self, interpreter: Owner) -> bool:
        """Return whether all processes are of this interpreter: no other one runs, and no job has
        run."""
        return self.live_interpreters() == [interpreter] and not self.had_jobs

    def note_before_another(self) -> None:
        """Note whose the orphans are, before a second interpreter or the first job starts: until
        then all are those of the one that runs, and nobody has to look."""
        if len(others := self.live_interpreters()) == 1:
            self.note_orphans(others[0])

    def background(self) -> set[int]:
        """The processes in the session besides the agent's and its interpreters'."""
        self.find_helpers()
        table = read_processes()
        ours = {self._session.pid, *self.helpers, *(each.pid for each in self.interpreters)}
        # Not all that /proc shows: it shows forks of this session, too, and hides what has made
        # itself unreadable (prctl(2), PR_SET_DUMPABLE).
        inside = tree_of(table, self._session.pid, [self._session.pid])
        hidden = self.children.pids() - inside
        return (hidden | {pid for pid in inside if table[pid].alive}) - ours

    def owners(self) -> list[Owner]:
        """All whose processes are to be told apart: interpreters and jobs that run, and jobs that
        have left processes behind."""
        left = {each for each in self.orphans.values() if each.is_job and not each.pid}
        return [*self.live_interpreters(), *self.jobs, *left]

    def note_orphans(self, owner: Owner) -> None:
        """Remember whose the orphans are that have not been seen yet; later nothing tells.

        Args:
            owner: the one that was running, or whose end has made them orphans.
        """
        self.find_helpers()
        leaders = {each.pid for each in self.owners()}
        for pid in self.children.pids() - leaders - self.helpers - set(self.orphans):
            self.orphans[pid] = self._recognise(pid) or owner

    def note_others_orphans(self, job: Owner) -> None:
        """Remember whose the orphans are that nobody has seen yet: the job's if they are
        recognised, since nothing else tells them from those of an interpreter.
        """
        self.note_orphans(next((each for each in self.owners() if each is not job), job))

    def _recognise(self, pid: int) -> Owner | None:
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

    def kill(self, owner: Owner) -> None:
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

    def kill_left(self, job: Owner) -> None:
        """Kill what a job that has ended left behind."""
        if any(each is job for each in self.orphans.values()):
            self.kill(job)

    def _belongings(self, owner: Owner, known: AbstractSet[int]) -> set[int]:
        """Children of the agent that are an owner's, without those that are known."""
        self.find_helpers()
        others = {each.pid for each in self.owners() if each is not owner}
        return {
            pid
            for pid in self.children.pids() - known - others - self.helpers
            # An orphan that has not been noted was made by the killing.
            if (self.orphans.get(pid) or self._recognise(pid) or owner) is owner
        }


def no_helpers() -> None:
    """Add no helpers."""


def wake_up(_number: int, _frame: object) -> None:
    """Handle SIGCHLD: the write to the wake-up descriptor is all that it takes."""
