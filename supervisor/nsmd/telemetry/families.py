"""Every metric: its name, kind, labels and meaning, for reports and `docs/reference/metrics.md`.

Counts and reports name a metric as this table does. Names follow Prometheus' conventions: base
units, and `_total` at the end of counters, left out here and added in reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Literal, NamedTuple, cast

Kind = Literal["counter", "gauge", "histogram"]

_TABLE = """\
# Executions
nsm_executions counter env outcome
    Executions that have ended, by outcome.
nsm_execution_latency_seconds histogram env outcome
    Time from the request to the answer: the wait, the start of a session, and the code itself.
nsm_execution_wait_seconds histogram env
    Time from the request until the code is sent to its session: the wait for other executions, and
    for a session to start.
nsm_executions_taken_up counter env outcome
    Executions that an earlier supervisor started and that ended under this one. If the earlier one
    saw the end, too, it has counted them among its own.
nsm_limits_hit counter limit enforced_by
    Number of times that a limit of a session ended or refused something while code ran.
nsm_denials counter env
    Results that name the rules of the jail that stopped the code. One result may name several.

# Jobs
nsm_jobs gauge env
    Jobs that run: programs beside the interpreters of sessions.
nsm_jobs_started counter env
    Jobs that were started.
nsm_jobs_ended counter env outcome
    Jobs that have ended, by outcome. Jobs that ended with their session are `lost`.

# Sessions
nsm_sessions gauge env state
    Sessions that have an owner. Spares are in nsm_pool_spares.
nsm_session_start_seconds histogram env kind
    Time to start a session or a spare, from the decision until it can run code.
nsm_session_start_failures counter env
    Starts of sessions and spares that failed.
nsm_sessions_ended counter env cause
    Sessions that had an owner and have ended.
nsm_sessions_taken_up counter env
    Sessions of an earlier supervisor that this one has taken up.

# GPUs of sessions
nsm_session_gpu_memory_bytes gauge env
    Memory on NVIDIA's GPUs that sessions have. Like the others of this part it is absent while no
    session has a GPU, and where nsm cannot read GPUs.
nsm_session_gpu_use_ratio gauge env
    Share of GPUs' time that sessions had in the last second: 1 for all of one GPU.
nsm_gpu_memory_used_bytes gauge gpu
    Memory of a GPU that all programs of the machine have together.
nsm_gpu_memory_size_bytes gauge gpu
    All memory of a GPU.
nsm_gpu_unreadable gauge
    1 while sessions have GPUs and these cannot be read (`nsm inspect` says why), else 0.

# Pool and templates
nsm_pool_takes counter env result
    Requests to the pool for a session: one was ready (hit), or none was (miss).
nsm_pool_spares gauge env state
    Spares that are ready, and spares that are starting.
nsm_pool_wanted gauge env
    Spares that the pool should keep ready.
nsm_pool_refill_seconds histogram env
    Time to start a spare, from the decision until it can be taken.
nsm_pool_budget_bytes gauge
    Memory that all spares together may use now. It is absent if there is no limit.
nsm_templates gauge
    Templates that run.
nsm_template_memory_bytes gauge
    Memory of all templates: the proportional share (PSS) of each process, whose pages its sessions
    share.

# Clients
nsm_clients gauge protocol
    Clients that are connected and have said who they are.
nsm_clients_connected counter protocol
    Clients that have connected.
nsm_connections gauge
    Connections to the socket, including those that have sent nothing yet.
nsm_connections_limit gauge
    Largest number of connections at a time.
nsm_client_bytes counter protocol direction
    Bytes from clients (in) and to them (out).

# Network of sessions
nsm_proxy_requests counter verdict
    Requests of code to the proxies of sessions, by verdict.
nsm_proxy_bytes counter direction
    Bytes from code to the network (out) and back (in), through the proxies of sessions.
nsm_proxy_connections gauge
    Open connections through the proxies of sessions.
nsm_secret_uses counter
    Requests into which the values of secrets were put.

# Ports of sessions
nsm_ports gauge
    Ports of sessions that are open on the host.
nsm_port_connections gauge
    Open connections to these ports.
nsm_port_connections_accepted counter
    Connections that were accepted.
nsm_port_connections_failed counter
    Connections that were reset because no program listened in the session, or because its agent did
    not answer.
nsm_port_bytes counter direction
    Bytes into sessions (in) and back (out) through these ports.
nsm_ports_not_open gauge
    Ports of the configuration that could not be opened (`nsm port` says why).

# Programs of the host
nsm_bridge_calls counter outcome
    Calls of the bridge that have ended, by outcome. `refused` and `unaudited` (no line could be
    written to the audit) mean that no program was started. `fault` is an error of nsm: the audit
    tells whether a program was started. All other outcomes are of programs that were started.
nsm_bridge_call_seconds histogram outcome
    Running time of bridge programs.
nsm_bridge_calls_running gauge
    Calls of the bridge that are in progress, including those that are about to be refused.
nsm_bridge_audit_failing gauge
    1 while calls of the bridge are refused because they cannot be written to the audit (`nsm
    status` says why), else 0.

# The supervisor itself
nsm_build_info gauge version python
    Always 1; the labels say which nsm and which Python run.
nsm_uptime_seconds gauge
    Time since this supervisor started, or took the place of the one before.
nsm_restarts_survived counter
    Restarts of the supervisor that the present sessions have survived.
nsm_sessions_not_kept gauge
    1 while sessions would not survive the end of this supervisor (`nsm status` says why), else 0.
nsm_audit_lines_lost counter
    Lines of the audit that could not be written, for example because the disk was full.
nsm_draining gauge
    1 while the supervisor drains and refuses new code, else 0.
nsm_event_loop_busy_seconds histogram
    Duration of one pass of the event loop, during which all else waits. Passes are sampled, up to
    ten times a second.
nsm_configuration_reloads counter
    Number of times that the configuration was read again.
nsm_memory_pressure counter
    Number of times that the machine was short of memory and the supervisor ended spares or idle
    sessions.
nsm_memory_pressure_sessions_ended counter
    Idle sessions that were asked to end because the machine was short of memory.
nsm_events counter
    Events that were published (`nsm events` shows them).
process_cpu_seconds counter
    Processor time of the supervisor's own process, user and system.
process_resident_memory_bytes gauge
    Resident memory of the supervisor's own process.
process_virtual_memory_bytes gauge
    Virtual memory of the supervisor's own process.
process_start_time_seconds gauge
    Start time of the supervisor's process, in Unix time.
process_open_fds gauge
    Descriptors that the supervisor has open.
process_max_fds gauge
    Largest number of descriptors that the supervisor may have open.
"""
"""Headings of the page; below each its metrics: name, kind, labels, and indented the meaning."""


class Family(NamedTuple):
    """A metric, whatever the values of its labels."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    group: str

    @property
    def exported_name(self) -> str:
        """Name in reports to Prometheus."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _families() -> Iterator[Family]:
    for section in _TABLE.split("\n\n"):
        heading, *lines = section.strip().split("\n")
        for number, line in enumerate(lines):
            if not line.startswith(" "):
                name, kind, *labels = line.split()
                meaning = takewhile(lambda each: each.startswith(" "), lines[number + 1 :])
                text = " ".join(each.strip() for each in meaning)
                yield Family(
                    name, cast("Kind", kind), tuple(labels), text, heading.removeprefix("# ")
                )


FAMILIES: Mapping[str, Family] = {family.name: family for family in _families()}
"""All metrics by name, in the order of the page."""
