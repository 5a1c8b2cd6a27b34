"""Operation `inspect`: all facts about one session, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, assert_never

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError, UnknownSessionError
from nsm.wire.jobs import JobInfo
from nsm.wire.operation import encode
from nsm.wire.transcripts import (
    ExecutionEnd,
    ExecutionStart,
    FreshRun,
    JobEnd,
    JobStart,
    OutputPiece,
    SessionStart,
)
from nsm.wire.tuples import NamedTuple
from nsmd.control.call import Call
from nsmd.control.ops import environments
from nsmd.control.ops.network import decision_row, listed_ports, port_addresses
from nsmd.host import processes
from nsmd.jail.limits import Confinement
from nsmd.manager.jobs import list_jobs
from nsmd.manager.session_index import last_row, live_row
from nsmd.model.policy import Policy
from nsmd.model.values import Enforcement, has_nvidia
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import Transcript

MAX_PROCESSES = 200
"""Largest number of processes in the answer; the session's row has their total."""

MAX_DECISIONS = 20
"""Largest number of decisions about its network, the latest."""

MAX_RUNS = 20
"""Largest number of executions in the answer, the latest. `nsm logs` has the rest, with their
output.
"""

JOBS_TIMEOUT_S = 2.0
"""Time for the agent to list jobs. It takes a millisecond, unless it is stopped."""

MAX_CODE_CHARS = 200

RunOutcome = Literal["ok", "error", "timeout", "interrupted", "lost", "running"]


async def inspect(call: Call, target: str) -> dict[str, Any]:
    """Answer with a session's row, its policy, the kernel's present facts about its jail, and what
    it ran.

    A confined connection only gets what code in the session could find out, too. Only connections
    with the right `manage` get what the session ran, and ended sessions.
    """
    try:
        session = call.find(target)
    except UnknownSessionError:
        if not call.manages:
            raise
        transcript, ending = call.services.run_service.transcript(target, call.here())
        if ending is None:
            return _past(transcript)
        session = ending
    seen = await trio.to_thread.run_sync(_look, session.pid, session.confinement)
    gpu_use = await call.services.run_service.lister.gpu_use([session])
    now = trio.current_time()
    network = session.network
    recent = network.decisions_since(max(0, network.made - MAX_DECISIONS))
    return {
        "session": live_row(session, seen.usage, now, gpu_use=gpu_use.get(session.pid))._asdict()
        | {"ports": [] if call.confined else encode(port_addresses(call, session.id))},
        "policy": _policy(session, sources=not call.confined),
        "network": network.facts(),
        "confinement": None if call.confined else seen.confinement,
        "kernel": None if seen.kernel is None or call.confined else asdict(seen.kernel),
        "contradictions": _contradictions(session, seen.kernel),
        "start": None if call.confined else start_of(session, call.services.cold_starts),
        "slow_imports": []
        if call.confined
        else environments.slow_imports(session.spec.environment, call.services),
        "lifetime": lifetime_of(session),
        "end_reason": session.end_reason or None,
        "processes": [asdict(each) for each in seen.processes] if call.manages else [],
        "executions": runs_of(session.transcript) if call.manages else [],
        "decisions": [decision_row(each, now) for each in recent] if call.manages else [],
        "jobs": await _jobs(session) if call.manages else [],
        "ports": encode(listed_ports(call, session.id)) if call.manages else [],
        "gpus": await _gpus(call, session),
    }


async def _gpus(call: Call, session: Session) -> dict[str, Any] | None:
    """Describe the GPUs of the machine, for a session that has some."""
    if call.confined or not has_nvidia(session.spec.environment.shown_devices):
        return None
    reading = await call.services.run_service.lister.gpus.read()
    return {"gpus": [asdict(each) for each in reading.gpus], "problem": reading.problem or None}


async def _jobs(session: Session) -> list[dict[str, Any]]:
    """List the last jobs of a session, if its agent answers."""
    if not session.offers("jobs"):
        return []
    with trio.move_on_after(JOBS_TIMEOUT_S), suppress(NsmError):
        found = await list_jobs(session)
        ended = [job for job in found if not job.running]
        kept = [*ended[-MAX_RUNS:], *(job for job in found if job.running)]
        return [JobInfo(*job)._asdict() for job in sorted(kept, key=lambda job: int(job.job))]
    return []


def _past(transcript: Transcript) -> dict[str, Any]:
    """Describe an ended session."""
    return {
        "session": last_row(transcript, trio.current_time())._asdict(),
        "policy": None,
        "network": None,
        "confinement": None,
        "kernel": None,
        "contradictions": [],
        "start": None,
        "slow_imports": [],
        "lifetime": None,
        "end_reason": transcript.end_reason or None,
        "processes": [],
        "executions": runs_of(transcript),
        "decisions": [],
        "jobs": [],
        "ports": [],
        "gpus": None,
    }


class _Seen(NamedTuple):
    """Facts of the system about a session's jail; None without a jail."""

    usage: processes.Usage | None
    kernel: KernelFacts | None
    confinement: dict[str, Any] | None
    processes: list[processes.JailProcess]


def _look(pid: int, confinement: Confinement | None) -> _Seen:
    """Read /proc and the control group; blocks."""
    kept = None if confinement is None else confinement.facts()
    if not pid:  # there is no jail yet, or none between executions
        return _Seen(None, None, kept, [])
    return _Seen(
        processes.usage_of([pid]).get(pid),
        kernel_facts(pid),
        kept,
        processes.processes_of(pid, MAX_PROCESSES),
    )


