"""Every metric: its name, its labels and its meaning, for `docs/reference/metrics.md`.

Names follow Prometheus' conventions: base units, and `_total` at the end of counters (left out
here, and added in reports).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nsm.dataclass import dataclass
from nsmd.telemetry.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """A metric, whatever the values of its labels; also a key of counts.

    Attributes:
        name: name without `_total`.
        labels: names of its labels; the number of values of each is bounded.
        help: its meaning, in a sentence or a few.
        group: heading on the page.
    """

    name: str
    kind: Kind
    help: str
    group: str
    labels: tuple[str, ...] = ()

    @property
    def exported_name(self) -> str:
        """Name in reports to Prometheus."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of its `labels`."""

Value = float | Histogram
Readings = Mapping[Family, Mapping[Labels, Value]]
"""Metrics, with a value for each set of labels."""

_RUN, _SESSION, _POOL = "Executions", "Sessions", "Pool and templates"
_JOB, _PORT, _GPU = "Jobs", "Ports of sessions", "GPUs of sessions"
_CLIENT, _NETWORK, _SELF = "Clients", "Network of sessions", "The supervisor itself"
_BRIDGE = "Programs of the host"

EXECUTIONS = Family(
    name="nsm_executions",
    kind="counter",
    labels=("env", "outcome"),
    group=_RUN,
    help="Executions that have ended, by outcome.",
)
LATENCY = Family(
    name="nsm_execution_latency_seconds",
    kind="histogram",
    labels=("env", "outcome"),
    group=_RUN,
    help="Time from the request to the answer: the wait, the start of a session, and the "
    "code itself.",
)
WAIT = Family(
    name="nsm_execution_wait_seconds",
    kind="histogram",
    labels=("env",),
    group=_RUN,
    help="Time from the request until the code is sent to its session: the wait for other "
    "executions, and for a session to start.",
)
RUNS_TAKEN_UP = Family(
    name="nsm_executions_taken_up",
    kind="counter",
    labels=("env", "outcome"),
    group=_RUN,
    help="Executions that an earlier supervisor started and that ended under this one. If "
    "the earlier one saw the end, too, it has counted them among its own.",
)
LIMITS_HIT = Family(
    name="nsm_limits_hit",
    kind="counter",
    labels=("limit", "enforced_by"),
    group=_RUN,
    help="Number of times that a limit of a session ended or refused something while code ran.",
)
DENIALS = Family(
    name="nsm_denials",
    kind="counter",
    labels=("env",),
    group=_RUN,
    help="Results that name the rules of the jail that stopped the code. One result may name"
    " several.",
)
JOBS = Family(
    name="nsm_jobs",
    kind="gauge",
    labels=("env",),
    group=_JOB,
    help="Jobs that run: programs beside the interpreters of sessions.",
)
JOBS_STARTED = Family(
    name="nsm_jobs_started",
    kind="counter",
    labels=("env",),
    group=_JOB,
    help="Jobs that were started.",
)
JOBS_ENDED = Family(
    name="nsm_jobs_ended",
    kind="counter",
    labels=("env", "outcome"),
    group=_JOB,
    help="Jobs that have ended, by outcome. Jobs that ended with their session are `lost`.",
)
SESSIONS = Family(
    name="nsm_sessions",
    kind="gauge",
    labels=("env", "state"),
    group=_SESSION,
    help="Sessions that have an owner. Spares are in nsm_pool_spares.",
)
STARTS = Family(
    name="nsm_session_start_seconds",
    kind="histogram",
    labels=("env", "kind"),
    group=_SESSION,
    help="Time to start a session or a spare, from the decision until it can run code.",
)
START_FAILURES = Family(
    name="nsm_session_start_failures",
    kind="counter",
    labels=("env",),
    group=_SESSION,
    help="Starts of sessions and spares that failed.",
)
ENDED = Family(
    name="nsm_sessions_ended",
    kind="counter",
    labels=("env", "cause"),
    group=_SESSION,
    help="Sessions that had an owner and have ended.",
)
TAKEN_UP = Family(
    name="nsm_sessions_taken_up",
    kind="counter",
    labels=("env",),
    group=_SESSION,
    help="Sessions of an earlier supervisor that this one has taken up.",
)
GPU_MEMORY = Family(
    name="nsm_session_gpu_memory_bytes",
    kind="gauge",
    labels=("env",),
    group=_GPU,
    help="Memory on NVIDIA's GPUs that sessions have. Like the others of this part it is absent "
    "while no session has a GPU, and where nsm cannot read GPUs.",
)
GPU_USE = Family(
    name="nsm_session_gpu_use_ratio",
    kind="gauge",
    labels=("env",),
    group=_GPU,
    help="Share of GPUs' time that sessions had in the last second: 1 for all of one GPU.",
)
GPU_USED = Family(
    name="nsm_gpu_memory_used_bytes",
    kind="gauge",
    labels=("gpu",),
    group=_GPU,
    help="Memory of a GPU that all programs of the machine have together.",
)
GPU_SIZE = Family(
    name="nsm_gpu_memory_size_bytes",
    kind="gauge",
    labels=("gpu",),
    group=_GPU,
    help="All memory of a GPU.",
)
GPU_UNREAD = Family(
    name="nsm_gpu_unreadable",
    kind="gauge",
    group=_GPU,
    help="1 while sessions have GPUs and these cannot be read (`nsm inspect` says why), else 0.",
)
HANDED_OUT = Family(
    name="nsm_pool_takes",
    kind="counter",
    labels=("env", "result"),
    group=_POOL,
    help="Requests to the pool for a session: one was ready (hit), or none was (miss).",
)
SPARES = Family(
    name="nsm_pool_spares",
    kind="gauge",
    labels=("env", "state"),
    group=_POOL,
    help="Spares that are ready, and spares that are starting.",
)
WANTED = Family(
    name="nsm_pool_wanted",
    kind="gauge",
    labels=("env",),
    group=_POOL,
    help="Spares that the pool should keep ready.",
)
REFILLS = Family(
    name="nsm_pool_refill_seconds",
    kind="histogram",
    labels=("env",),
    group=_POOL,
    help="Time to start a spare, from the decision until it can be taken.",
)
POOL_BUDGET = Family(
    name="nsm_pool_budget_bytes",
    kind="gauge",
    group=_POOL,
    help="Memory that all spares together may use now. It is absent if there is no limit.",
)
TEMPLATES = Family(
    name="nsm_templates",
    kind="gauge",
    group=_POOL,
    help="Templates that run.",
)
TEMPLATE_MEMORY = Family(
    name="nsm_template_memory_bytes",
    kind="gauge",
    group=_POOL,
    help="Memory of all templates: the proportional share (PSS) of each process, whose pages "
    "its sessions share.",
)
CLIENTS = Family(
    name="nsm_clients",
    kind="gauge",
    labels=("protocol",),
    group=_CLIENT,
    help="Clients that are connected and have said who they are.",
)
CONNECTED = Family(
    name="nsm_clients_connected",
    kind="counter",
    labels=("protocol",),
    group=_CLIENT,
    help="Clients that have connected.",
)
CONNECTIONS = Family(
    name="nsm_connections",
    kind="gauge",
    group=_CLIENT,
    help="Connections to the socket, including those that have sent nothing yet.",
)
CONNECTIONS_LIMIT = Family(
    name="nsm_connections_limit",
    kind="gauge",
    group=_CLIENT,
    help="Largest number of connections at a time.",
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
    help="Requests of code to the proxies of sessions, by verdict.",
)
PROXY_BYTES = Family(
    name="nsm_proxy_bytes",
    kind="counter",
    labels=("direction",),
    group=_NETWORK,
    help="Bytes from code to the network (out) and back (in), through the proxies of sessions.",
)
PROXY_CONNECTIONS = Family(
    name="nsm_proxy_connections",
    kind="gauge",
    group=_NETWORK,
    help="Open connections through the proxies of sessions.",
)
SECRET_USES = Family(
    name="nsm_secret_uses",
    kind="counter",
    group=_NETWORK,
    help="Requests into which the values of secrets were put.",
)
PORTS = Family(
    name="nsm_ports",
    kind="gauge",
    group=_PORT,
    help="Ports of sessions that are open on the host.",
)
PORT_CONNECTIONS = Family(
    name="nsm_port_connections",
    kind="gauge",
    group=_PORT,
    help="Open connections to these ports.",
)
PORT_ACCEPTED = Family(
    name="nsm_port_connections_accepted",
    kind="counter",
    group=_PORT,
    help="Connections that were accepted.",
)
PORT_FAILED = Family(
    name="nsm_port_connections_failed",
    kind="counter",
    group=_PORT,
    help="Connections that were reset because no program listened in the session, or because its "
    "agent did not answer.",
)
PORT_BYTES = Family(
    name="nsm_port_bytes",
    kind="counter",
    labels=("direction",),
    group=_PORT,
    help="Bytes into sessions (in) and back (out) through these ports.",
)
PORTS_UNOPENED = Family(
    name="nsm_ports_not_open",
    kind="gauge",
    group=_PORT,
    help="Ports of the configuration that could not be opened (`nsm port` says why).",
)
PROGRAM_CALLS = Family(
    name="nsm_bridge_calls",
    kind="counter",
    labels=("outcome",),
    group=_BRIDGE,
    help="Calls of the bridge that have ended, by outcome. `refused` and `unaudited` (no "
    "line could be written to the audit) mean that no program was started. `fault` is "
    "an error of nsm: the audit tells whether a program was started. All other outcomes"
    " are of programs that were started.",
)
PROGRAM_TIME = Family(
    name="nsm_bridge_call_seconds",
    kind="histogram",
    labels=("outcome",),
    group=_BRIDGE,
    help="Running time of bridge programs.",
)
PROGRAMS_RUNNING = Family(
    name="nsm_bridge_calls_running",
    kind="gauge",
    group=_BRIDGE,
    help="Calls of the bridge that are in progress, including those that are about to be refused.",
)
PROGRAMS_UNAUDITED = Family(
    name="nsm_bridge_audit_failing",
    kind="gauge",
    group=_BRIDGE,
    help="1 while calls of the bridge are refused because they cannot be written to the "
    "audit (`nsm status` says why), else 0.",
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
    help="Time since this supervisor started, or took the place of the one before.",
)
RESTARTS = Family(
    name="nsm_restarts_survived",
    kind="counter",
    group=_SELF,
    help="Restarts of the supervisor that the present sessions have survived.",
)
UNKEPT = Family(
    name="nsm_sessions_not_kept",
    kind="gauge",
    group=_SELF,
    help="1 while sessions would not survive the end of this supervisor (`nsm status` says "
    "why), else 0.",
)
AUDIT_LOST = Family(
    name="nsm_audit_lines_lost",
    kind="counter",
    group=_SELF,
    help="Lines of the audit that could not be written, for example because the disk was full.",
)
DRAINING = Family(
    name="nsm_draining",
    kind="gauge",
    group=_SELF,
    help="1 while the supervisor drains and refuses new code, else 0.",
)
LAG = Family(
    name="nsm_event_loop_busy_seconds",
    kind="histogram",
    group=_SELF,
    help="Duration of one pass of the event loop, during which all else waits. Passes are "
    "sampled, up to ten times a second.",
)
RELOADS = Family(
    name="nsm_configuration_reloads",
    kind="counter",
    group=_SELF,
    help="Number of times that the configuration was read again.",
)
PRESSURE = Family(
    name="nsm_memory_pressure",
    kind="counter",
    group=_SELF,
    help="Number of times that the machine was short of memory and the supervisor ended "
    "spares or idle sessions.",
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
    help="Events that were published (`nsm events` shows them).",
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
    help="Start time of the supervisor's process, in Unix time.",
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
    help="Largest number of descriptors that the supervisor may have open.",
)

FAMILIES = tuple(each for each in list(globals().values()) if isinstance(each, Family))
"""All metrics, in the order of the page."""
