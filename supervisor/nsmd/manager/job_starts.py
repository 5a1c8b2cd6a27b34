"""Programs that clients start in sessions: the session, and what others are told."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError
from nsmd.agent_link.job_frames import JobFrame, JobOutputFrame
from nsmd.manager.run_service import RunService
from nsmd.model.values import RunRequest
from nsmd.sessions.jobs import JobStarted, start_job
from nsmd.sessions.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForJob:
    """A session for a program.

    Attributes:
        request: the request that found it.
        created: it was made for the program; `replaced` says how an earlier one of its name ended.
    """

    session: Session
    request: RunRequest
    created: bool
    replaced: str | None


def session_for_job(run_service: RunService, request: RunRequest) -> SessionForJob:
    """Find or make the session for a program, as for code.

    Args:
        request: it has a session name, and no code.

    Raises:
        NsmError: the request cannot be carried out; the type says why.
    """
    if request.session is None:
        raise BadRequestError(
            "A job needs a session: it belongs to one, and is found by its name.",
            hint="Name one, or say `new` for a session with a fresh name.",
        )
    request, live, environment = run_service.place(request, None)
    if live is not None:
        return SessionForJob(session=live, request=request, created=False, replaced=None)
    if request.again:
        raise run_service.retries.job_of_gone(request)
    session, replaced = run_service.session_for(request, environment)
    return SessionForJob(session=session, request=request, created=True, replaced=replaced)


async def start_in(
    run_service: RunService,
    found: SessionForJob,
    argv: Sequence[str],
    options: Mapping[str, Any],
    *,
    wait_s: float,
) -> JobFrame | JobOutputFrame:
    """Start a program in a session.

    Args:
        options, wait_s: further arguments of `start_job`.

    Raises:
        JobError: it cannot be started.
        NsmError: the session has ended.
    """
    session = found.session
    try:
        answer = await start_job(session, {**options, "argv": list(argv)}, wait_s)
    finally:
        run_service.session_manager.pool.answered(session)
    if not answer.known:
        started = JobStarted(found.request.client, answer.job, shlex.join(argv))
        run_service.events.publish("job_started", session=session.id, subject=(session, started))
    return answer
