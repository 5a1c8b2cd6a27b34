"""The answer to `status`: the supervisor itself. `nsm ps` does without."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.bridge import BridgeStatus
from nsm.wire.errors import ForbiddenError
from nsm.wire.fields import Fields


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
    """Mechanism that keeps sessions to their limits: ``cgroup``, ``watchdog``, ``rlimit`` or
    ``none``.

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
    """Process that keeps sessions while there is no supervisor (`systemd`, a `keeper`, `none`), and
    the reason why it keeps only some; empty if it keeps all."""

    kind: str
    problem: str


class HttpStatus(NamedTuple):
    """MCP over HTTP.

    Attributes:
        enabled: it is configured.
        listen: where, as it is configured.
        url: where it is served; empty where it is not.
        token: there is one that lets clients in.
        connections, max_connections: of clients.
        problem: what is wrong with it, for people; empty where nothing is.
    """

    enabled: bool
    listen: str
    url: str
    token: bool
    connections: int
    max_connections: int
    problem: str


class Status(NamedTuple):
    """The supervisor itself. `sessions` and `clients` are counts; `limits`, `audit`, `survival`,
    `bridge` and `http` are None where an older supervisor does not tell; `draining` is why it takes
    nothing new, None while it does."""

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
    bridge: BridgeStatus | None = None
    http: HttpStatus | None = None

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
            http=_http(status.optional("http", status.map)),
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


def _http(wire: Mapping[str, Any] | None) -> HttpStatus | None:
    if not wire:
        return None
    http = Fields(wire, "the status of MCP over HTTP")
    return HttpStatus(
        enabled=http.flag("enabled"),
        listen=http.text("listen"),
        url=http.text("url"),
        token=http.flag("token"),
        connections=http.integer("connections"),
        max_connections=http.integer("max_connections"),
        problem=http.text("problem"),
    )
