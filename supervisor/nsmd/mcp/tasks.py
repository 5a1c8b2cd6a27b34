"""Jobs as tasks of MCP's extension, for clients that take tasks. HEAVY: imports `mcp`.

A client that declares the extension gets a task in place of a job's id, polls it, and may cancel
it. See https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, RequestParams
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY

from nsm.wire.errors import BadRequestError, NsmError
from nsmd.agent_link.job_frames import JobFacts
from nsmd.mcp import jobs, wire
from nsmd.mcp.arguments import JobId, job_id
from nsmd.mcp.callers import Context
from nsmd.sessions.jobs import change_job
from nsmd.sessions.session import Session

EXTENSION = "io.modelcontextprotocol/tasks"

POLL_MS = 1000
"""Time between two polls that clients are advised to keep."""


class TaskParams(RequestParams):
    """Parameters of all three methods."""

    task_id: str


def are_taken(ctx: Context) -> bool:
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
        "statusMessage": jobs.state_of(job, facts),
        "createdAt": (now - timedelta(seconds=facts.age_s)).isoformat(),
        "lastUpdatedAt": now.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


class Tasks:
    """Methods of the extension.

    Args:
        find: finds the session of a client's job; raises `NsmError` if there is none.
        grace_s: seconds between the interrupt and the kill of a cancelled task.
        max_bytes: largest output in a result.
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
            facts = await jobs.look(session, job)
            task = task_of(job, facts)
            if task["status"] == "completed":
                # The same key, so the same output each time.
                reply = await jobs.tell(session, job, key="task", max_bytes=self._max_bytes)
                task["result"] = wire.result_map(reply)
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
        if not are_taken(ctx):
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
