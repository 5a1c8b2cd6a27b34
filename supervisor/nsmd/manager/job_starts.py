"""Programs that clients start in sessions: the session, and what others are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError
from nsmd.agent_link.frames import JobFacts, JobFrame, JobOutputFrame
from nsmd.agent_link.requests import Question
from nsmd.host.event_loop import Timer
from nsmd.manager.run_requests import check_runs_code, without_fence
from nsmd.manager.run_service import RunService
from nsmd.model.limits import check_code
from nsmd.model.values import RunRequest
from nsmd.sessions.jobs import ANSWER_TIMEOUT_S, JobStarted, begin_job, job_begun, no_answer
from nsmd.sessions.session import Session

ENVIRONMENT = "bash"
"""Environment of a session that is made for a program where nothing says which: any will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForJob:
    """A session for a program.

    Attributes:
        created: it was made for the program; `replaced` says how an earlier one of its name ended.
    """

    session: Session
    request: RunRequest
    created: bool
    replaced: str | None


def session_for_job(run_service: RunService, request: RunRequest) -> SessionForJob:
    """Find or make the session for a program, as for code."""
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


class ProgramStart:
    """A program that is being started in a session, once that is ready. No task waits for it."""

    def __init__(
        self,
        run_service: RunService,
        found: SessionForJob,
        command: str,
        options: Mapping[str, Any],
        wait_s: float,
        result: Callable[[JobFrame | JobOutputFrame], Any],
    ) -> None:
        self._run_service = run_service
        self._found = found
        self._command = command
        self._options = options
        self._wait_s = wait_s
        self._make_result = result
        self._question: Question | None = None
        self._result: Any = None
        self._tell: Callable[[Any], None] | None = None
        self._patience = Timer(run_service.session_manager.timers, self._late)
        found.session.requests.when_settled(self._begin)

    def tell(self, function: Callable[[Any], None]) -> None:
        """Call a function with the result or the error, once; it must not raise."""
        if self._result is None:
            self._tell = function
        else:
            function(self._result)

    def interrupt(self) -> None:
        """Wait no longer for the answer; the program may be started all the same."""
        self._settle(
            BadRequestError(
                "The request was cancelled; the program may have been started.",
                hint="`nsm jobs SESSION` lists what runs.",
            )
        )

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._tell = None

    async def wait(self) -> Any:
        """Wait for the result."""
        settled = trio.Event()
        self.tell(lambda _: settled.set())
        await settled.wait()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def _begin(self) -> None:
        session = self._found.session
        try:
            folder = session.spec.environment.directory
            options = {"cwd": folder, **self._options} if folder else self._options
            self._question = begin_job(session, options, self._wait_s)
        except Exception as error:  # noqa: BLE001  # told to whoever waits
            self._settle(error)
            return
        self._patience.arm(self._wait_s + ANSWER_TIMEOUT_S)
        self._question.when_answered(self._begun)

    def _begun(self) -> None:
        """Take the answer, or its absence."""
        self._patience.close()
        try:
            assert self._question is not None, "it was asked"
            answer = job_begun(self._found.session, self._question)
            if not answer.known:
                self._record(answer.job)
            self._settle(self._make_result(answer))
        except Exception as error:  # noqa: BLE001  # as above
            self._settle(error)

    def _record(self, job: JobFacts) -> None:
        """Record the start: before the end, and also if nobody waits any more."""
        session, client = self._found.session, self._found.request.client
        session.transcript.job_started(client.name, job, self._command)
        started = JobStarted(client, job, self._command)
        self._run_service.events.publish(
            "job_started", session=session.id, subject=(session, started)
        )

    def _late(self) -> None:
        self._settle(no_answer(self._wait_s))

    def _settle(self, result: Any) -> None:
        if self._result is not None:
            return
        self._result = result
        self._run_service.session_manager.pool.answered(self._found.session)
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(result)


def session_for_code_job(run_service: RunService, request: RunRequest) -> SessionForJob:
    """Find or make the session for a job that runs code."""
    found = session_for_job(run_service, request)
    check_runs_code(found.session.spec.environment)
    return found


async def start_code_job(run_service: RunService, found: SessionForJob) -> tuple[JobFacts, str]:
    """Start the code of the request; returns the job, and how the code was changed before."""
    request, interpreter = found.request, found.session.spec.environment.interpreter
    check_code(request.code)
    code, note = without_fence(request.code, interpreter)
    options: dict[str, Any] = {
        "interpreter": interpreter,
        "code": code,
        "grace_s": run_service.session_manager.grace_s,
    }
    if request.timeout_s is not None:
        options["timeout_s"] = request.timeout_s
    if request.execution_id is not None:
        options["key"] = f"{request.client.scope} {request.execution_id}"
    start = ProgramStart(run_service, found, code, options, 0.0, lambda begun: begun.job)
    facts: JobFacts = await start.wait()
    return facts, note
