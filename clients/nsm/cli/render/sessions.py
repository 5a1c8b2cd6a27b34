"""Sessions, their jobs and their open ports as tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.host import PortRow
    from nsm.wire.jobs import JobInfo
    from nsm.wire.sessions import KilledSession, SessionRow
    from nsm.wire.transcripts import EndedRow


def sessions_table(
    rows: Sequence[SessionRow],
    home: str,
    width: int | None = None,
    hosts: Sequence[str] | None = None,
) -> str:
    """The table of `nsm ps`. Paths below `home` are shown with ``~``; where rows have hosts, these
    are in a column of their own."""
    if not rows:
        return "No sessions."
    with_ports = any(row.ports for row in rows)
    with_gpus = any(row.gpu_memory_bytes is not None for row in rows)
    places = [(host,) for host in hosts] if hosts is not None else [()] * len(rows)
    return formats.table(
        ["HOST"] * (hosts is not None)
        + "ID NAME ENV CLIENT PROJECT STATE AGE IDLE RUNS MEMORY CPU LIMITS".split()
        + ["GPU"] * with_gpus
        + ["PORTS"] * with_ports,
        (
            (
                *place,
                row.id,
                row.name or "-",
                row.env,
                row.client,
                "-" if row.project is None else formats.below_home(row.project, home),
                f"{row.state}, old" if row.outdated else row.state,
                formats.duration(row.age_s),
                formats.duration(row.idle_s),
                str(row.executions),
                formats.memory(row.memory_bytes),
                formats.processor_time(row.cpu_s),
                row.limited_by or "-",
                *([formats.memory(row.gpu_memory_bytes)] if with_gpus else []),
                *([_ports(row)] if with_ports else []),
            )
            for place, row in zip(places, rows, strict=True)
        ),
        right="AGE IDLE RUNS MEMORY CPU GPU",
        width=width,
        least="LIMITS CLIENT CPU AGE RUNS MEMORY",
    )


def _ports(row: SessionRow) -> str:
    return ", ".join(f"{port.address}->{port.port}" for port in row.ports) or "-"


def ended_table(rows: Sequence[EndedRow], width: int | None = None) -> str:
    """The table of those that have ended, in `nsm ps --all`."""
    return formats.table(
        "ID NAME ENV CLIENT LIVED ENDED RUNS REASON".split(),
        (
            (
                row.id,
                row.name or "-",
                row.env,
                row.client,
                formats.duration(row.lived_s),
                f"{formats.duration(row.ended_s)} ago",
                str(row.executions),
                row.reason,
            )
            for row in rows
        ),
        right="LIVED ENDED RUNS",
        width=width,
        least="CLIENT LIVED RUNS",
    )


def killed_lines(rows: Sequence[KilledSession]) -> str:
    """List the ended sessions, a line each."""
    return "\n".join(
        formats.visible(
            f"ended {row.id}"
            + ("" if row.name is None else f" ({row.name})")
            + (f", a fork of {row.fork_of}" if row.fork_of else "")
        )
        for row in rows
    )


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
    return formats.table(
        "SESSION NAME JOB STATE AGE OUTPUT CPU COMMAND".split(),
        ((each.id, each.name or "-", *_job_cells(job)) for each, job in rows),
        right="JOB AGE OUTPUT CPU",
        width=width,
        least="OUTPUT CPU AGE",
    )


def own_jobs_table(jobs: Sequence[JobInfo]) -> str:
    """The table of one session's jobs."""
    return formats.table(
        "JOB STATE AGE OUTPUT CPU COMMAND".split(),
        (_job_cells(job) for job in jobs),
        right="JOB AGE OUTPUT CPU",
    )


def _job_cells(job: JobInfo) -> tuple[str, ...]:
    import shlex  # noqa: PLC0415  # `nsm ps` lists none

    command = formats.visible(shlex.join(job.argv))
    return (
        job.id,
        _job_state(job),
        formats.duration(job.age_s),
        formats.memory(job.output_bytes),
        "-" if job.running else formats.processor_time(job.user_s + job.system_s),
        command if len(command) <= _COMMAND_COLUMNS else command[: _COMMAND_COLUMNS - 4] + " ...",
    )


def _job_state(job: JobInfo) -> str:
    if job.running:
        return "running"
    if job.timed_out:
        return "timed out"
    if job.signal:
        return f"signal {job.signal}"
    return f"exit {job.exit_code}"


def ports_table(rows: Sequence[PortRow], width: int | None = None) -> str:
    """The table of `nsm port` without a port."""
    if not rows:
        return "No open ports."
    return formats.table(
        "SESSION PORT ADDRESS OPEN TOTAL REFUSED IN OUT NOTE".split(),
        (
            (
                row.name or row.session,
                str(row.port),
                row.address,
                str(row.connections),
                str(row.total),
                str(row.refused),
                formats.size(row.sent_bytes),
                formats.size(row.received_bytes),
                _port_note(row) or "-",
            )
            for row in rows
        ),
        right="PORT OPEN TOTAL REFUSED IN OUT",
        width=width,
    )


def _port_note(row: PortRow) -> str:
    if not row.is_open:
        return f"not open: {row.problem}"
    if row.problem:
        return f"does not work: {row.problem}"
    if row.full:
        return "too many connections: more wait until some end"
    if row.refused and row.refused + row.failed == row.total:
        return f"no program listens on port {row.port} in the session"
    if row.failed:
        return f"{formats.count(row.failed, 'connection')} failed"
    return ""
