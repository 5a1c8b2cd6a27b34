"""Operations of people who join a session of any client: read along, run code, complete it."""

from __future__ import annotations

import logging
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, UnknownSessionError
from nsm.wire.transcripts import to_wire
from nsmd.agent_link.frames import CheckedFrame, CompletionsFrame
from nsmd.agent_link.requests import NoAnswerError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.model.limits import check_code, code_of_undo
from nsmd.model.values import OutputSink, RunRequest
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptReader

log = logging.getLogger(__name__)

PROMPT_TIMEOUT_S = 5.0
"""Time for questions of a prompt while somebody types. The agent itself gives up after 1 s."""


async def logs(call: Call) -> dict[str, Any]:
    """Send the transcript of a live or ended session; its entries are events."""
    run_service = call.services.run_service
    last = arguments.optional_count(call.args, "executions")
    follow = arguments.flag(call.args, "follow")
    transcript, session = run_service.transcript(arguments.text(call.args, "target"), call.here())
    reader = transcript.read(last=last, follow=follow)
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


def submit_in(call: Call, on_output: OutputSink | None = None) -> Execution:
    """Submit code in a live session."""
    return _submit(call, on_output, arguments.text(call.args, "code"))


def submit_undo(call: Call, on_output: OutputSink | None = None) -> Execution:
    """Have the last calls of a live session undone, as if that were code."""
    calls = arguments.optional_count(call.args, "calls")
    if calls == 0:
        raise BadRequestError("Argument 'calls' is 0, and at least 1 call has to be undone.")
    return _submit(call, on_output, code_of_undo(calls or 1), calls or 1)


def _submit(call: Call, on_output: OutputSink | None, code: str, undo: int = 0) -> Execution:
    args, run_service = call.args, call.services.run_service
    request = RunRequest(
        client=call.as_client(),
        env="",  # the session has one
        code=code,
        undo=undo,
        timeout_s=arguments.optional_number(args, "timeout_s"),
        execution_id=arguments.optional_text(args, "execution_id"),
        again=arguments.flag(args, "again"),
        sent_to=arguments.optional_text(args, "sent_to") or "",
        stdin=arguments.flag(args, "stdin"),
    )
    try:
        session = call.target()
    except UnknownSessionError:
        if not request.again:
            raise
        return run_service.retries.find_of_gone(request).join(on_output)
    request = replace(request, env=session.spec.environment.name, session=session.name)
    return run_service.submit(request, on_output, session=session)


async def complete(call: Call) -> dict[str, Any]:
    """Complete code at a cursor position."""
    session, code = call.target(), _code(call)
    cursor = arguments.optional_count(call.args, "cursor")
    if cursor is None or cursor > len(code):
        raise BadRequestError(
            f"Argument 'cursor' is {cursor}, not a place in code of {len(code)} characters."
        )
    question = _question(session, "complete", code) | {"cursor": cursor}
    nothing: dict[str, Any] = {"start": cursor, "end": cursor, "matches": [], "available": False}
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
    return {
        "start": answer.start,
        "end": answer.end,
        "matches": list(answer.matches),
        "available": answer.available,
    }


async def check(call: Call) -> dict[str, Any]:
    """Check whether code is complete."""
    session = call.target()
    question = _question(session, "check", _code(call))
    try:
        answer = await session.requests.ask("check", question, (CheckedFrame,), PROMPT_TIMEOUT_S)
    except NoAnswerError:
        return {"status": "unknown", "indent": ""}
    session.note_activity()
    assert isinstance(answer, CheckedFrame), "nothing else was asked for"
    return {"status": answer.status, "indent": answer.indent}


def _code(call: Call) -> str:
    code = arguments.text(call.args, "code")
    check_code(code)
    return code


def _question(session: Session, kind: str, code: str) -> dict[str, Any]:
    return {
        "type": kind,
        "id": session.requests.new_id(),
        "interpreter": session.spec.environment.interpreter,
        "code": code,
    }
