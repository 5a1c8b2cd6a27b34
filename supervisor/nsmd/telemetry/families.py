"""Every metric: its name, its labels and its meaning, for `docs/reference/metrics.md`.

Names follow Prometheus' conventions: base units, and `_total` at the end of counters (left out
here, and added in reports).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nsmd.telemetry.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """A metric with all values of its labels; also a key of counts.

    Attributes:
        name: name without `_total`.
        labels: names of its labels; the number of values of each is bounded.
        help: its meaning in one sentence.
        group: heading on the page.
    """

    name: str
    kind: Kind
    help: str
    group: str
    labels: tuple[str, ...] = ()

    @property
    def told_as(self) -> str:
        """Name in Prometheus."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


Labels = tuple[str, ...]
"""Values of a metric's labels, in its order."""

Value = float | Histogram
Readings = Mapping[Family, Mapping[Labels, Value]]
"""Metrics, with a value for each set of labels."""

_RUN, _SESSION, _POOL = "Executions", "Sessions", "Pool and templates"
_CLIENT, _NETWORK, _SELF = "Clients", "Network of sessions", "The supervisor itself"
_BRIDGE = "Programs of the host"

EXECUTIONS = Family(
    name="nsm_executions",
    kind="counter",
    labels=("env", "outcome"),
    group=_RUN,
    help="Executions that are over, by what became of them.",
)
LATENCY = Family(
    name="nsm_execution_latency_seconds",
    kind="histogram",
    labels=("env", "outcome"),
    group=_RUN,
    help="From the request to the answer: waiting, a session's start and the code itself.",
)
WAIT = Family(
    name="nsm_execution_wait_seconds",
    kind="histogram",
    labels=("env",),
    group=_RUN,
    help="From the request to the moment when the code is sent to its session: behind other "
    "executions, and for a session to start.",
)
RUNS_TAKEN_UP = Family(
    name="nsm_executions_taken_up",
    kind="counter",
    labels=("env", "outcome"),
    group=_RUN,
    help="Executions that an earlier supervisor has begun and this one has seen end. If that one "
    "has seen it, too, it has counted them among its own.",
)
LIMITS_HIT = Family(
    name="nsm_limits_hit",
    kind="counter",
    labels=("limit", "enforced_by"),
    group=_RUN,
    help="Times that a limit of a session ended or refused something while code ran.",
)
DENIALS = Family(
    name="nsm_denials",
    kind="counter",
    labels=("env",),
    group=_RUN,
    help="Results that say which rules of the jail stopped the code; one may name several.",
)
SESSIONS = Family(
    name="nsm_sessions",
    kind="gauge",
    labels=("env", "state"),
    group=_SESSION,
    help="Sessions that belong to somebody. Those of the pool are in nsm_pool_spares.",
)
STARTS = Family(
    name="nsm_session_start_seconds",
    kind="histogram",
    labels=("env", "kind"),
    group=_SESSION,
    help="Starts of sessions, spares included, from the decision to one that can run code.",
)
START_FAILURES = Family(
    name="nsm_session_start_failures",
    kind="counter",
    labels=("env",),
    group=_SESSION,
    help="Sessions, spares included, that could not be started.",
)
ENDED = Family(
    name="nsm_sessions_ended",
    kind="counter",
    labels=("env", "cause"),
    group=_SESSION,
    help="Sessions that belonged to somebody and are over.",
)
TAKEN_UP = Family(
    name="nsm_sessions_taken_up",
    kind="counter",
    labels=("env",),
    group=_SESSION,
    help="Sessions of an earlier supervisor that this one has taken up.",
)
HANDED_OUT = Family(
    name="nsm_pool_takes",
    kind="counter",
    labels=("env", "result"),
    group=_POOL,
    help="Sessions that were asked of the pool: there was one ready (hit), or not (miss).",
)
SPARES = Family(
    name="nsm_pool_spares",
    kind="gauge",
    labels=("env", "state"),
    group=_POOL,
    help="Sessions kept ready, and those that are being started for it.",
)
WANTED = Family(
    name="nsm_pool_wanted",
    kind="gauge",
    labels=("env",),
    group=_POOL,
    help="Sessions that should be kept ready.",
)
REFILLS = Family(
    name="nsm_pool_refill_seconds",
    kind="histogram",
    labels=("env",),
    group=_POOL,
    help="Starts of sessions for the pool, from the decision to one that can be taken.",
)
POOL_BUDGET = Family(
    name="nsm_pool_budget_bytes",
    kind="gauge",
    group=_POOL,
    help="Memory that all spares together may take now; absent without a limit.",
)
TEMPLATES = Family(
    name="nsm_templates",
    kind="gauge",
    group=_POOL,
    help="Running interpreters that sessions are forked from.",
)
CLIENTS = Family(
    name="nsm_clients",
    kind="gauge",
    labels=("protocol",),
    group=_CLIENT,
    help="Clients that are connected and have introduced themselves.",
)
CONNECTED = Family(
    name="nsm_clients_connected",
    kind="counter",
    labels=("protocol",),
    group=_CLIENT,
    help="Clients that have come.",
)
CONNECTIONS = Family(
    name="nsm_connections",
    kind="gauge",
    group=_CLIENT,
    help="Connections to the socket, those included that have said nothing yet.",
)
CONNECTIONS_LIMIT = Family(
    name="nsm_connections_limit",
    kind="gauge",
    group=_CLIENT,
    help="Connections that there may be at once.",
)
BYTES = Family(
    name="nsm_client_bytes",
    kind="counter",
    labels=("protocol", "direction"),
    group=_CLIENT,
    help="Bytes from clients (in) and to them (out).",
)
PROXY_REQUESTS = Family(
    name="nsm_proxy_requests",
    kind="counter",
    labels=("verdict",),
    group=_NETWORK,
    help="Requests of code to the proxies of sessions, by what became of them.",
)
PROXY_BYTES = Family(
    name="nsm_proxy_bytes",
    kind="counter",
    labels=("direction",),
    group=_NETWORK,
    help="Bytes from code to the world (out) and back (in) through the proxies of sessions.",
)
PROXY_CONNECTIONS = Family(
    name="nsm_proxy_connections",
    kind="gauge",
    group=_NETWORK,
    help="Connections through the proxies of sessions that are open.",
)
PROGRAM_CALLS = Family(
    name="nsm_bridge_calls",
    kind="counter",
    labels=("outcome",),
    group=_BRIDGE,
    help="Calls of the bridge that are over, by what became of them: `refused` and `unaudited` "
    "(they could not be written down) were not started; of a `fault`, which is nsm's own, the "
    "audit says whether it was; all others were.",
)
PROGRAM_TIME = Family(
    name="nsm_bridge_call_seconds",
    kind="histogram",
    labels=("outcome",),
    group=_BRIDGE,
    help="How long programs of the bridge that were started have run.",
)
PROGRAMS_RUNNING = Family(
    name="nsm_bridge_calls_running",
    kind="gauge",
    group=_BRIDGE,
    help="Calls of the bridge that are under way, those included that are about to be refused.",
)
PROGRAMS_UNAUDITED = Family(
    name="nsm_bridge_audit_failing",
    kind="gauge",
    group=_BRIDGE,
    help="1 while calls of the bridge are refused because they cannot be written down "
    "(`nsm status` says why), else 0.",
)
INFO = Family(
    name="nsm_build_info",
    kind="gauge",
    labels=("version", "python"),
    group=_SELF,
    help="Always 1; the labels say which nsm and which Python run.",
)
UPTIME = Family(
    name="nsm_uptime_seconds",
    kind="gauge",
    group=_SELF,
    help="Since this supervisor started, or took its predecessor's place.",
)
RESTARTS = Family(
    name="nsm_restarts_survived",
    kind="counter",
    group=_SELF,
    help="Ends of earlier supervisors that sessions which are here have outlived.",
)
UNKEPT = Family(
    name="nsm_sessions_not_kept",
    kind="gauge",
    group=_SELF,
    help="1 while sessions would not outlive this supervisor (`nsm status` says why), else 0.",
)
AUDIT_LOST = Family(
    name="nsm_audit_lines_lost",
    kind="counter",
    group=_SELF,
    help="Lines of the audit that could not be written, to a full disk for example.",
)
DRAINING = Family(
    name="nsm_draining",
    kind="gauge",
    group=_SELF,
    help="1 while no new sessions may come, else 0.",
)
LAG = Family(
    name="nsm_event_loop_busy_seconds",
    kind="histogram",
    group=_SELF,
    help="Passes of the event loop, each from the moment when something woke it to the one when "
    "it looks again: for that long whatever else happened had to wait. Some passes are looked at, "
    "up to ten times a second.",
)
RELOADS = Family(
    name="nsm_configuration_reloads",
    kind="counter",
    group=_SELF,
    help="Times that the configuration was read again.",
)
PRESSURE = Family(
    name="nsm_memory_pressure",
    kind="counter",
    group=_SELF,
    help="Times that the machine was short of memory, and spares or idle sessions had to go.",
)
PRESSURE_ENDED = Family(
    name="nsm_memory_pressure_sessions_ended",
    kind="counter",
    group=_SELF,
    help="Idle sessions that were asked to end because the machine was short of memory.",
)
EVENTS = Family(
    name="nsm_events",
    kind="counter",
    group=_SELF,
    help="Events that were told (`nsm events`).",
)
CPU = Family(
    name="process_cpu_seconds",
    kind="counter",
    group=_SELF,
    help="Processor time of the supervisor's own process, user and system.",
)
RESIDENT = Family(
    name="process_resident_memory_bytes",
    kind="gauge",
    group=_SELF,
    help="Resident memory of the supervisor's own process.",
)
VIRTUAL = Family(
    name="process_virtual_memory_bytes",
    kind="gauge",
    group=_SELF,
    help="Virtual memory of the supervisor's own process.",
)
STARTED = Family(
    name="process_start_time_seconds",
    kind="gauge",
    group=_SELF,
    help="When the supervisor's process started, Unix time.",
)
DESCRIPTORS = Family(
    name="process_open_fds",
    kind="gauge",
    group=_SELF,
    help="Descriptors that the supervisor has open.",
)
DESCRIPTORS_LIMIT = Family(
    name="process_max_fds",
    kind="gauge",
    group=_SELF,
    help="Descriptors that it may have.",
)

