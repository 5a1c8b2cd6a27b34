"""Jobs of a session: programs beside its interpreter, which its agent starts and keeps; and the
session for one that a client starts.

The agent is the only one that knows them, so they survive a restart of the supervisor. Answers are
checked against the questions; an agent that answers something else ends its own session.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError, JobError, OverloadedError, UnknownJobError
from nsmd.agent_link.frames import (
    JobErrorFrame,
    JobFacts,
    JobFrame,
    JobOutputFrame,
    JobsFrame,
    JobWrittenFrame,
)
from nsmd.agent_link.requests import AnswerFrame, NoAnswerError, Question
from nsmd.host.event_loop import Timer
from nsmd.manager.run_requests import check_runs_code, without_fence
from nsmd.manager.run_service import RunService
from nsmd.model.limits import check_code
from nsmd.model.values import ClientIdentity, RunRequest
from nsmd.sessions.session import Session

Kind = TypeVar("Kind", JobFrame, JobsFrame, JobOutputFrame, JobWrittenFrame)

ANSWER_TIMEOUT_S = 30.0
"""Time for an answer, beside what the agent was asked to wait."""

MAX_START_WAIT_S = 1.0
"""Longest time that a start waits for output: until then nobody is told of it."""

MAX_WAIT_S = 60.0
"""Longest time that an agent waits for something to tell."""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A program that a client has started.

    Attributes:
        command: its arguments as a line of shell.
    """

    client: ClientIdentity
    job: JobFacts
    command: str


def begin_job(session: Session, arguments: Mapping[str, Any], wait_s: float) -> Question:
    """Ask a session's agent, which is ready, to start a program; `job_begun` reads the answer.

    Args:
        arguments: as in `job_start` of the agent protocol. With a `key` that the agent knows, it
            starts nothing, and tells of the job that it started before.
        wait_s: seconds to wait for its first output or its end; 0 for an answer without output.
    """
    frame = {"type": "job_start", "id": session.requests.new_id(), **arguments}
    if wait_s:
        frame |= {"wait_s": wait_s, "hold": True}
    kind = JobOutputFrame if wait_s else JobFrame
    return session.requests.begin("jobs", frame, (kind, JobErrorFrame))


def job_begun(session: Session, question: Question) -> JobFrame | JobOutputFrame:
    """Read the answer to `begin_job`."""
    answer = _checked(session, question.result())
    assert isinstance(answer, JobFrame | JobOutputFrame), "nothing else was asked for"
    if not answer.known:
        session.jobs_run({*session.jobs, answer.job.job})
    return answer


async def read_job(
    session: Session, job: str, *, offset: int, count: int, wait_s: float, hold: bool
) -> JobOutputFrame:
    """Read output of a job, or wait for some.

    Args:
        count: bytes at most; 0 to wait for the end only.
        hold: drop nothing from the offset on for a while, even if the job has to wait.
    """
    frame = {"type": "job_read", "job": job, "offset": offset, "bytes": count, "hold": hold}
    answer = await _ask(session, {**frame, "wait_s": wait_s}, JobOutputFrame, wait_s)
    if len(answer.data) > count or answer.offset - answer.missing != offset:
        raise session.distrust("other output of a job came than was asked for")
    return answer


async def read_on(session: Session, job: str, *, reader: str, count: int) -> JobOutputFrame:
    """Read what follows the output that was read on before.

    Args:
        reader: who reads; with a name that has read on before, the same is read again.
        count: bytes at most; a character is not cut.
    """
    frame = {"type": "job_read", "job": job, "reader": reader, "bytes": count}
    answer = await _ask(session, frame, JobOutputFrame)
    if len(answer.data) > count:
        raise session.distrust("more output of a job came than was asked for")
    return answer


async def await_end(session: Session, job: str, *, wait_s: float) -> JobFacts:
    """Wait for the end of a job; returns what it is like then, or when the time is over."""
    read = await read_job(session, job, offset=0, count=0, wait_s=wait_s, hold=False)
    return read.job


async def write_job(
    session: Session, job: str, data: bytes, *, key: str | None, eof: bool, wait_s: float
) -> JobWrittenFrame:
    """Give a job input.

    Args:
        key: input that was sent before with that key is not given again; None for no key.
    """
    text = base64.b64encode(data).decode()
    frame: dict[str, Any] = {"type": "job_write", "job": job, "data": text, "eof": eof}
    if key is not None:
        frame["key"] = key
    answer = await _ask(session, {**frame, "wait_s": wait_s}, JobWrittenFrame, wait_s)
    if answer.taken > len(data):
        raise session.distrust("a job was given more than was sent")
    return answer


async def change_job(session: Session, kind: str, job: str, **arguments: object) -> JobFacts:
    """Signal, stop or resize a job."""
    return (await _ask(session, {"type": kind, "job": job, **arguments}, JobFrame)).job


async def list_jobs(session: Session) -> tuple[JobFacts, ...]:
    """List the jobs of a session that run, and the last ones that have ended, oldest first."""
    return (await _ask(session, {"type": "job_list"}, JobsFrame)).jobs


async def _ask(
    session: Session, frame: Mapping[str, Any], kind: type[Kind], wait_s: float = 0.0
) -> Kind:
    question = {**frame, "id": session.requests.new_id()}
    try:
        answer = await session.requests.ask(
            "jobs", question, (kind, JobErrorFrame), wait_s + ANSWER_TIMEOUT_S
        )
    except NoAnswerError:
        raise no_answer(wait_s) from None
    answer = _checked(session, answer)
    assert isinstance(answer, kind), "nothing else was asked for"
    return answer


def no_answer(wait_s: float) -> JobError:
    """Make the error for an agent that does not answer, although it was asked to wait no longer."""
    return JobError(
        f"The session's agent has not answered within {wait_s + ANSWER_TIMEOUT_S:.0f} s.",
        hint="Its processes may be stopped, or the machine is overloaded.",
    )


def _checked(session: Session, answer: AnswerFrame) -> AnswerFrame:
    session.note_activity()
    if isinstance(answer, JobErrorFrame):
        raise _refusal(answer)
    return answer


def _refusal(frame: JobErrorFrame) -> JobError | OverloadedError:
    message = f"{frame.message[:1].upper()}{frame.message[1:]}."
    data = {"errno": frame.code}
    match frame.code:
        case "ESRCH":
            return UnknownJobError(message, hint="`nsm jobs SESSION` lists them.", data=data)
        case "EAGAIN" | "EMFILE":
            return OverloadedError(message, hint="`nsm jobs SESSION` lists them.", data=data)
        case _:
            return JobError(message, data=data)


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


def session_for_job(
    run_service: RunService, request: RunRequest, *, otherwise: str | None = ENVIRONMENT
) -> SessionForJob:
    """Find or make the session for a program, as for code; `otherwise` is as of `place`."""
    if request.session is None:
        raise BadRequestError(
            "A job needs a session: it belongs to one, and is found by its name.",
            hint="Name one, or say `new` for a session with a fresh name.",
        )
    request, live, environment = run_service.place(request, None, otherwise=otherwise)
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

    def when_answered(self, function: Callable[[Any], None]) -> None:
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
        self.when_answered(lambda _: settled.set())
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
    otherwise = ENVIRONMENT if request.must_exist else None  # then it makes none
    found = session_for_job(run_service, request, otherwise=otherwise)
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
