"""Limits of one session: how they are enforced, and which of them has ended something; and the
watchdog, which ends processes that take too much memory, if no control group does so in time.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import trio

from nsm.wire.tuples import NamedTuple
from nsmd.host.processes import has_ended, tree_of
from nsmd.jail.limits import process_memory
from nsmd.jail.limits.group import AT_REST, Counted, Group, GroupLimits, Share
from nsmd.jail.limits.process_memory import HeldMemory, held_memory
from nsmd.jail.process import open_descendant
from nsmd.model.values import Enforcement, LimitEvent, Outcome

log = logging.getLogger(__name__)

LOOKS = 3
"""Looks at a session that seems to have too much while its processes change, until that is
believed.
"""

COUNTED = "counted"
"""Key in an execution's note: the kernel's counts when it began."""

KILLED = 137
"""Exit code of an interpreter that was killed by SIGKILL."""

NOTHING_HELD = HeldMemory()

PERIOD_S = 0.5
"""Time between two looks of the watchdog. One loop can write to some 1 GB meanwhile, but to no more
than its process may have (RLIMIT_DATA).
"""

SHARE = 0.1
"""Share of the time that looking may take: with thousands of processes, it looks less often."""


class TopProcess(Protocol):
    """Process below which everything is limited: a jail's PID 1, or a box's. The owner closes the
    descriptor.
    """

    @property
    def pid(self) -> int: ...

    @property
    def pidfd(self) -> int: ...


class Measured(NamedTuple):
    """Observation of a session by the watchdog. The memory by process is empty unless all together
    may be too much; `held` is the part that they hold by descriptors, if nothing else counts it.
    """

    processes: int
    memory_bytes: int
    by_process: Sequence[process_memory.ProcessMemory]
    held: HeldMemory = NOTHING_HELD


class Confinement:
    """Limits of one session, or of a box: the mechanism, and which of them has ended something.
    `watch` makes the watchdog look at it from now on.
    """

    __slots__ = (
        "_behind",
        "_closed",
        "_counted",
        "_events",
        "_jail",
        "_latest",
        "_peak_bytes",
        "_share",
        "_watch",
        "enforcement",
        "group",
        "limits",
        "runs",
    )

    def __init__(
        self,
        jail: TopProcess,
        limits: GroupLimits,
        enforcement: Enforcement,
        group: Group | None = None,
        *,
        watch: Callable[[Confinement], None] | None = None,
    ) -> None:
        self.limits = limits
        self.enforcement = enforcement
        self.group = group
        self.runs = False
        self._jail = jail
        self._behind = False  # processes that an earlier execution left, as far as is known
        self._closed = False
        # A box keeps its weight however long it computes.
        self._share = None if group is None or limits.box_notice else Share(group)
        self._watch = watch
        self._counted = Counted()
        self._events: list[LimitEvent] = []
        self._peak_bytes: int | None = None
        self._latest: Measured | None = None

    def __repr__(self) -> str:
        return f"<Confinement pid={self._jail.pid} memory by {self.enforcement.memory}>"

    @property
    def directory(self) -> str | None:
        """Directory of its control group; None without one."""
        return None if self.group is None else self.group.directory

    # For the session; quick.

    def begun(self) -> None:
        """Note that an execution begins."""
        self.runs = True
        if self._behind and self.group is not None:
            # What they have done since then is of no concern to this execution.
            self._counted = self.group.counted()
        if self._share is not None:
            self._share.begun()
        self._be_watched()

    def _be_watched(self) -> None:
        if self._watch is not None:
            self._watch(self)

    def job_started(self) -> None:
        """Note a program that runs beside executions."""
        if self._share is not None:
            self._share.begun()
        self._be_watched()

    def execution_note(self) -> dict[str, object]:
        """Make the note for `resume_execution`, which the agent remembers with an execution."""
        counted = self._counted
        return {} if self.group is None else {COUNTED: [counted.kills, counted.refused]}

    def resume_execution(self, note: Mapping[str, object]) -> None:
        """Note an execution that an earlier supervisor began: limits that were reached while nobody
        looked count for it. The `note` comes through the agent, which may say anything.
        """
        self.begun()
        match note.get(COUNTED):
            case [int(kills), int(refused)] if self.group is not None:
                now = self._counted
                self._counted = Counted(
                    kills=max(0, min(kills, now.kills)), refused=max(0, min(refused, now.refused))
                )
            case _:
                pass  # its jail is in no group, or an older supervisor began it

    def ended(self, outcome: Outcome | None) -> tuple[LimitEvent, ...]:
        """Note the end of an execution; None if the session has ended with it. Returns the limits
        that were reached meanwhile.
        """
        self.runs = False
        if self._share is not None:
            self._share.ended()
        self._behind = True  # until the watchdog says otherwise
        self.count(outcome)
        events, self._events = tuple(self._events), []
        return events

    def taken_up(self) -> None:
        """Note a session that was taken over: what was counted before has been reported."""
        if self.group is not None:
            self._counted = self.group.counted()

    def count(self, outcome: Outcome | None = None) -> None:
        """Read the kernel's counts."""
        group = self.group
        if group is None:
            return
        before, self._counted = self._counted, group.counted()
        kills = self._counted.kills - before.kills
        refused = self._counted.refused - before.refused
        if kills > 0:
            self._events.append(
                LimitEvent(
                    kind="memory",
                    limit=group.limits.memory_bytes,
                    enforced_by="cgroup",
                    what=_what_went(outcome, kills),
                    peak_bytes=group.peak_bytes(),
                    times=kills,
                )
            )
        if refused > 0:
            times = "once" if refused == 1 else f"{refused} times"
            self._events.append(
                LimitEvent(
                    kind="processes",
                    limit=group.limits.processes,
                    enforced_by="cgroup",
                    what=f"a process or thread was not started, {times}",
                    times=refused,
                )
            )

    def why_it_died(self) -> str:
        """Explain why a jail ended by itself: the limit that ended it, or empty."""
        self.count()
        reached = [event for event in self._events if event.kind == "memory"]
        if not reached:
            return ""
        event = reached[-1]
        peak = "" if event.peak_bytes is None else f", peak {event.peak_bytes >> 20} MiB"
        return f": its memory limit of {event.limit >> 20} MiB was reached{peak}"

    def memory_bytes(self) -> int | None:
        """Memory that the group uses now, including files in memory; None without a group."""
        return None if self.group is None else self.group.memory_bytes()

    def held_bytes(self) -> int:
        """Memory that the watchdog saw last in memory files, pipes and sockets; 0 with a group,
        which counts it.
        """
        held = NOTHING_HELD if self._latest is None else self._latest.held
        return held.memory_files + held.pipes + held.sockets

    def peak_bytes(self) -> int | None:
        """The most memory that was seen; None if nothing counts it."""
        return self._peak_bytes if self.group is None else self.group.peak_bytes()

    def usage(self) -> dict[str, Any]:
        """Use of a box, for lists. What the watchdog has seen is half a second old."""
        self.count()
        seen = self._latest
        memory = self.memory_bytes()
        return {
            "memory_by": self.enforcement.memory,
            "why": self.enforcement.why or None,
            "memory_bytes": seen.memory_bytes if memory is None and seen is not None else memory,
            "processes": None if seen is None else seen.processes,
            "killed": sum(event.times for event in self._events if event.kind == "memory"),
        }

    def facts(self) -> dict[str, Any]:
        """Facts for `nsm inspect`: the limits, and present figures; reads some files."""
        return {
            **self.enforcement._asdict(),
            "group": self.group.directory if self.group else None,
            "memory_limit_bytes": self.limits.program_bytes,
            "group_limit_bytes": self.group.limits.memory_bytes if self.group else None,
            "memory_bytes": self.memory_bytes(),
            "peak_bytes": self.peak_bytes(),
            "held_bytes": None if self.group is not None else self.held_bytes(),
            "process_limit": self.limits.processes,
            "cpu_weight": self._share.now() if self._share else None,
        }

    # For the watchdog.

    def measure(self) -> Measured:
        """Measure its processes. Runs in a thread: 40 us per process, and some milliseconds each if
        they seem to have too much.
        """
        if self.group is not None:
            pids = self.group.pids()
            has = self.group.program_bytes() or 0
            too_much = has > self.limits.program_bytes
            return Measured(len(pids), has, process_memory.rough_memory(pids) if too_much else [])
        by_process: list[process_memory.ProcessMemory] = []
        held = NOTHING_HELD
        for _ in range(LOOKS):
            pids = tree_of(self._jail.pid)
            rough = process_memory.rough_memory(pids)
            held = held_memory(pids)
            by_process = process_memory.with_held(rough, held)
            if _total(by_process) > self.limits.program_bytes:
                exact = process_memory.exact_memory(rough, without=held.inodes)
                by_process = process_memory.with_held(exact, held)
            # Shared memory is divided again whenever a process starts or ends: figures read
            # meanwhile add up to too much.
            if _total(by_process) <= self.limits.program_bytes or tree_of(self._jail.pid) == pids:
                break
        return Measured(len(by_process), _total(by_process), by_process, held)

    def end_excess(self, look: Measured) -> bool:
        """End processes that have too much: the largest first, never the agent. Runs in the loop's
        thread. Returns whether there is more to look at: code runs, or has left processes behind.
        """
        if self._closed:
            return False
        self._latest = look._replace(by_process=())
        self._behind = look.processes > AT_REST
        if self._share is not None:
            self._share.looked(runs=self.runs, processes=look.processes)
        else:
            self._peak_bytes = max(look.memory_bytes, self._peak_bytes or 0)
        rest, killed = look.memory_bytes, 0
        for process in sorted(look.by_process, key=lambda each: each.memory_bytes, reverse=True):
            if rest <= self.limits.program_bytes:
                break
            if process.pid != self._jail.pid and self._kill(process.pid):
                rest -= process.memory_bytes
                killed += 1
        if killed and not self.runs:
            log.info("%d processes that %r had left behind were killed", killed, self)
        elif killed:
            self._note_killed(killed, look.memory_bytes)
        return self.runs or self._behind

    def _note_killed(self, killed: int, has_bytes: int) -> None:
        """Combine the processes that several looks ended into one event."""
        earlier = [event for event in self._events if event.enforced_by == "watchdog"]
        killed += sum(event.times for event in earlier)
        peaks = [event.peak_bytes or 0 for event in earlier]
        self._events = [event for event in self._events if event not in earlier]
        self._events.append(
            LimitEvent(
                kind="memory",
                limit=self.limits.program_bytes,
                enforced_by="watchdog",
                what="a process was killed" if killed == 1 else f"{killed} processes were killed",
                peak_bytes=max([has_bytes, *peaks]),
                times=killed,
            )
        )

    def _kill(self, pid: int) -> bool:
        """Kill a process of this session; False if it was not killed.

        Its id may belong to another process by now. A pidfd refers to one process only; if that
        process is below a jail that is still there afterwards, it belongs to the session.
        """
        try:
            pidfd = open_descendant(pid, self._jail.pid)
        except OSError:
            return False
        if pidfd is None:
            return False
        try:
            if has_ended(self._jail.pidfd):  # its process id may belong to another one then
                return False
            if self.limits.box_notice:
                tell_on_stderr(pid, self.limits.box_notice)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def close(self) -> None:
        """The jail has ended and is about to be released: remove its group. May be repeated."""
        if not self._closed:
            self._closed = True
            self.runs = False
            if self.group is not None:
                self.group.remove()


