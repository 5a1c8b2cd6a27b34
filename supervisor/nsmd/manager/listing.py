"""Rows of lists of sessions, as `nsm ps` shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from nsm.wire.sessions import SessionRow
from nsm.wire.transcripts import EndedRow
from nsmd.host import processes
from nsmd.host.nvml import GpuReader, GpuUse, uses_below
from nsmd.jail.limits import memory_of
from nsmd.model.values import has_nvidia
from nsmd.restart.kept_sessions import UnreadSession
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import Transcript

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
    held = 0 if confinement is None else confinement.held_bytes()
    return SessionRow(
        id=session.id,
        name=session.name,
        env=session.spec.environment.name,
        client=session.tenancy.client,
        scope=session.tenancy.scope,
        project=mount.path if mount else None,
        state=session.state.value,
        age_s=now - session.created_s,
        idle_s=0.0 if session.state.value == "running" else now - session.active_s,
        executions=session.runs.count,
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
        executions=transcript.executions,
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
        executions=transcript.executions,
        lived_s=ended_s - transcript.started_s,
        ended_s=trio.current_time() - ended_s,
        reason=transcript.end_reason,
    )
