"""Processes as /proc shows them, signals to them, and whose each one is."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from sandbox.framing import READ_BYTES
from sandbox.linux import (
    PR_SET_CHILD_SUBREAPER,
    identity_of,
    open_pidfd,
    prctl,
    set_handler,
    signal_pidfd,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Iterable, Mapping
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


ENDING_LOOKS = 50
"""At a child that has closed its socket, one a millisecond, until it is believed to live on."""

EXEC_LOOKS = 20
EXEC_LOOK_S = 0.001
"""Number of looks at a fork that may execute another program, and the time between them."""


class Process:
    """One row of /proc; `started` in clock ticks since boot.

    Attributes:
        faults: page faults so far that took nothing from a disk.
        stack: where its stack begins, which a fork keeps and another program does not; 0 if it has
            ended or hides it.
    """

    __slots__ = ("faults", "group", "parent", "pid", "session", "stack", "started", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything; what follows the last one is numbers.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent, self.group, self.session = (int(fields[1]), int(fields[2]), int(fields[3]))
        self.faults = int(fields[7])
        self.started = int(fields[19])
        self.stack = int(fields[25])

    @property
    def alive(self) -> bool:
        return self.state not in {b"Z", b"X", b"x"}


def read_processes() -> dict[int, Process]:
    """Every process that /proc shows, by pid; empty where there is no /proc."""
    table: dict[int, Process] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                row = read_process(int(entry))
                if row is not None:
                    table[row.pid] = row
    return table


class NewestPid:
    """Tells the pid that was given last in our PID namespace; 0 where /proc does not say."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        """Begin, in the process that is to ask."""
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def pid(self) -> int:
        try:
            return int(os.pread(self._fd, 128, 0).split()[4])
        except (OSError, ValueError, IndexError):
            return 0


def read_process(pid: int) -> Process | None:
    """One row of /proc; None when the process is gone."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Process(pid, os.read(fd, 4096))
        finally:
            os.close(fd)
    return None


def command_of(pid: int) -> bytes:
    """Return the beginning of a process's command line; empty if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(4096)
    return b""


def is_helper(command: bytes) -> bool:
    """Return whether a command line is that of a process that Python's multiprocessing runs for
    itself. It ends with the program."""
    return b"resource_tracker" in command or b"multiprocessing.forkserver" in command


def tree_of(table: Mapping[int, Process], leader: int, adopted: Iterable[int]) -> set[int]:
    """Pids of a session leader, of its session, of `adopted`, and of everyone below them."""
    members = {pid for pid, row in table.items() if row.session == leader or pid == leader}
    members.update(pid for pid in adopted if pid in table)
    grown = True
    while grown:
        below = {pid for pid, row in table.items() if row.parent in members} - members
        members |= below
        grown = bool(below)
    return members


class Children:
    """Children of this process, which has one thread: all of them, also those that /proc hides, and
    also if no descriptor is left.
    """

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        """Begin, in the process that is to ask."""
        with contextlib.suppress(OSError):
            pid = os.getpid()
            self._fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)

    def pids(self) -> set[int]:
        if self._fd < 0:  # the kernel does not tell them (CONFIG_PROC_CHILDREN)
            own = os.getpid()
            return {row.pid for row in read_processes().values() if row.parent == own}
        text = b""
        with contextlib.suppress(OSError):
            while data := os.pread(self._fd, READ_BYTES, len(text)):
                text += data
        return {int(pid) for pid in text.split()}


def read_children(pid: int) -> set[int]:
    """Children of a process that has one thread; one read, no scan of /proc."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return {int(pid) for pid in file.read(READ_BYTES).split()}
    except OSError:
        return set()


def has_children_of(pid: int) -> bool:
    """Return whether a process has children, or cannot be looked at."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            fd = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.read(fd, 1):
                    return True
            finally:
                os.close(fd)
    except OSError:
        return True
    return False


def signal_child(pid: int, number: int) -> None:
    """Signal a child of this process; nobody, if it has been reaped or never was one.

    The number of a child is its own until it is reaped.
    """
    if _is_child(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(leader: int, number: int) -> None:
    """Signal the process group that a child of this process leads; nobody, if that is none."""
    if _is_child(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _is_child(pid: int) -> bool:
    assert pid > 1, "for kill(2), 0 and -1 are groups of processes, and 1 is the agent"
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_process(row: Process, number: int) -> None:
    """Signal a process that may be gone, and whose number may be another one's by now."""
    try:
        pidfd = open_pidfd(row.pid)
    except OSError:  # it is gone, or no descriptor is left
        return
    try:
        # What has the number now had it before, or the descriptor is of one that is gone.
        now = read_process(row.pid)
        if now is not None and now.started == row.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal_pidfd(pidfd, number)
    finally:
        os.close(pidfd)


def await_end(pid: int, deadline: float) -> None:
    """Wait until a child has ended, or a time on the monotonic clock; it is left to be reaped."""
    try:
        pidfd = open_pidfd(pid)
    except OSError:  # no descriptor is left
        is_ending(pid)
        return
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
    os.close(pidfd)


