"""Programs that clients start in sessions: the session, and what others are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError
from nsmd.agent_link.job_frames import JobFacts, JobFrame, JobOutputFrame
from nsmd.manager import code_fences
from nsmd.model.limits import check_code
from nsmd.model.values import RunRequest
from nsmd.sessions.jobs import JobStarted, start_job
from nsmd.sessions.session import Session

if TYPE_CHECKING:
    from nsmd.manager.run_service import RunService

ENVIRONMENT = "bash"
"""Environment of a session that is made for a program where nothing says which: any will do."""


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
    request, live, environment = run_service.place(request, None, otherwise=ENVIRONMENT)
    if live is not None:
        return SessionForJob(session=live, request=request, created=False, replaced=None)
    if request.again:
        raise run_service.retries.job_of_gone(request)
    session, replaced = run_service.session_for(request, environment)
    return SessionForJob(session=session, request=request, created=True, replaced=replaced)


async def start_in(
    run_service: RunService,
    found: SessionForJob,
    command: str,
    options: Mapping[str, Any],
    wait_s: float = 0.0,
) -> JobFrame | JobOutputFrame:
    """Start a program in a session.

    Args:
        command: the program, for people.
        options, wait_s: arguments of `start_job`.

    Raises:
        JobError: it cannot be started.
        NsmError: the session has ended.
    """
    session = found.session
    try:
        answer = await start_job(session, options, wait_s)
    finally:
        run_service.session_manager.pool.answered(session)
    if not answer.known:
        started = JobStarted(found.request.client, answer.job, command)
        run_service.events.publish("job_started", session=session.id, subject=(session, started))
    return answer


class CodeJobs:
    """Jobs that run code of models: how they are started and found."""

    def __init__(self, run_service: RunService) -> None:
        self._run_service = run_service

    @property
    def grace_s(self) -> float:
        """Seconds between the interrupt of a job that is stopped and its kill."""
        return self._run_service.session_manager.grace_s

    def session_for_job(self, request: RunRequest) -> SessionForJob:
        """Find or make the session for a job, as for code.

        Raises:
            NsmError: the request cannot be carried out; the type says why.
        """
        return session_for_job(self._run_service, request)

    def session(self, scope: str, name: str) -> Session | None:
        """Find the live session of that name."""
        return self._run_service.named(scope, name)

    async def start(self, found: SessionForJob) -> tuple[JobFacts, str]:
        """Start the code of the request that found the session.

        Returns:
            The job, and how the code was changed before; empty if it was not.

        Raises:
            NsmError: it cannot be started.
        """
        request, interpreter = found.request, found.session.spec.environment.interpreter
        check_code(request.code)
        code, note = code_fences.take_off(request.code, interpreter)
        options: dict[str, Any] = {
            "interpreter": interpreter,
            "code": code,
            "grace_s": self.grace_s,
        }
        if request.timeout_s is not None:
            options["timeout_s"] = request.timeout_s
        if request.execution_id is not None:
            options["key"] = f"{request.client.scope} {request.execution_id}"
        return (await start_in(self._run_service, found, code, options)).job, note
