"""Operations on sessions: made with settings of their own, found, listed, forked and ended; and for
people who join a session of any client: read along, run code, complete it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.code import Place, RunOptions
from nsm.wire.errors import BadRequestError, NsmError, UnknownSessionError, UnreadableSessionError
from nsm.wire.operation import encode
from nsm.wire.sessions import FORKED_FROM, Check, Completions, OpenedSession
from nsm.wire.transcripts import OWN_CODE, to_wire
from nsmd.agent_link.frames import CheckedFrame, CompletionsFrame
from nsmd.agent_link.requests import NoAnswerError
from nsmd.control.call import Call
from nsmd.control.ops import network
from nsmd.control.ops.jobs import NO_VARIABLES, check_variables
from nsmd.control.ops.run import request_of
from nsmd.environments.on_demand import NO_ENVIRONMENT, patiently
from nsmd.manager.run_service import RunService
from nsmd.manager.session_index import project_path, unread_row
from nsmd.model import names
from nsmd.model.limits import check_code, code_of_undo
from nsmd.model.values import Environment, Labels, OutputSink, RunRequest
from nsmd.restart.kept_sessions import UnreadSession
from nsmd.sessions.execution import Execution
from nsmd.sessions.fresh import WHILE_PROGRAMS_RUN
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
    if (undo or code.startswith(OWN_CODE)) and session.runs_programs:
        raise BadRequestError(
            "While programs run in fresh interpreters of a session, it is not saved, nor undone.",
            hint=WHILE_PROGRAMS_RUN,
        )
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


KILL_WAIT_S = 5.0
"""How long `kill` waits until the killed sessions are gone; the kernel needs milliseconds."""

MAX_LABELS = 16
MAX_LABEL_CHARS = 200
LEAST_MEMORY_MB = 16

_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


async def session_open(
    call: Call,
    place: Place,
    options: RunOptions,
    *,
    idle_s: float | None = None,
    labels: Mapping[str, str] = NO_VARIABLES,
    environ: Mapping[str, str] = NO_VARIABLES,
    memory_mb: int | None = None,
    ends_with_client: bool = False,
) -> OpenedSession:
    """Make a session."""
    check_variables(environ)
    asked = _asked(call, request_of(call, place, options), idle_s, checked_labels(labels))
    run_service = call.services.run_service
    make = partial(_make, run_service, asked, environ, memory_mb)
    scope, call_id = asked.client.scope, asked.client.made_by
    index = run_service.session_manager.index
    known = index.made_by(scope, call_id) if asked.again and call_id else []
    try:
        session = known[0] if known else make()
    except NO_ENVIRONMENT:
        await run_service.search_environments(call.as_client())
        session = await patiently(make, call.on_cancel)
    if ends_with_client:
        call.own_sessions.add(session)
    try:
        await session.requests.settled()
    finally:
        run_service.session_manager.pool.answered(session)
    environment, name = session.spec.environment.name, session.name or ""
    return OpenedSession(session.id, name, environment, dict(asked.client.labels))


async def session_keep(
    call: Call, target: str, *, ends_with_client: bool = False
) -> dict[str, Any]:
    """Let a session that was to end with its client outlive that, or have it end with this one."""
    session = call.find(target)
    if ends_with_client:
        call.own_sessions.add(session)
    else:
        call.own_sessions.discard(session)
    return {"id": session.id}


def _asked(call: Call, request: RunRequest, idle_s: float | None, labels: Labels) -> RunRequest:
    """Add the idle time and the labels that a call asks for to its request."""
    configured = call.services.run_service.longest_idle_s
    if idle_s is not None and not 0 < idle_s <= configured:
        raise BadRequestError(
            f"Argument 'idle_s' is {idle_s:g}; it may be up to {configured:g}.",
            hint="`idle_timeout_seconds` in [session] of config.toml is the most.",
        )
    client = replace(
        request.client,
        idle_timeout_s=idle_s,
        labels=labels,
        made_by=request.execution_id or "",
    )
    return replace(request, client=client, session=request.session or names.NEW)


def _make(
    run_service: RunService,
    request: RunRequest,
    variables: Mapping[str, str],
    memory_mb: int | None,
) -> Session:
    request, live, environment = run_service.place(request, None)
    if live is not None:
        raise BadRequestError(
            f"There is a session {request.session!r} already.",
            hint="Choose another name, or none for a fresh one.",
        )
    own = _tightened(environment, variables, memory_mb)
    session, _ = run_service.session_for(request, own, pooled=own is environment)
    return session


def _tightened(
    environment: Environment, variables: Mapping[str, str], memory_mb: int | None
) -> Environment:
    """Return the environment with the memory limit and the variables that a call asks for."""
    if variables:
        known = [pair for pair in environment.variables if pair[0] not in variables]
        environment = replace(environment, variables=(*known, *variables.items()))
    if memory_mb is None:
        return environment
    if not LEAST_MEMORY_MB <= memory_mb <= environment.memory_mb:
        raise BadRequestError(
            f"Argument 'memory_mb' is {memory_mb}; for {environment.name!r} it may be "
            f"{LEAST_MEMORY_MB} to {environment.memory_mb}.",
            hint="`memory_mb` in [defaults] or [environments.NAME] of config.toml is the most.",
        )
    return replace(environment, memory_mb=memory_mb)


def checked_labels(found: Mapping[str, str]) -> Labels:
    """Check and sort labels."""
    if len(found) > MAX_LABELS:
        raise BadRequestError(f"{len(found)} labels are too many; a session has {MAX_LABELS}.")
    for key, value in found.items():
        if not _KEY.fullmatch(key):
            raise BadRequestError(
                f"{key!r:.80} is not a valid name of a label.",
                hint="It has 1 to 63 letters, digits, '.', '_', '/' and '-', and begins and ends "
                "with a letter or digit.",
            )
        if len(value) > MAX_LABEL_CHARS or not value.isprintable():
            raise BadRequestError(
                f"The label {key!r} has a value that is longer than {MAX_LABEL_CHARS} characters, "
                "or has control characters."
            )
    return tuple(sorted(found.items()))


def has_labels(session: Session, wanted: Labels) -> bool:
    """Return whether a session has all these labels."""
    return session.tenancy is not None and set(wanted) <= set(session.tenancy.labels)


async def session_fork(
    call: Call,
    target: str,
    names: tuple[str, ...] = (),
    count: int | None = None,
    *,
    execution_id: str = "",
    again: bool = False,
) -> dict[str, Any]:
    """Fork a live session once or several times; the forks have names of their own.

    If the call was sent before, the forks that are there belong to the answer.
    """
    run_service, original = call.services.run_service, call.find(target)
    if count is None:
        count = max(1, len(names))
    forks: list[Session] = []
    if execution_id and again and original.tenancy is not None:
        forks = run_service.session_manager.index.made_by(original.tenancy.scope, execution_id)
        # In the order in which they were made, which a new supervisor has not kept.
        places = {name: place for place, name in enumerate(names)}
        forks.sort(
            key=lambda one: (places.get(one.name or "", count), len(one.name or ""), one.name)
        )
    answer: dict[str, Any] = {}
    if len(forks) < max(1, count):
        there = {each.name for each in forks}
        made = await run_service.fork(
            original,
            [name for name in names if name not in there],
            count - len(forks),
            client=call.client,
            made_by=execution_id,
        )
        forks += made.sessions
        answer = {
            "closed": list(made.report.closed),
            "copied_bytes": made.report.copied_bytes,
            "stood_s": made.report.stood_s,
        }
    return {"forks": [{"id": each.id, "name": each.name} for each in forks], **answer}


async def find(call: Call, target: str) -> dict[str, Any]:
    """Find the session that a target means, and say whether its name led to another project."""
    here, session = call.here(), call.find(target)
    own = here is None or here.has(session) or session.name != target
    tenancy = session.tenancy
    return {
        "id": session.id,
        "name": session.name,
        "scope": tenancy.scope if tenancy is not None else "",
        "project": project_path(session),
        "elsewhere": not own,
    }


async def sessions(
    call: Call,
    *,
    all: bool = False,  # noqa: A002  # on the wire
    stream: bool = False,
) -> dict[str, Any]:
    """List the live sessions: in events if the client asks for `stream`, else in the answer. One
    frame has room for some thousands of rows only.
    """
    run_service = call.services.run_service
    unusable = run_service.session_manager.index.unread
    scope = call.scope if call.confined else None
    rows: list[dict[str, Any]] = []
    for part in run_service.parts(scope):
        described = [row._asdict() for row in await run_service.describe(part)]
        if not call.confined:  # what is outside is not theirs to know
            for row in described:
                row["ports"] = encode(network.port_addresses(call, row["id"]))
        if stream:
            await call.emit("sessions", {"sessions": described})
        else:
            rows += described
    unread = [unread_row(each)._asdict() for each in unusable.live(scope)]
    if stream and unread:
        await call.emit("sessions", {"sessions": unread})
    elif unread:
        rows += unread
    answer: dict[str, Any] = {"sessions": rows}
    if all:
        ended = run_service.describe_ended()
        answer["ended"] = [row._asdict() for row in ended if scope in (None, row.scope)]
    return answer


async def kill(
    call: Call,
    targets: tuple[str, ...] = (),
    *,
    idle_s: float | None = None,
    all: bool = False,  # noqa: A002  # on the wire
    labels: Mapping[str, str] = NO_VARIABLES,
) -> dict[str, Any]:
    """End sessions, and wait until they are gone."""
    run_service, wanted = call.services.run_service, checked_labels(labels)
    unusable = run_service.session_manager.index.unread
    if (bool(targets), idle_s is not None, all, bool(wanted)).count(True) != 1:
        raise BadRequestError(
            "`kill` takes exactly one of `targets`, `idle_s`, `all` and `labels`.",
            hint="Name sessions, or say `all`, `idle_s` or `labels`.",
        )
    errors: list[dict[str, Any]] = []
    chosen: dict[str, Session] = {}
    unread: dict[str, UnreadSession] = {}
    scope = call.scope if call.confined else None
    if all:
        chosen = {s.id: s for s in run_service.live_sessions()}
        unread = {each.id: each for each in unusable.live(scope)}
    elif idle_s is not None:
        chosen = {s.id: s for s in run_service.idle_longer_than(idle_s)}
    elif wanted:
        live = run_service.live_sessions()
        chosen = {s.id: s for s in live if has_labels(s, wanted)}
    if call.confined:
        chosen = {
            id_: s for id_, s in chosen.items() if s.tenancy and s.tenancy.scope == call.scope
        }
    for target in targets:
        try:
            session = call.find(target)
            chosen[session.id] = session
        except UnreadableSessionError as error:
            found = unusable.find(error.data["id"])
            unread |= {} if found is None else {found.id: found}
        except NsmError as error:
            errors.append({"target": target, "error": error.to_wire()})
    for each in unread.values():
        unusable.end(each)
    for session in chosen.values():
        session.end(f"killed by {call.client}")
    for session in list(chosen.values()):
        chosen |= {fork.id: fork for fork in session.forks.below()}
    with trio.move_on_after(KILL_WAIT_S):
        for session in chosen.values():
            await session.wait_ended()
    killed = [_killed(session) for session in chosen.values()]
    killed += [{"id": each.id, "name": each.name} for each in unread.values()]
    return {"killed": killed, "errors": errors}


def _killed(session: Session) -> dict[str, Any]:
    labels = dict(session.tenancy.labels) if session.tenancy is not None else {}
    original = labels.get(FORKED_FROM)
    fork_of = {} if original is None else {"fork_of": original}
    return {"id": session.id, "name": session.name, **fork_of}


async def interrupt(call: Call, target: str, execution_id: str | None = None) -> dict[str, Any]:
    """Interrupt the code that a session runs, or one execution of it that runs or waits."""
    runs = (session := call.find(target)).runs
    execution = None if execution_id is None else runs.find(execution_id)
    meant = execution_id is None or execution is not None
    done = meant and runs.interrupt(execution)
    if execution_id is None and session.runs_programs:
        done = session.runners.interrupt() or done
    return {"interrupted": done, "session": session.id}