FAMILIES = tuple(each for each in list(globals().values()) if isinstance(each, Family))
"""All metrics, in the order of the page."""

LABELS = {
    "env": "the environment's name; `(own)` for those that only one client's entry names, whose "
    "names are the client's; `(other)` beyond the first 100 names",
    "outcome": "`ok` (exit code 0), `error` (another one), `timeout`, `interrupted`, `lost` (there "
    "is no result: its session ended, or could not start)",
    "limit": "`memory` or `processes`",
    "enforced_by": "`cgroup`, `watchdog` or `rlimit` ([limits](policy.md#limits))",
    "state": "of a session `starting`, `idle`, `running` or `ending`; of a spare `ready` or "
    "`starting`",
    "kind": "`forked` (from a template), `cold` (in a jail of its own), `artifact-forked` and "
    "`artifact` (the same for environments that Nix has built)",
    "cause": "`lost` (its jail died, its agent failed, or it could not start), else `ended`: "
    "somebody or some limit ended it",
    "result": "`hit` or `miss`",
    "protocol": "`control` (the command line and programs), `mcp`, or `http` (MCP over it)",
    "direction": "`in` or `out`",
    "verdict": "as in [network.md](../how-to/network.md)",
    "version": "of nsm",
    "python": "of the supervisor's Python",
}
"""Possible values of each label, for the page."""
