"""Jobs for models: code that goes on beside a session's interpreter, and what it has printed.

A call of `run` starts a job, and others ask about it by its id. The session's agent notes how much
of its output was told, so nothing is told twice or left out, whichever supervisor asks.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.errors import NsmError, OverloadedError, UnknownJobError
from nsm.wire.files import PIECE_BYTES
from nsmd.agent_link.job_frames import JobFacts
from nsmd.manager.job_starts import CodeJobs, SessionForJob
from nsmd.mcp.arguments import JobId
from nsmd.mcp.render import META_KEY, ToolReply
from nsmd.mcp.text import clean, settled, size
from nsmd.sessions import jobs
from nsmd.sessions.session import Session

STOP_MARGIN_S = 5.0
"""Time that a stopped job gets to end, beyond the grace of the ladder."""


async def start(code_jobs: CodeJobs, found: SessionForJob) -> ToolReply:
    """Start the code of a call as a job.

    Args:
        found: session of the job, with the request.

    Raises:
        NsmError: it cannot be started.
    """
    try:
        facts, note = await code_jobs.start(found)
    except OverloadedError as error:
        hint = "A call with `job` and `stop` ends one."
        raise OverloadedError(error.message, hint=hint, data=error.data) from None
    session = found.session
    job = JobId(session.name or session.id, facts.job)
    notes = [note] if note else []
    if found.replaced is not None:
        notes.append(f"new session: the earlier one of this name {found.replaced}")
    notes.append(f"job {job} runs; a call with `job` tells what it has printed since")
    return replace(_reply("", notes, job, facts), started=(job, facts))


async def tell(
    session: Session,
    job: JobId,
    *,
    key: str | None,
    wait_s: float = 0.0,
    stop_grace_s: float | None = None,
    max_bytes: int,
) -> ToolReply:
    """Tell what a job has printed since it was last asked about, and its state.

    Args:
        key: a call that is repeated with the same key is told the same again.
        wait_s: seconds to wait for the end of the job.
        stop_grace_s: stop the job, and kill it after so many seconds; None to let it run.
        max_bytes: most output, as far as an agent's answer has room; a later call is told the rest.

    Raises:
        NsmError: there is no such job, or its session has ended.
    """
    if stop_grace_s is not None:
        await jobs.change_job(session, "job_stop", job.number, grace_s=stop_grace_s)
        wait_s = max(wait_s, stop_grace_s + STOP_MARGIN_S)
    deadline_s = trio.current_time() + wait_s
    while (left_s := deadline_s - trio.current_time()) > 0:
        patience_s = min(left_s, jobs.MAX_WAIT_S)
        if not (await jobs.await_end(session, job.number, wait_s=patience_s)).running:
            break
    reader = uuid.uuid4().hex if key is None else key
    answer = await jobs.read_on(
        session, job.number, reader=reader, count=min(max_bytes, PIECE_BYTES)
    )
    more = answer.job.output_bytes - answer.offset - len(answer.data)
    notes: list[str] = []
    if answer.missing:
        notes.append(
            f"{size(answer.missing)} before this are lost: the job prints more than is kept"
        )
    if more > 0:
        notes.append(f"{size(more)} of output follow: call again")
    notes.append(state_of(job, answer.job))
    return _reply(answer.data.decode(errors="replace"), notes, job, answer.job)


async def look(session: Session, job: JobId) -> JobFacts:
    """Look at a job.

    Raises:
        NsmError: there is no such job.
    """
    return await jobs.await_end(session, job.number, wait_s=0.0)


def no_job(job: JobId) -> NsmError:
    """Make the error for a job whose session is gone."""
    return UnknownJobError(
        f"There is no session {job.session!r}, and so no job {job}.",
        hint="Jobs end with their session. Start the work again with `background`.",
    )


def state_of(job: JobId, facts: JobFacts) -> str:
    """Describe the state of a job."""
    if facts.running:
        return f"job {job} runs, for {_seconds(facts.age_s)} now"
    how = f"exit code {facts.exit_code}"
    if facts.stopped:
        how += ", it was stopped"
    elif facts.timed_out:
        how += ", at its time limit"
    return f"job {job} has ended after {_seconds(facts.duration_s)}: {how}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _reply(output: str, notes: list[str], job: JobId, facts: JobFacts) -> ToolReply:
    text = settled(clean(output))
    if text and not text.endswith("\n"):
        text += "\n"
    meta: Mapping[str, Any] = {
        "job": str(job),
        "running": facts.running,
        "exit_code": facts.exit_code,
    }
    return ToolReply(
        text=text + "\n".join(f"[{note}]" for note in notes),
        is_error=bool(facts.exit_code) and not facts.stopped,
        meta={META_KEY: meta},
    )
