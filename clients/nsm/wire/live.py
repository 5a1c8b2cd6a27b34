"""Live sessions as rows, and what became of those that were to end."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.errors import NsmError, from_wire
from nsm.wire.fields import Fields


class SessionRow(NamedTuple):
    """One live session, as `nsm ps` shows it.

    Attributes:
        name: None for a one-shot.
        client: the program it belongs to; `scope`: the name space of its name.
        project: host directory that it sees, or None.
        age_s, idle_s, cpu_s: seconds; `memory_bytes`: about what it shares with nothing else.
        pid: the jail's first process, as the host numbers it.
        limited_by: what keeps its memory to the limit: ``cgroup``, ``watchdog`` or ``rlimit``; None
            before it has a jail.
        processes: in the jail, None where unknown; `queued`: executions that wait for their turn.
        running_s: for how long its execution has been running; None where none does.
        taken_up: how many restarts of the supervisor it has outlived.
        outdated: its interpreter, libraries or preloaded modules have changed on disk meanwhile.
    """

    id: str
    name: str | None
    env: str
    client: str
    scope: str
    project: str | None
    state: str
    age_s: float
    idle_s: float
    executions: int
    memory_bytes: int | None
    cpu_s: float | None
    pid: int
    limited_by: str | None = None
    processes: int | None = None
    running_s: float | None = None
    queued: int = 0
    taken_up: int = 0
    outdated: bool = False

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `sessions`."""
        row = Fields(wire, "a session row")
        return cls(
            id=row.text("id"),
            name=row.optional("name", row.text),
            env=row.text("env"),
            client=row.text("client"),
            scope=row.text("scope"),
            project=row.optional("project", row.text),
            state=row.text("state"),
            age_s=row.number("age_s"),
            idle_s=row.number("idle_s"),
            executions=row.integer("executions"),
            memory_bytes=row.optional("memory_bytes", row.integer),
            cpu_s=row.optional("cpu_s", row.number),
            pid=row.integer("pid"),
            limited_by=row.optional("limited_by", row.text),
            processes=row.optional("processes", row.integer),
            running_s=row.optional("running_s", row.number),
            queued=row.optional("queued", row.integer) or 0,
            taken_up=row.optional("taken_up", row.integer) or 0,
            outdated=row.optional("outdated", row.flag) or False,
        )


class KilledSession(NamedTuple):
    """A session that was ended."""

    id: str
    name: str | None


class KillError(NamedTuple):
    """A target that was not ended, and why."""

    target: str
    error: NsmError


class KillReport(NamedTuple):
    """Outcome for each target of `kill`."""

    killed: tuple[KilledSession, ...]
    errors: tuple[KillError, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `kill`."""
        report = Fields(wire, "a kill report")
        killed = [Fields(row, "a killed session") for row in report.maps("killed")]
        errors = [Fields(row, "a kill error") for row in report.maps("errors")]
        return cls(
            killed=tuple(
                KilledSession(row.text("id"), row.optional("name", row.text)) for row in killed
            ),
            errors=tuple(
                KillError(row.text("target"), from_wire(row.map("error"))) for row in errors
            ),
        )
