"""Jobs as a table, for `nsm jobs` and `nsm inspect`. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from nsm.cli.render.formats import duration, memory, processor_time, table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.jobs import JobInfo

_COMMAND_COLUMNS = 60


class SessionJobs(NamedTuple):
    """A session and its jobs."""

    id: str
    name: str | None
    jobs: Sequence[JobInfo]


def jobs_table(found: Sequence[SessionJobs], width: int | None = None) -> str:
    """The table of `nsm jobs`."""
    rows = [(each, job) for each in found for job in each.jobs]
    if not rows:
        return "No jobs."
    return table(
        "SESSION NAME JOB STATE AGE OUTPUT CPU COMMAND".split(),
        ((each.id, each.name or "-", *_cells(job)) for each, job in rows),
        right="JOB AGE OUTPUT CPU",
        width=width,
        least="OUTPUT CPU AGE",
    )


def own_jobs_table(jobs: Sequence[JobInfo]) -> str:
    """The table of one session's jobs."""
    return table(
        "JOB STATE AGE OUTPUT CPU COMMAND".split(),
        (_cells(job) for job in jobs),
        right="JOB AGE OUTPUT CPU",
    )


def _cells(job: JobInfo) -> tuple[str, ...]:
    command = visible(shlex.join(job.argv))
    return (
        job.id,
        state(job),
        duration(job.age_s),
        memory(job.output_bytes),
        "-" if job.running else processor_time(job.user_s + job.system_s),
        command if len(command) <= _COMMAND_COLUMNS else command[: _COMMAND_COLUMNS - 4] + " ...",
    )


def state(job: JobInfo) -> str:
    """Describe a job: running, or how it has ended."""
    if job.running:
        return "running"
    if job.timed_out:
        return "timed out"
    if job.signal:
        return f"signal {job.signal}"
    return f"exit {job.exit_code}"
