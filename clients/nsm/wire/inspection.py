"""Rules of one session, and what it may reach."""

from typing import Annotated, Any

from nsm.wire.code import NetworkRequest
from nsm.wire.environments import SlowImport
from nsm.wire.errors import BadRequestError
from nsm.wire.host import PortRow
from nsm.wire.jobs import JobInfo
from nsm.wire.operation import operation
from nsm.wire.sessions import SessionRow
from nsm.wire.tuples import NamedTuple


class NetworkDecision(NamedTuple):
    """A host that code in the session asked for, and what became of it.

    Attributes:
        age_s: seconds since then.
        protocol: ``connect``, ``http`` or ``socks5``.
        host: as it was asked for; empty, and `port` 0, where it was none.
        verdict: ``allowed``; ``off``, ``not-allowed``, ``port``, ``address`` or ``bad-request``,
            which a rule refused; ``unresolved``, ``unreachable``, ``upstream`` or ``busy``.
        detail: why, for people.
        address: address of the connection; empty if there was none.
    """

    age_s: float
    protocol: str
    host: str
    port: int
    verdict: str
    detail: str
    address: str


class NetworkReport(NamedTuple):
    """The network of one live session, as it is now.

    Attributes:
        session_id, session_name: the name is None for a one-shot.
        mode: ``off``, ``allow`` or ``full``.
        allow: patterns of hosts.
        port: port of the proxy on the session's own loopback; None if there is no proxy.
        problem: rule that is not in force although it should be, for people; else None.
        connections: number of open connections.
        counters: decisions by verdict, `sent_bytes` and `received_bytes`.
        decisions: the latest, at most 50, the newest last.
    """

    session_id: Annotated[str, "session.id"]
    session_name: Annotated[str | None, "session.name"]
    mode: str
    allow: tuple[str, ...]
    port: int | None
    problem: str | None
    connections: int
    counters: dict[str, Any]
    decisions: tuple[NetworkDecision, ...]


_OLD_WORDS = {"host": "full", "none": "off"}
_NO_HOSTS = frozenset(("", "all", "allow", "false", "no", "on", "true", "yes"))
_WORDS = frozenset(("off", "full", *_OLD_WORDS, *_NO_HOSTS))


def network_request(text: str) -> NetworkRequest:
    """Read ``off``, ``full`` or hosts separated by commas.

    The older spellings ``host``, ``none`` and ``allow=HOST,...`` are read as well.

    Raises:
        BadRequestError: it names no host, or is a word that looks like a mode and is none.
    """
    mode = _OLD_WORDS.get(text, text)
    if mode in ("off", "full"):
        return NetworkRequest(mode)
    listed = [host.strip() for host in text.removeprefix("allow=").split(",")]
    hosts = dict.fromkeys(filter(None, listed))
    # Each of these words might be a host's name, and is nobody's.
    if not hosts or any(host.lower() in _WORDS for host in hosts):
        raise BadRequestError(
            f"The network {text!r} is neither off nor full, nor hosts separated by commas.",
            hint="For example: pypi.org,*.example.org:443",
        )
    return NetworkRequest("allow", tuple(hosts))


def is_request_rule(text: str) -> bool:
    """Return whether a pattern of a list of hosts is meant as a rule for requests."""
    return " " in text.strip()


def read_all_requests(text: str) -> str:
    """Make a rule for all requests of the pattern of a host; a rule stays as it is."""
    return text if is_request_rule(text) else f"* https://{text}/*"


@operation("manage", recorded=("target", "action", "hosts"))
def net(target: str, action: str = "list", hosts: tuple[str, ...] = ()) -> NetworkReport:
    """Show or change what a session may reach. `action` is `list`, `allow`, `deny` or `off`;
    `allow` and `deny` take `hosts`.
    """
    ...


class ProcessRow(NamedTuple):
    """One process in a session's jail.

    Attributes:
        pid: as the host numbers it; `inside`: as the jail does.
        name, command: its own to choose; the command line's beginning.
        state: a letter, proc_pid_stat(5): ``R`` runs, ``S`` sleeps, ``Z`` has ended.
        memory_bytes: resident, and no file's; `cpu_s`: seconds of its own.
    """

    pid: int
    inside: int
    name: str
    command: str
    state: str
    memory_bytes: int
    cpu_s: float
    threads: int


