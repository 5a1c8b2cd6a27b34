"""Status of the supervisor, and its ways to make room for another one."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from nsm.wire.decode import at_least
from nsm.wire.errors import ForbiddenError
from nsm.wire.messages import read
from nsm.wire.operation import operation
from nsm.wire.tuples import NamedTuple


class DrainProgress(NamedTuple):
    """Progress of a drain.

    Attributes:
        left: executions that run or are queued.
        interrupted: executions that were interrupted at the deadline.
        remaining_s: seconds until then; None without one.
    """

    left: int
    interrupted: int
    remaining_s: float | None


OnDrain: TypeAlias = Callable[[DrainProgress], object]


class DrainReport(NamedTuple):
    """Outcome of a drain.

    Attributes:
        drained: nothing runs, and nothing will until the drain is taken back.
        cancelled: it was taken back, and new work is taken.
        left: executions that still run, where nobody waited for them.
        interrupted: executions that were interrupted at the deadline.
        sessions: number of kept sessions.
    """

    drained: bool
    cancelled: bool
    left: int
    interrupted: int
    sessions: int


class ProgramUnderWay(NamedTuple):
    """A program of the bridge that runs.

    Attributes:
        program: its name.
        client: client that asked for it, by its own name.
        scope: whose sessions that has.
    """

    program: str
    client: str
    scope: str


class ReloadReport(NamedTuple):
    """Steps that the supervisor takes before it becomes another program.

    Attributes:
        waits_for: programs of the bridge that run, which cannot go on without it.
        waits_s: seconds that it gives them at most; then they are stopped.
    """

    waits_for: tuple[ProgramUnderWay, ...]
    waits_s: float


OnReload: TypeAlias = Callable[[ReloadReport], object]


class JailStatus(NamedTuple):
    """Jail of code, in general.

    Attributes:
        kind: the launcher, e.g. ``bubblewrap``.
        uid: host user id that jailed code runs as; None when unknown.
        note: a note for people; may be empty.
    """

    kind: str
    uid: int | None
    note: str = ""


class LimitsStatus(NamedTuple):
    """Mechanism that keeps sessions to their limits: ``cgroup``, ``watchdog``, ``rlimit`` or
    ``none``.

    Attributes:
        memory, processes, cpu: mechanisms for whole sessions.
        why: why these are not control groups, for people; else empty.
    """

    memory: str
    processes: str
    cpu: str
    why: str


class AuditStatus(NamedTuple):
    """The audit's file.

    Attributes:
        enabled: lines are written.
        path: path of the file.
        written, dropped: lines since the supervisor started.
        problem: why lines are lost now, for people; empty where none are.
    """

    enabled: bool
    path: str
    written: int
    dropped: int
    problem: str


class SurvivalStatus(NamedTuple):
    """Process that keeps sessions while there is no supervisor (`systemd`, a `keeper`, `none`).

    Attributes:
        problem: why it keeps only some of them; empty if it keeps all.
        unread: what it keeps that this supervisor cannot use, and why; else empty.
        hidden: why it may keep sessions that this supervisor does not know of; else empty.
    """

    kind: str
    problem: str
    unread: str = ""
    hidden: str = ""


class HttpStatus(NamedTuple):
    """MCP over HTTP.

    Attributes:
        enabled: it is configured.
        listen: where, as it is configured.
        url: where it is served; empty where it is not.
        token: there is one that lets clients in.
        connections, max_connections: present and largest number of connections.
        problem: a problem, for people; else empty.
    """

    enabled: bool
    listen: str
    url: str
    token: bool
    connections: int
    max_connections: int
    problem: str


class PortsStatus(NamedTuple):
    """Ports of sessions that are open on the host, and ports of the configuration that could not be
    opened.
    """

    open: int = 0
    unopened: int = 0


class BridgeStatus(NamedTuple):
    """The bridge to programs of the host.

    Attributes:
        enabled: there is one.
        programs: how many there are.
        wrong: number of files with mistakes, see `nsm bridge check`.
        running: calls that are under way.
        audit: path of the file that they are written down in.
        problem: why that can't be written now, and nothing starts; empty where it can.
    """

    enabled: bool
    programs: int
    wrong: int
    running: int
    audit: str
    problem: str


class Status(NamedTuple):
    """The supervisor itself. `sessions` and `clients` are counts; `draining` is why it takes
    nothing new, None while it does; `upstream` is the proxy that leads to other hosts."""

    version: str
    pid: int
    uptime_s: float
    sessions: int
    clients: int
    socket: str
    jail: JailStatus
    limits: LimitsStatus
    draining: str | None
    audit: AuditStatus
    survival: SurvivalStatus
    bridge: BridgeStatus
    http: HttpStatus
    ports: PortsStatus = PortsStatus()
    upstream: str = ""


def read_status(wire: Mapping[str, Any]) -> Status:
    """The answer to `status`.

    Raises:
        ForbiddenError: it is the one that connections of boxes get.
    """
    if set(wire) == {"version"}:
        raise ForbiddenError(
            f"A supervisor of version {wire['version']} is there. It tells a box nothing else.",
            hint="Ask outside of the box.",
        )
    return read(Status, wire)


@operation("read", own=True)
def ping() -> dict[str, Any]:
    """Answer with nothing."""
    ...


@operation("read", own=True)
def status() -> dict[str, Any]:
    """Describe the supervisor, as `Status`; to a connection without `read` only `{version}`."""
    ...


@operation("manage", recorded=("timeout_s", "cancel"))
def drain(
    *,
    timeout_s: Annotated[float | None, at_least(0, "a number of seconds")] = None,
    cancel: bool = False,
) -> DrainReport:
    """Wait until nothing runs, and take no new work. Events `progress` (`DrainProgress`) come
    before the answer. A `cancel` of the request ends the waiting; `cancel: true` ends the drain.
    """
    ...


@operation("manage")
def reload(*, force: bool = False) -> ReloadReport:
    """Become the version that is installed, on the same socket. `start-failed` if that version
    would not start, or cannot take over some sessions; `force` ends these.
    """
    ...


@operation("manage")
def config_reload() -> dict[str, Any]:
    """Read the configuration again: `{changes: [{key, old, new, applied}], problems}`. With
    `problems`, nothing was changed.
    """
    ...


@operation("manage")
def shutdown() -> dict[str, Any]:
    """End the supervisor and all sessions."""
    ...
