"""Index of the sessions that have not ended, by id and by name, and the rows of their lists, as
`nsm ps` shows them.

A query costs the same with a thousand other sessions, except for a name without its scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import trio

from nsm.wire.errors import (
    AmbiguousSessionError,
    SessionHiddenError,
    UnknownSessionError,
    did_you_mean,
)
from nsm.wire.sessions import SessionRow
from nsm.wire.transcripts import EndedRow
from nsm.wire.tuples import NamedTuple
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.host import processes
from nsmd.host.nvml import GpuReader, GpuUse, uses_below
from nsmd.jail.limits import memory_of
from nsmd.model import names
from nsmd.model.values import has_nvidia
from nsmd.restart.kept_sessions import UnreadSession, UnreadSessions
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import Transcript

_LISTED = 10
"""Largest number of sessions that an error about an ambiguous name lists."""


class Here(NamedTuple):
    """Scope and project of a caller.

    Attributes:
        scope: scope of the names that the caller itself gives.
        project: path of the caller's project; None for no project.
    """

    scope: str
    project: str | None

    def has(self, session: Session) -> bool:
        """Return whether a session sees the same project."""
        return project_path(session) == self.project


def project_path(session: Session) -> str | None:
    """Directory that a session sees; None for no project."""
    return None if session.spec.project is None else session.spec.project.path


class SessionIndex:
    """Index of the sessions that have not ended, spares and ending ones included.

    Sessions that a silent holder may have are hidden: their names belong to nobody else, and asking
    for one is refused.
    """

    def __init__(self) -> None:
        self.descriptors = 0
        self.unread = UnreadSessions()
        self._hidden: Collection[tuple[str, str]] = ()
        self._silent: SilentHolders | None = None
        self._sessions: dict[str, Session] = {}
        self._named: dict[tuple[str, str], Session] = {}

    def __repr__(self) -> str:
        return f"<SessionIndex of {len(self._sessions)} sessions, {len(self._named)} of them named>"

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def live(self) -> list[Session]:
        """Sessions that belong to a client and can take work; this takes time if there are many."""
        return [s for s in self._sessions.values() if s.tenancy is not None and s.live]

    @property
    def names(self) -> Collection[tuple[str, str]]:
        """Scope and name of each session that has one."""
        return self._named.keys() | self.unread.names

    def named(self, scope: str, name: str) -> Session | None:
        """Find the session that got that name last, even if it is ending.

        Raises:
            UnreadableSessionError: that session lives, and cannot be used.
            SessionHiddenError: it may be one that is hidden.
        """
        session = self._named.get((scope, name))
        if session is not None and session.live:
            return session
        if (unread := self.unread.named(scope, name)) is not None:
            raise unread.error()
        if session is None and (scope, name) in self._hidden and self._silent is not None:
            raise _hidden(name, self._silent)
        return session

    def is_taken(self, scope: str, name: str) -> bool:
        """Return whether a session has that name, or may have it."""
        return (scope, name) in self.names or (scope, name) in self._hidden

    def hide(self, hidden: Collection[tuple[str, str]], silent: SilentHolders) -> None:
        """Note that holders do not answer."""
        self._hidden, self._silent = hidden, silent

    def may_hide(self, target: str) -> bool:
        """Return whether a target may mean a hidden session."""
        if any(target in (name, f"{scope}/{name}") for scope, name in self._hidden):
            return True
        return self._silent is not None and names.may_be_id(target) and not self._meant(target)

    def made_by(self, scope: str, call_id: str) -> list[Session]:
        """Find the live sessions that a call has made which is sent again; looks at all."""
        return [
            session
            for session in self.live()
            if session.tenancy is not None
            and (session.tenancy.scope, session.tenancy.made_by) == (scope, call_id)
        ]

    def add(self, session: Session) -> None:
        """Add a new session, which belongs to nobody yet."""
        self._sessions[session.id] = session
        self.descriptors += session.spec.descriptors

    def give_name(self, session: Session) -> None:
        """Register a session under the name in its tenancy; an earlier session of that name is
        displaced."""
        tenancy = session.tenancy
        assert tenancy is not None
        assert tenancy.name is not None, "a one-shot has no name"
        self._named[tenancy.scope, tenancy.name] = session

    def remove(self, session: Session) -> bool:
        """Remove a session that is over; return whether it still had its name."""
        if self._sessions.pop(session.id, None) is not None:
            self.descriptors -= session.spec.descriptors
        tenancy = session.tenancy
        if tenancy is None or tenancy.name is None:
            return False
        key = tenancy.scope, tenancy.name
        if self._named.get(key) is not session:
            return False
        del self._named[key]
        return True

    def find(self, target: str, scope: str | None = None, here: Here | None = None) -> Session:
        """Find the live session that a target means: an id, its beginning, a name or `scope/name`.

        Args:
            scope: the only scope that the caller may see; None for all.
            here: if several have the name, the session from here is meant; None for no preference.

        Raises:
            UnreadableSessionError: that session cannot be used.
            SessionHiddenError: it may be one that is hidden.
        """
        matches = [
            s
            for s in self._meant(target)
            if s.tenancy is not None and s.live and scope in (None, s.tenancy.scope)
        ]
        if len(matches) > 1 and here is not None:
            own = [s for s in matches if s.tenancy is not None and s.tenancy.scope == here.scope]
            matches = own or [s for s in matches if here.has(s)] or matches
        if not matches and (unread := self.unread.find(target, scope)):
            raise unread.error()
        if not matches and self._silent is not None and self.may_hide(target):
            raise _hidden(target, self._silent)
        if not matches:
            raise UnknownSessionError(
                f"No session {target[:200]!r}.",
                hint=f"{self._probably_meant(target, scope)}`nsm ps` lists the live ones.",
            )
        return _only(matches, target)

    def identified(self, target: str) -> Session | None:
        """Find the live session by an id, its beginning or `scope/name`; never by a name alone."""
        matches = [s for s in self._identified(target) if s.tenancy is not None and s.live]
        if not matches and (unread := self.unread.find(target, by_name=False)):
            raise unread.error()
        return _only(matches, target) if matches else None

    def _probably_meant(self, target: str, scope: str | None) -> str:
        """A question about the session whose name is nearly that; empty if there is none."""
        known = [name for own, name in self._named if scope in (None, own)]
        return did_you_mean(target, known)

    def _meant(self, target: str) -> list[Session]:
        if target not in self._sessions:
            named = [s for (_, name), s in self._named.items() if name == target]
            if named:
                return named
        return self._identified(target)

    def _identified(self, target: str) -> list[Session]:
        session = self._sessions.get(target)
        if session is None:
            scope, _, name = target.rpartition("/")
            session = self._named.get((scope, name)) if scope else None
        if session is not None:
            return [session]
        if not names.may_be_id(target):
            return []
        return [s for s in self._sessions.values() if s.tenancy and s.id.startswith(target)]


def _hidden(target: str, silent: SilentHolders) -> SessionHiddenError:
    return SessionHiddenError(
        f"Session {target[:200]!r} cannot be used now: the process that holds it {silent.state}. "
        "This request did nothing.",
        hint=f"Try again later, or take another name. {silent.advice}",
    )


def _only(matches: list[Session], target: str) -> Session:
    if len(matches) > 1:
        shown = [f"{s.id} ({s.tenancy.scope if s.tenancy else ''})" for s in matches[:_LISTED]]
        listed = ", ".join([*shown, "..."] if len(matches) > _LISTED else shown)
        named = any(s.name == target for s in matches)
        raise AmbiguousSessionError(
            f"{len(matches)} sessions {'are called' if named else 'have ids that begin with'} "
            f"{target!r}: {listed}.",
            hint="Use an id.",
            data={"ids": [s.id for s in matches]},
        )
    return matches[0]


Measure = Callable[[Sequence[int]], Awaitable[Mapping[int, processes.Usage]]]


ROWS_AT_ONCE = 200
"""Largest number of sessions to describe at once; other tasks run in between."""


def measure_in_threads() -> Measure:
    """Make a function that reads /proc in a thread, so that nobody waits: 0.1 ms for a session."""
    reader = processes.UsageReader()

    async def measure(pids: Sequence[int]) -> Mapping[int, processes.Usage]:
        return await trio.to_thread.run_sync(reader.usage_of, pids)

    return measure


class SessionLister:
    """Maker of the rows of live sessions.

    Attributes:
        gpus: reads GPUs; asked only for sessions that have some.
    """

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.gpus = GpuReader()

    async def rows(self, sessions: Sequence[Session]) -> list[SessionRow]:
        """A row for each of these sessions that is live."""
        now = trio.current_time()
        usage = await self._measure([s.pid for s in sessions if s.pid])
        grouped = {s.id: s.confinement.group for s in sessions if s.confinement is not None}
        memory = await memory_of({id_: group for id_, group in grouped.items() if group})
        gpu_use = await self.gpu_use(sessions)
        return [
            live_row(s, usage.get(s.pid), now, memory.get(s.id), gpu_use.get(s.pid))
            for s in sessions
            if s.live
        ]

    async def gpu_use(self, sessions: Sequence[Session]) -> Mapping[int, GpuUse]:
        """Use of GPUs by these sessions, by process id; empty if none has a GPU, or it cannot be
        read.
        """
        pids = [s.pid for s in sessions if has_nvidia(s.spec.environment.shown_devices) and s.pid]
        if not pids:
            return {}
        reading = await self.gpus.read()
        if reading.problem:
            return {}
        found = await trio.to_thread.run_sync(uses_below, reading, pids)
        return {pid: found.get(pid, GpuUse(memory_bytes=0, percent=0)) for pid in pids}


def live_row(
    session: Session,
    usage: processes.Usage | None,
    now: float,
    memory_bytes: int | None = None,
    gpu_use: GpuUse | None = None,
) -> SessionRow:
    """Row of a session that belongs to a client."""
    assert session.tenancy is not None
    mount = session.spec.project
    confinement, running = session.confinement, session.runs.running
    state = "running" if session.runs_programs else session.state.value
    held = 0 if confinement is None else confinement.held_bytes()
    return SessionRow(
        id=session.id,
        name=session.name,
        env=session.spec.environment.name,
        client=session.tenancy.client,
        scope=session.tenancy.scope,
        project=mount.path if mount else None,
        state=state,
        age_s=now - session.created_s,
        idle_s=0.0 if state == "running" else now - session.active_s,
        executions=session.runs.count + session.transcript.programs,
        memory_bytes=_larger(memory_bytes, usage.memory_bytes + held if usage else None),
        cpu_s=usage.cpu_s if usage else None,
        pid=session.pid,
        limited_by=confinement.enforcement.memory if confinement is not None else None,
        processes=usage.processes if usage else None,
        running_s=running.runs_s(now) if running is not None else None,
        queued=len(session.runs.waiting),
        taken_up=session.taken_up,
        checkpoints=session.runs.checkpoints,
        outdated=session.jail is not None and session.jail.outdated,
        labels=dict(session.tenancy.labels),
        gpu_memory_bytes=None if gpu_use is None else gpu_use.memory_bytes,
        gpu_percent=None if gpu_use is None else gpu_use.percent,
    )


def _larger(group: int | None, processes: int | None) -> int | None:
    """Choose the larger of two figures, since neither counts everything.

    A group's figure includes files in memory and what the kernel uses for its processes, but not
    the memory that these had when they were moved into it.
    """
    known = [figure for figure in (group, processes) if figure is not None]
    return max(known, default=None)


def last_row(transcript: Transcript, now: float) -> SessionRow:
    """The same row for an ended session, as far as its transcript knows; `idle_s` counts from its
    end.
    """
    subject, ended_s = transcript.subject, transcript.ended_s
    assert ended_s is not None, "it is not over"
    return SessionRow(
        id=subject.id,
        name=subject.name,
        env=subject.env,
        client=subject.client,
        scope=subject.scope,
        project=None,
        state="ended",
        age_s=now - transcript.started_s,
        idle_s=now - ended_s,
        executions=transcript.executions + transcript.programs,
        memory_bytes=None,
        cpu_s=None,
        pid=0,
    )


def unread_row(session: UnreadSession) -> SessionRow:
    """Row of a session that this version of nsm cannot use."""
    return SessionRow(
        id=session.id,
        name=session.name,
        env=session.env,
        client=session.client,
        scope=session.scope,
        project=None,
        state="unreadable",
        age_s=0.0,
        idle_s=0.0,
        executions=0,
        memory_bytes=None,
        cpu_s=None,
        pid=session.pid,
    )


def ended_row(transcript: Transcript) -> EndedRow:
    """Row of an ended session."""
    subject, ended_s = transcript.subject, transcript.ended_s
    assert ended_s is not None, "it is not over"
    return EndedRow(
        id=subject.id,
        name=subject.name,
        env=subject.env,
        client=subject.client,
        scope=subject.scope,
        executions=transcript.executions + transcript.programs,
        lived_s=ended_s - transcript.started_s,
        ended_s=trio.current_time() - ended_s,
        reason=transcript.end_reason,
    )