class RunRow(NamedTuple):
    """One of a session's last executions.

    Attributes:
        number: counts the session's executions from 1.
        client: the program that sent it.
        started_at: Unix time, seconds.
        outcome: ``ok``, ``error``, ``timeout``, ``interrupted``, ``lost`` or ``running``.
        exit_code, duration_s: None while it runs; no code where it was lost.
        why: for people, where the interpreter was restarted or the result was lost.
        code: its beginning; `code_omitted` characters are left out.
    """

    number: int
    execution_id: str
    client: str
    started_at: float
    outcome: str
    exit_code: int | None
    duration_s: float | None
    why: str
    code: str
    code_omitted: int


class GpuRow(NamedTuple):
    """One GPU of the machine.

    Attributes:
        number: that of /dev/nvidiaNUMBER.
        memory_bytes, used_bytes, percent: all of its memory; what all programs of the machine have
            of it; their share of its time in the last second; None if unknown.
        problem: why it cannot be read; empty if it can.
    """

    number: int
    name: str = ""
    memory_bytes: int | None = None
    used_bytes: int | None = None
    percent: int | None = None
    problem: str = ""


class GpuReport(NamedTuple):
    """GPUs of the machine; `problem` says why they cannot be read, None if they can."""

    gpus: tuple[GpuRow, ...] = ()
    problem: str | None = None


class Inspection(NamedTuple):
    """One session.

    Attributes:
        session: its row of `nsm ps`; of an ended one the state is ``ended``, and only
            `end_reason` and `executions` are set besides.
        policy: its rules, as in `/run/nsm/policy.json` (docs/reference/policy.md), with host paths
            as `source`; None before it has a jail.
        network: `mode`, `allow`, `port`, `problem`, `connections` and `counters` as of `net`; None
            if unknown.
        confinement: how its limits are enforced, as read back, and its present use: `memory`,
            `processes`, `cpu`, `why`, `group`, `memory_limit_bytes`, `group_limit_bytes`,
            `memory_bytes`, `peak_bytes`, `held_bytes` (memory files, pipes and sockets, as the
            watchdog saw them last), `process_limit`, `cpu_weight`; each None if unknown.
        kernel: facts of the kernel about the jail's first process: `uid` on the host,
            `capabilities`, `no_new_privs`, `system_call_filter`, `cgroup`; None if there is none.
        contradictions: where the kernel does not say what the policy promises, for people.
        start: how it came to be: `kind`, `why_cold`, `start_s`, `spare_s`, `taken_up`; None where
            unknown.
        lifetime: when it ends by itself: `idle_timeout_s`, `max_lifetime_s`; None likewise.
        end_reason: why it ends or has ended, for people; None while it lives.
        processes: in its jail, parents first; at most 200.
        executions: the last ones that are kept, at most 20, the newest last.
        decisions: about its network, likewise.
        jobs: programs in it that run, and the last 20 that have ended.
        ports: its ports that are open on the host.
        slow_imports: modules that are worth preloading in its environment.
        gpus: GPUs of the machine, if it has some; else None.
    """

    session: SessionRow
    policy: dict[str, Any] | None
    network: dict[str, Any] | None
    confinement: dict[str, Any] | None
    kernel: dict[str, Any] | None
    contradictions: tuple[str, ...]
    start: dict[str, Any] | None = None
    lifetime: dict[str, Any] | None = None
    end_reason: str | None = None
    processes: tuple[ProcessRow, ...] = ()
    executions: tuple[RunRow, ...] = ()
    decisions: tuple[NetworkDecision, ...] = ()
    ports: tuple[PortRow, ...] = ()
    jobs: tuple[JobInfo, ...] = ()
    slow_imports: tuple[SlowImport, ...] = ()
    gpus: GpuReport | None = None


@operation("read", own=True)
def inspect(target: str) -> Inspection:
    """Tell all that is known of a session."""
    ...
