"""What operations answer, as values for users of the clients.

`from_wire` takes a map that a supervisor sent: unknown fields are ignored (a newer supervisor may
send more), a missing or mistyped one raises `RemoteProtocolError` that names it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from nsm.wire.errors import ForbiddenError, NsmError, from_wire
from nsm.wire.frames import RemoteProtocolError

if TYPE_CHECKING:
    from nsm.wire.bridge import BridgeStatus

Value = TypeVar("Value")


class Truncation(NamedTuple):
    """What a result leaves out of one stream.

    Attributes:
        omitted_bytes: how many bytes of UTF-8 between the head and the tail.
        file: file in the session that holds the whole, or None.
    """

    omitted_bytes: int
    file: str | None


class SessionRef(NamedTuple):
    """Where code ran.

    Attributes:
        name: None for a fresh jail that has been thrown away.
        created: this run made the session.
        replaced: why and how long ago an earlier session of this name ended, for people.
    """

    id: str
    name: str | None
    created: bool
    replaced: str | None


class RunResult(NamedTuple):
    """What came of one piece of code. Times in seconds.

    Attributes:
        execution_id: to ask for this result again with `Client.result`.
        stdout, stderr: all that was written, or its head and tail (see `truncated`).
        exit_code: the code's status; 124 after a timeout, 130 after an interrupt.
        displays: displayed values, each a map of MIME type to data (binary data base64).
        truncated: for each stream that is not whole, what is missing.
        timed_out, interrupted: why the code ended early.
        interpreter_restarted: the session's variables are lost; `restart_reason` says why.
        waited_s: time spent waiting for other executions of the session.
        timeout_s: the limit that held.
        clamped_from_s: the limit that was asked for, where it was more than allowed; else None.
        notes: which rules of the jail stopped the code and what is allowed; mostly none.
    """

    execution_id: str
    env: str
    session: SessionRef
    stdout: str
    stderr: str
    exit_code: int
    duration_s: float
    displays: tuple[dict[str, Any], ...]
    truncated: dict[str, Truncation]
    timed_out: bool
    interrupted: bool
    interpreter_restarted: bool
    restart_reason: str
    waited_s: float
    timeout_s: float
    clamped_from_s: float | None
    notes: tuple[str, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `run` or `result`."""
        run = Fields(wire, "a run's result")
        session = Fields(run.map("session"), "a run's session")
        return cls(
            execution_id=run.text("execution_id"),
            env=run.text("env"),
            session=SessionRef(
                id=session.text("id"),
                name=session.optional("name", session.text),
                created=session.flag("created"),
                replaced=session.optional("replaced", session.text),
            ),
            stdout=run.text("stdout"),
            stderr=run.text("stderr"),
            exit_code=run.integer("exit_code"),
            duration_s=run.number("duration_s"),
            displays=run.maps("displays"),
            truncated=truncations(run.map("truncated")),
            timed_out=run.flag("timed_out"),
            interrupted=run.flag("interrupted"),
            interpreter_restarted=run.flag("interpreter_restarted"),
            restart_reason=run.text("restart_reason"),
            waited_s=run.number("waited_s"),
            timeout_s=run.number("timeout_s"),
            clamped_from_s=run.optional("clamped_from_s", run.number),
            notes=run.optional("notes", run.texts) or (),
        )


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
        )