def tell_on_stderr(pid: int, text: str) -> None:
    """Write to the standard error of a process, where somebody reads why it is killed.

    It may have put anything in that place: nothing that could block is opened.
    """
    path = f"/proc/{pid}/fd/2"
    try:
        kind = os.stat(path).st_mode
        terminal = stat.S_ISCHR(kind) and os.readlink(path).startswith("/dev/pts/")
        if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or terminal):
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        number = os.open(path, flags)
    except OSError:
        return
    try:
        os.write(number, text.encode())
    except OSError:
        pass  # nobody reads it
    finally:
        os.close(number)


def _total(by_process: Sequence[process_memory.ProcessMemory]) -> int:
    return sum(process.memory_bytes for process in by_process)


def _what_went(outcome: Outcome | None, kills: int) -> str:
    if outcome is None:
        return "the session was killed"
    # The reason may belong to an earlier interpreter, whose loss is still to be reported.
    if outcome.interpreter_restarted and outcome.exit_code == KILLED:
        return "the interpreter was killed"
    return "a process was killed" if kills == 1 else f"{kills} processes were killed"


async def _in_thread(
    look: Callable[[Sequence[Confinement]], list[Measured]], at: Sequence[Confinement]
) -> list[Measured]:
    return await trio.to_thread.run_sync(look, at)


