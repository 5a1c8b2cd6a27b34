"""Operations of people who join a session of any client: read along, run code, complete it."""

from __future__ import annotations

import logging
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, UnknownSessionError
from nsm.wire.run import RunOptions
from nsm.wire.sessions import Check, Completions
from nsm.wire.transcripts import to_wire
from nsmd.agent_link.frames import CheckedFrame, CompletionsFrame
from nsmd.agent_link.requests import NoAnswerError
from nsmd.control.call import Call
from nsmd.model.limits import check_code, code_of_undo
from nsmd.model.values import OutputSink, RunRequest
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptReader

log = logging.getLogger(__name__)

PROMPT_TIMEOUT_S = 5.0
"""Time for questions of a prompt while somebody types. The agent itself gives up after 1 s."""


async def logs(
    call: Call, target: str, *, executions: int | None = None, follow: bool = False
) -> dict[str, Any]:
    """Send the transcript of a live or ended session; its entries are events."""
    run_service = call.services.run_service
    transcript, session = run_service.transcript(target, call.here())
    reader = transcript.read(last=executions, follow=follow)
    call.on_cancel(reader.stop)
    if follow and session is not None:
        session.follow()
    try:
        await _send_entries(call, reader)
    finally:
        if follow and session is not None:
            session.unfollow()
    return {
        "id": transcript.subject.id,
        "name": transcript.subject.name,
        "state": "ended" if session is None else session.state.value,
        "end_reason": transcript.end_reason or None,
        "executions": transcript.executions,
    }


async def _send_entries(call: Call, reader: TranscriptReader) -> None:
    for entry in reader:
        if entry is None:
            await reader.wait()
            continue
        try:
            await call.emit(*to_wire(entry))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client is gone: its connection notices, and ends this request
        # A client that reads everything at once must not delay others.
        await trio.lowlevel.checkpoint()


def submit_in(
    call: Call, on_output: OutputSink | None, target: str, options: RunOptions, code: str
) -> Execution:
    """Submit code in a live session."""
    return _submit(call, on_output, target, options, code)


def submit_undo(
    call: Call, on_output: OutputSink | None, target: str, options: RunOptions, calls: int = 1
) -> Execution:
    """Have the last calls of a live session undone, as if that were code."""
    return _submit(call, on_output, target, options, code_of_undo(calls), calls)


def _submit(
    call: Call,
    on_output: OutputSink | None,
    target: str,
    options: RunOptions,
    code: str,
    undo: int = 0,
) -> Execution:
    run_service = call.services.run_service
    request = RunRequest(
        client=call.as_client(),
        env="",  # the session has one
        code=code,
        undo=undo,
        timeout_s=options.timeout_s,
        execution_id=options.execution_id,
        again=options.again,
        sent_to=options.sent_to,
        stdin=options.stdin,
    )
    try:
        session = call.find(target)
    except UnknownSessionError:
        if not request.again:
            raise
        return run_service.retries.find_of_gone(request).join(on_output)
    request = replace(request, env=session.spec.environment.name, session=session.name)
    return run_service.submit(request, on_output, session=session)


async def complete(call: Call, target: str, code: str, cursor: int) -> Completions:
    """Complete code at a cursor position."""
    session = call.find(target)
    check_code(code)
    if cursor > len(code):
        raise BadRequestError(
            f"Argument 'cursor' is {cursor}, not a place in code of {len(code)} characters."
        )
    question = _question(session, "complete", code) | {"cursor": cursor}
    nothing = Completions(cursor, cursor, (), available=False)
    try:
        answer = await session.requests.ask(
            "complete", question, (CompletionsFrame,), PROMPT_TIMEOUT_S
        )
    except NoAnswerError:
        return nothing
    session.note_activity()
    if not isinstance(answer, CompletionsFrame) or answer.end > len(code):
        log.warning("session %s: completions for a place outside of the code", session.id)
        return nothing
    return Completions(answer.start, answer.end, answer.matches, answer.available)


async def check(call: Call, target: str, code: str) -> Check:
    """Check whether code is complete."""
    session = call.find(target)
    check_code(code)
    question = _question(session, "check", code)
    try:
        answer = await session.requests.ask("check", question, (CheckedFrame,), PROMPT_TIMEOUT_S)
    except NoAnswerError:
        return Check("unknown", "")
    session.note_activity()
    assert isinstance(answer, CheckedFrame), "nothing else was asked for"
    return Check(answer.status, answer.indent)


def _question(session: Session, kind: str, code: str) -> dict[str, Any]:
    return {
        "type": kind,
        "id": session.requests.new_id(),
        "interpreter": session.spec.environment.interpreter,
        "code": code,
    }