class EnvironmentRow(NamedTuple):
    """One environment, or a reason why one is missing.

    Attributes:
        name: empty where something is the matter with all of a source.
        interpreter: empty where it is not known.
        problem: why it cannot be used, for people; None when `available`.
        source: where it comes from, e.g. ``preset``.
        program: the interpreter's path in the jail; empty when unavailable.
        timeout_s: default and upper limit of one run, seconds.
        memory_mb: memory limit of a session, MiB.
        preload: Python modules that its sessions find imported already.
        keeps_state: whether it has sessions.
        cold_start: why its last session was not forked from a template; None if it was.
        aliases: other names that it answers to.
        only_for: for whom it is, for people; None if for everyone.
        hides: where others of that name come from, which it stands in place of.
    """

    name: str
    interpreter: str
    description: str
    available: bool
    problem: str | None
    source: str
    program: str
    timeout_s: float
    memory_mb: int
    preload: tuple[str, ...]
    keeps_state: bool
    cold_start: str | None
    aliases: tuple[str, ...]
    only_for: str | None
    hides: tuple[str, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `envs`."""
        row = Fields(wire, "an environment row")
        return cls(
            name=row.text("name"),
            interpreter=row.text("interpreter"),
            description=row.text("description"),
            available=row.flag("available"),
            problem=row.optional("problem", row.text),
            source=row.text("source"),
            program=row.text("program"),
            timeout_s=row.number("timeout_s"),
            memory_mb=row.integer("memory_mb"),
            preload=row.texts("preload"),
            keeps_state=row.flag("keeps_state"),
            cold_start=row.optional("cold_start", row.text),
            aliases=row.texts("aliases"),
            only_for=row.optional("only_for", row.text),
            hides=row.texts("hides"),
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
    """What became of each target of `kill`."""

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


class JailStatus(NamedTuple):
    """How code is jailed.

    Attributes:
        kind: the launcher, e.g. ``bubblewrap``.
        uid: host user id that jailed code runs as; None when unknown.
        note: what a person should know, may be empty.
    """

    kind: str
    uid: int | None
    note: str


class LimitsStatus(NamedTuple):
    """What keeps sessions to their limits: ``cgroup``, ``watchdog``, ``rlimit`` or ``none``.

    Attributes:
        memory, processes, cpu: of a session as a whole.
        why: that is not a control group, for people; empty where it is.
    """

    memory: str
    processes: str
    cpu: str
    why: str


class AuditStatus(NamedTuple):
    """The audit's file.

    Attributes:
        enabled: lines are written.
        path: of the file.
        written, dropped: lines since the supervisor started.
        problem: why lines are lost now, for people; empty where none are.
    """

    enabled: bool
    path: str
    written: int
    dropped: int
    problem: str


class SurvivalStatus(NamedTuple):
    """Who keeps sessions while there is no supervisor: `systemd`, a `keeper`, `none`; and why not
    all of them, empty where all are."""

    kind: str
    problem: str


class Status(NamedTuple):
    """The supervisor itself. `sessions` and `clients` are counts; `limits`, `audit`, `survival` and
    `bridge` are None where an older supervisor does not tell; `draining` is why it takes nothing
    new, None while it does."""

    version: str
    pid: int
    uptime_s: float
    sessions: int
    clients: int
    socket: str
    jail: JailStatus
    limits: LimitsStatus | None = None
    draining: str | None = None
    audit: AuditStatus | None = None
    survival: SurvivalStatus | None = None
    bridge: "BridgeStatus | None" = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `status`.

        Raises:
            ForbiddenError: it is the one that connections of boxes get.
        """
        if set(wire) == {"version"}:
            raise ForbiddenError(
                f"A supervisor of version {wire['version']} is there. It tells a box no more.",
                hint="Ask outside of the box.",
            )
        from nsm.wire.bridge import BridgeStatus  # noqa: PLC0415  # it builds on this module

        status = Fields(wire, "the supervisor's status")
        jail = Fields(status.map("jail"), "the status of the jails")
        return cls(
            version=status.text("version"),
            pid=status.integer("pid"),
            uptime_s=status.number("uptime_s"),
            sessions=status.integer("sessions"),
            clients=status.integer("clients"),
            socket=status.text("socket"),
            jail=JailStatus(
                kind=jail.text("kind"),
                uid=jail.optional("uid", jail.integer),
                note=jail.optional("note", jail.text) or "",
            ),
            limits=_limits(status.optional("limits", status.map)),
            draining=status.optional("draining", status.text),
            audit=_audit(status.optional("audit", status.map)),
            survival=_survival(status.optional("survival", status.map)),
            bridge=BridgeStatus.from_wire(status.optional("bridge", status.map)),
        )


def _survival(wire: Mapping[str, Any] | None) -> SurvivalStatus | None:
    if wire is None:
        return None
    survival = Fields(wire, "the status of what outlives the supervisor")
    return SurvivalStatus(kind=survival.text("kind"), problem=survival.text("problem"))


def _limits(wire: Mapping[str, Any] | None) -> LimitsStatus | None:
    if wire is None:
        return None
    limits = Fields(wire, "the status of limits")
    return LimitsStatus(
        memory=limits.text("memory"),
        processes=limits.text("processes"),
        cpu=limits.text("cpu"),
        why=limits.text("why"),
    )


def _audit(wire: Mapping[str, Any] | None) -> AuditStatus | None:
    if not wire:
        return None
    audit = Fields(wire, "the status of the audit")
    return AuditStatus(
        enabled=audit.flag("enabled"),
        path=audit.text("path"),
        written=audit.integer("written"),
        dropped=audit.integer("dropped"),
        problem=audit.text("problem"),
    )


def rows(wire: Mapping[str, Any], key: str) -> tuple[dict[str, Any], ...]:
    """The list of maps that an answer holds under `key`."""
    return Fields(wire, "an answer").maps(key)


def flag(wire: Mapping[str, Any], key: str) -> bool:
    """The truth value that an answer holds under `key`."""
    return Fields(wire, "an answer").flag(key)


def truncations(wire: Mapping[str, Any]) -> dict[str, Truncation]:
    """What is left out of each stream."""
    return {stream: _truncation(what) for stream, what in wire.items()}


def _truncation(wire: object) -> Truncation:
    if not isinstance(wire, dict):
        raise RemoteProtocolError("the supervisor sent a truncation that is not a map")
    what = Fields(cast("dict[str, Any]", wire), "a truncation")
    return Truncation(what.integer("omitted_bytes"), what.optional("file", what.text))


class Fields:
    """Reads a map's fields by type; `noun` names the map in errors.

    Every reader raises `RemoteProtocolError` where the field is missing or of another type.
    """

    __slots__ = ("_noun", "_wire")

    def __init__(self, wire: Mapping[str, Any], noun: str) -> None:
        self._wire = wire
        self._noun = noun

    def text(self, key: str) -> str:
        value = self._wire.get(key)
        if isinstance(value, str):
            return value
        raise self._mistyped(key, "text")

    def data(self, key: str) -> bytes:
        """Bytes."""
        value = self._wire.get(key)
        if not isinstance(value, bytes):
            raise self._mistyped(key, "bytes")
        return value

    def integer(self, key: str) -> int:
        value = self._wire.get(key)
        if type(value) is int:  # a bool is no number here
            return value
        raise self._mistyped(key, "an integer")

    def number(self, key: str) -> float:
        value = self._wire.get(key)
        if type(value) is float or type(value) is int:
            return value
        raise self._mistyped(key, "a number")

    def flag(self, key: str) -> bool:
        value = self._wire.get(key)
        if isinstance(value, bool):
            return value
        raise self._mistyped(key, "true or false")

    def map(self, key: str) -> dict[str, Any]:
        value = self._wire.get(key)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        raise self._mistyped(key, "a map")

    def maps(self, key: str) -> tuple[dict[str, Any], ...]:
        value = self._wire.get(key)
        if isinstance(value, list):
            items = cast("list[object]", value)
            if all(isinstance(item, dict) for item in items):
                return tuple(cast("list[dict[str, Any]]", items))
        raise self._mistyped(key, "a list of maps")

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._wire.get(key)
        if isinstance(value, list):
            items = cast("list[object]", value)
            if all(isinstance(item, str) for item in items):
                return tuple(cast("list[str]", items))
        raise self._mistyped(key, "a list of texts")

    def optional(self, key: str, read: Callable[[str], Value]) -> Value | None:
        return None if self._wire.get(key) is None else read(key)

    def _mistyped(self, key: str, expected: str) -> RemoteProtocolError:
        found = type(self._wire[key]).__name__ if key in self._wire else "nothing"
        return RemoteProtocolError(
            f"the supervisor sent {self._noun} with {found} for `{key}`; expected {expected}",
            hint="Is an older or newer supervisor running? `nsm shutdown` ends it.",
        )