def _policy(session: Session, *, sources: bool) -> dict[str, Any] | None:
    return None if session.policy is None else session.policy.as_json(sources=sources)


def _contradictions(session: Session, facts: KernelFacts | None) -> list[str]:
    policy, confinement = session.policy, session.confinement
    if policy is None:
        known = session.jail is None or not session.taken_up
        return [] if known else ["Its policy cannot be read: another version of nsm wrote it."]
    found = [] if facts is None else list(contradictions(policy, facts))
    if confinement is not None:
        found += weaker(policy, confinement.enforcement)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One process as /proc shows it (proc_pid_status(5), proc_pid_cgroup(5)).

    Attributes:
        uid: its user on the host.
        capabilities: union of all its sets, hexadecimal; zeroes for none.
        no_new_privs: as in `nsmd.model.policy.Rights`.
        system_call_filter: True if its system calls go through a filter.
    """

    uid: int
    capabilities: str
    no_new_privs: bool
    system_call_filter: bool
    cgroup: str


def kernel_facts(pid: int, proc: str = "/proc") -> KernelFacts | None:
    """Read the facts about a process; None if it is gone.

    Args:
        proc: directory of procfs; other than `/proc` in tests only.
    """
    try:
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file)
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            groups = file.read().splitlines()
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        capabilities = 0
        for name in sets:
            capabilities |= int(status[name], 16)
        return KernelFacts(
            uid=int(status["Uid"].split()[1]),
            capabilities=f"{capabilities:016x}",
            no_new_privs=int(status["NoNewPrivs"]) == 1,
            system_call_filter=int(status.get("Seccomp", "0")) != 0,
            cgroup=next((line[3:] for line in groups if line.startswith("0::")), ""),
        )
    except (OSError, KeyError, ValueError):
        return None


def contradictions(policy: Policy, facts: KernelFacts) -> Iterator[str]:
    """Compare the policy with the facts; yield sentences for people."""
    rights = policy.rights
    if not policy.complete:
        return
    if int(facts.capabilities, 16) and not rights.capabilities:
        yield f"The jail has capabilities ({facts.capabilities}), and should have none."
    if rights.no_new_privs and not facts.no_new_privs:
        yield "Programs in the jail can gain privileges, and should not."
    if rights.system_call_filter and not facts.system_call_filter:
        yield "System calls are not filtered, and should be."
    if facts.uid == 0:
        yield "The jail runs as the host's root, and should not."


def weaker(policy: Policy, kept: Enforcement) -> Iterator[str]:
    """Yield sentences about limits that are enforced in another way than the policy says.

    Args:
        kept: the enforcement as read back.
    """
    limits = policy.limits
    for what, promised, real in (
        ("memory", limits.memory_by, kept.memory),
        ("processes", limits.processes_by, kept.processes),
        ("processor time", limits.cpu_by, kept.cpu),
    ):
        if promised != real:
            why = f": {kept.why}" if kept.why else ""
            yield f"The limit on {what} is kept by {real}, and should be by {promised}{why}."


def start_of(session: Session, cold_starts: Mapping[str, str]) -> dict[str, Any]:
    """Describe how a session started.

    Args:
        cold_starts: for each environment, why its last session was no fork.
    """
    kind = session.policy.kind if session.policy is not None else None
    cold = kind is not None and "forked" not in kind
    # Another supervisor started a session that was taken over, so this one's clock does not help.
    known = not session.taken_up and session.ready_s is not None
    return {
        "kind": kind,
        "why_cold": cold_starts.get(session.spec.environment.name) if cold else None,
        "start_s": (session.ready_s or 0.0) - session.born_s if known else None,
        "spare_s": session.created_s - session.born_s if known else None,
        "taken_up": session.taken_up,
    }


def lifetime_of(session: Session) -> dict[str, Any] | None:
    """Time limits after which a session ends by itself; None for a spare."""
    tenancy = session.tenancy
    if tenancy is None:
        return None
    return {"idle_timeout_s": tenancy.idle_timeout_s, "max_lifetime_s": tenancy.max_lifetime_s}


def runs_of(transcript: Transcript) -> list[dict[str, Any]]:
    """Last executions of a session, oldest first, without those that were dropped."""
    runs: list[dict[str, Any]] = []
    for entry in transcript.read(last=MAX_RUNS):
        match entry:
            case ExecutionStart():
                runs.append(_begun(entry))
            case ExecutionEnd():
                runs[-1] |= _ended(entry)
            case SessionStart() | OutputPiece() | JobStart() | JobEnd() | FreshRun() | None:
                pass
            case _:
                assert_never(entry)
    return runs


def _begun(start: ExecutionStart) -> dict[str, Any]:
    return {
        "number": start.number,
        "execution_id": start.execution_id,
        "client": start.client,
        "started_at": start.started_at,
        "outcome": "running",
        "exit_code": None,
        "duration_s": None,
        "why": "",
        "code": start.code[:MAX_CODE_CHARS],
        "code_omitted": start.code_omitted + max(0, len(start.code) - MAX_CODE_CHARS),
    }


def _ended(end: ExecutionEnd) -> dict[str, Any]:
    why = end.restart_reason if end.error is None else end.error.message
    return {
        "outcome": _outcome(end),
        "exit_code": end.exit_code,
        "duration_s": end.duration_s,
        "why": why,
    }


def _outcome(end: ExecutionEnd) -> RunOutcome:
    if end.error is not None:
        return "lost"
    if end.timed_out:
        return "timeout"
    if end.interrupted:
        return "interrupted"
    return "error" if end.exit_code else "ok"