def is_ending(pid: int) -> bool:
    """Return whether a child has ended, or does so within some milliseconds; it is left to be
    reaped."""
    for _ in range(ENDING_LOOKS):
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def caught_signals(pid: int) -> int:
    """Mask of the signals that a process has handlers for; 0 when it is gone."""
    return _signal_mask(pid, b"SigCgt")


def ignores_interrupts(pid: int) -> bool:
    """Return whether SIGINT would be lost on a process; False where /proc does not say."""
    return bool(_signal_mask(pid, b"SigIgn") >> signal.SIGINT - 1 & 1)


def _signal_mask(pid: int, name: bytes) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            return int(file.read(READ_BYTES).partition(b"\n%b:" % name)[2].split(None, 1)[0], 16)
    except (OSError, IndexError, ValueError):
        return 0


END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""


class ProcessTrees:
    """Knows whose each process of the session is, and reaps those that are the agent's children.

    Attributes:
        orphans: processes whose parent has ended, and the interpreters and jobs that they are of.
        helpers: children that are nobody's, since code has not started them, until they are reaped.
        runners: those of the helpers that run programs, which are nobody's either.
        fork_servers: those of the helpers that make interpreters, and have no children.
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
        self.runners: set[int] = set()
        self.fork_servers: set[int] = set()
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
                self._continue_runners()
                return
            if os.WIFSTOPPED(status):
                # Code has made this process its tracer (PTRACE_TRACEME), and would wait for it.
                signal_child(pid, signal.SIGKILL)
                continue
            self.orphans.pop(pid, None)
            self.helpers.discard(pid)
            self.runners.discard(pid)
            self.fork_servers.discard(pid)
            for handle in self.exit_handlers:
                handle(pid, status, usage)

    def _continue_runners(self) -> None:
        """Have runners go on that code has stopped: their programs would wait for ever."""
        for pid in self.runners:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
                signal_child(pid, signal.SIGCONT)

    def live_interpreters(self) -> list[Owner]:
        return [each for each in self.interpreters if each.pid]

    def is_alone(self, interpreter: Owner) -> bool:
        """Return whether all processes are of this interpreter: no other one runs, nor a runner,
        and no job has run."""
        alone = self.live_interpreters() == [interpreter] and not self.had_jobs
        return alone and not self.runners

    def note_before_another(self) -> None:
        """Note whose the orphans are, before a second interpreter or the first job starts: until
        then all are those of the one that runs, and nobody has to look."""
        if len(others := self.live_interpreters()) == 1:
            self.note_orphans(others[0])

    def background(self) -> set[int]:
        """The processes in the session besides the agent's and its interpreters'."""
        self.find_helpers()
        ours = {self._session.pid, *self.helpers, *(each.pid for each in self.interpreters)}
        busy = ours - self.runners - self.fork_servers - {self._session.pid, 0}
        if self.children.pids() <= ours and not any(map(has_children_of, busy)):
            return set()  # nothing to search for in all of /proc, which takes long
        table = read_processes()
        # Not all that /proc shows: it shows forks of this session, too, and hides what has made
        # itself unreadable (prctl(2), PR_SET_DUMPABLE).
        inside = tree_of(table, self._session.pid, [self._session.pid])
        hidden = self.children.pids() - inside
        of_runners = [tree_of(table, pid, ()) for pid in self.runners]
        found = hidden | {pid for pid in inside if table[pid].alive}
        return found - ours - set().union(*of_runners)

    def owners(self) -> list[Owner]:
        """All whose processes are to be told apart: interpreters and jobs that run, and jobs that
        have left processes behind."""
        left = {each for each in self.orphans.values() if each.is_job and not each.pid}
        return [*self.live_interpreters(), *self.jobs, *left]

    def note_orphans(self, owner: Owner) -> None:
        """Remember whose the orphans are that have not been seen yet; later nothing tells. The
        owner was running, or its end has made them orphans."""
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
        alone = self.is_alone(owner) and not self.orphans  # then all children are its
        if owner.is_job:
            self.note_others_orphans(owner)
        elif not alone:
            self.note_orphans(owner)
        if owner.pid:
            signal_group(owner.pid, signal.SIGKILL)  # most of a fork bomb, at once
        killed: set[int] = set()
        deadline = time.monotonic() + END_S
        while fresh := self._belongings(owner, killed, alone=alone):
            for pid in fresh:
                signal_child(pid, signal.SIGKILL)
            for pid in fresh:
                await_end(pid, deadline)
            killed |= fresh

    def kill_left(self, job: Owner) -> None:
        """Kill what a job that has ended left behind."""
        if any(each is job for each in self.orphans.values()):
            self.kill(job)

    def kill_strangers(self) -> None:
        """Kill children that are nobody's, and those that come of this, as `kill` does."""
        self.find_helpers()
        owned = {*self.helpers, *self.orphans, *(each.pid for each in self.owners())}
        killed: set[int] = set()
        deadline = time.monotonic() + END_S
        while fresh := self.children.pids() - owned - killed:
            for pid in fresh:
                signal_child(pid, signal.SIGKILL)
            for pid in fresh:
                await_end(pid, deadline)
            killed |= fresh

    def _belongings(self, owner: Owner, known: AbstractSet[int], *, alone: bool) -> set[int]:
        """Children of the agent that are an owner's, without those that are known."""
        self.find_helpers()
        if alone:
            return self.children.pids() - known - self.helpers
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
