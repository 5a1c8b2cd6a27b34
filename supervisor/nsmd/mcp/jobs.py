"""Jobs for models: code that goes on beside a session's interpreter, and what it has printed.

A call of `run` starts a job, and others ask about it by its id. The session's agent notes how much
of its output was told, so nothing is told twice or left out, whichever supervisor asks.

A client that declares MCP's extension gets a task in place of a job's id, polls it, and may cancel
it. See https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import trio
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, RequestParams
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, NsmError, OverloadedError, UnknownJobError
from nsm.wire.operation import PIECE_BYTES
from nsmd.agent_link.frames import JobFacts
from nsmd.manager.jobs import (
    MAX_WAIT_S,
    SessionForJob,
    await_end,
    change_job,
    read_on,
    start_code_job,
)
from nsmd.manager.run_service import RunService
from nsmd.mcp import messages
from nsmd.mcp.clients import Context
from nsmd.mcp.render import META_KEY, ToolReply
from nsmd.mcp.run_tool import JobId, job_id
from nsmd.mcp.text import clean, settled, size
from nsmd.sessions.session import Session

STOP_MARGIN_S = 5.0
"""Time that a stopped job gets to end, beyond the grace of the ladder."""


async def start_job(run_service: RunService, found: SessionForJob) -> ToolReply:
    """Start the code of a call as a job. Raises `NsmError`."""
    try:
        facts, note = await start_code_job(run_service, found)
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


async def report_on_job(
    session: Session,
    job: JobId,
    *,
    key: str | None,
    wait_s: float = 0.0,
    stop_grace_s: float | None = None,
    max_bytes: int,
) -> ToolReply:
    """Tell what a job has printed since it was last asked about, and its state.

    Raises `NsmError`.

    Args:
        key: a call that is repeated with the same key is told the same again.
        max_bytes: most output, as far as an agent's answer has room; a later call is told the rest.
    """
    if stop_grace_s is not None:
        await change_job(session, "job_stop", job.number, grace_s=stop_grace_s)
        wait_s = max(wait_s, stop_grace_s + STOP_MARGIN_S)
    deadline_s = trio.current_time() + wait_s
    while (left_s := deadline_s - trio.current_time()) > 0:
        patience_s = min(left_s, MAX_WAIT_S)
        if not (await await_end(session, job.number, wait_s=patience_s)).running:
            break
    reader = uuid.uuid4().hex if key is None else key
    answer = await read_on(session, job.number, reader=reader, count=min(max_bytes, PIECE_BYTES))
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


async def facts_about_job(session: Session, job: JobId) -> JobFacts:
    """Look at a job. Raises `NsmError`."""
    return await await_end(session, job.number, wait_s=0.0)


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


EXTENSION = "io.modelcontextprotocol/tasks"

POLL_MS = 1000
"""Time between two polls that clients are advised to keep."""


class TaskParams(RequestParams):
    """Parameters of all three methods."""

    task_id: str


def takes_tasks(ctx: Context) -> bool:
    """Return whether the client of a request takes tasks."""
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and capabilities.extensions and EXTENSION in capabilities.extensions)


def task_of(job: JobId, facts: JobFacts) -> dict[str, Any]:
    """Describe a job as a task, without its result."""
    now = datetime.now(UTC)
    status = "working" if facts.running else "cancelled" if facts.stopped else "completed"
    return {
        "taskId": str(job),
        "status": status,
        "statusMessage": state_of(job, facts),
        "createdAt": (now - timedelta(seconds=facts.age_s)).isoformat(),
        "lastUpdatedAt": now.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


class Tasks:
    """Methods of the extension.

    Args:
        grace_s: seconds between the interrupt and the kill of a cancelled task.
    """

    def __init__(
        self,
        find: Callable[[Context, JobId], Awaitable[Session]],
        grace_s: Callable[[], float],
        max_bytes: int,
    ) -> None:
        self._find = find
        self._grace_s = grace_s
        self._max_bytes = max_bytes

    def add_to(self, server: Server[Any]) -> None:
        """Have a server announce and serve the extension."""
        server.extensions[EXTENSION] = {}
        for method, handler in (
            ("tasks/get", self._get),
            ("tasks/cancel", self._cancel),
            ("tasks/update", self._update),
        ):
            server.add_request_handler(method, TaskParams, handler)

    async def _get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        session, job = await self._named(ctx, params.task_id)
        try:
            facts = await facts_about_job(session, job)
            task = task_of(job, facts)
            if task["status"] == "completed":
                # The same key, so the same output each time.
                reply = await report_on_job(session, job, key="task", max_bytes=self._max_bytes)
                task["result"] = messages.result_map(reply)
        except NsmError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        return task

    async def _cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        session, job = await self._named(ctx, params.task_id)
        try:
            await change_job(session, "job_stop", job.number, grace_s=self._grace_s())
        except NsmError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        return {}

    async def _update(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """Take answers to questions, which no task ever asks."""
        await self._named(ctx, params.task_id)
        return {}

    async def _named(self, ctx: Context, task_id: str) -> tuple[Session, JobId]:
        if not takes_tasks(ctx):
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"Only clients that declare the extension {EXTENSION} may ask about tasks.",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        try:
            job = job_id(task_id, None)
            if job is None:
                raise BadRequestError(f"There is no task {task_id[:80]!r}.")
            return await self._find(ctx, job), job
        except NsmError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