class Watchdog:
    """Watchdog over memory and processes of sessions; `run` is the task.

    It looks only at sessions in which an execution is under way, or has left a process behind;
    while there is none it sleeps. An execution that starts and ends between two looks, as most do,
    costs an entry in a set.
    """

    def __init__(
        self,
        in_thread: Callable[
            [Callable[[Sequence[Confinement]], list[Measured]], Sequence[Confinement]],
            Awaitable[list[Measured]],
        ] = _in_thread,
    ) -> None:
        self._in_thread = in_thread
        self._watched: set[Confinement] = set()
        self._asleep: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Watchdog of {len(self._watched)} sessions>"

    def watch(self, confinement: Confinement) -> None:
        """Look at a session from now on, until a look finds it at rest."""
        self._watched.add(confinement)
        if self._asleep is not None:
            self._asleep.set()
            self._asleep = None

    async def run(self) -> None:
        """Look until cancelled."""
        took_s = 0.0
        while True:
            if not self._watched:
                asleep = self._asleep = trio.Event()
                await asleep.wait()
            await trio.sleep(max(PERIOD_S, took_s / SHARE))
            before_s = trio.current_time()
            await self._end_excess(tuple(self._watched))
            took_s = trio.current_time() - before_s

    async def _end_excess(self, confinements: Sequence[Confinement]) -> None:
        looks = await self._in_thread(_look_at, confinements)
        for confinement, look in zip(confinements, looks, strict=True):
            if not confinement.end_excess(look):
                self._watched.discard(confinement)


def _look_at(confinements: Sequence[Confinement]) -> list[Measured]:
    return [confinement.measure() for confinement in confinements]
