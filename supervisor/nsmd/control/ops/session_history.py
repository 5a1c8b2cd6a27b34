"""History of a session, for people: how it started, what it ran, when it will end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, assert_never

from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece, SessionStart
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import Transcript

MAX_RUNS = 20
"""Largest number of executions in the answer, the latest. `nsm logs` has the rest, with their
output.
"""

MAX_CODE_CHARS = 200

RunOutcome = Literal["ok", "error", "timeout", "interrupted", "lost", "running"]


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
    """When a session will end by itself; None for a spare."""
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
            case SessionStart() | OutputPiece() | None:
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
