"""Operations on programs that each run in a fresh interpreter of a session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.code import Place, RunOptions
from nsm.wire.errors import (
    BadRequestError,
    InternalError,
    NsmError,
    OverloadedError,
    SessionEndedError,
)
from nsm.wire.fresh import MAX_AT_ONCE, FreshProgram
from nsmd.control.call import Call
from nsmd.control.ops.jobs import session_of
from nsmd.control.ops.run import end_to_wire, result_to_wire
from nsmd.environments.on_demand import NO_ENVIRONMENT, patiently
from nsmd.manager.jobs import SessionForJob, session_for_code_job
from nsmd.manager.run_requests import without_fence
from nsmd.model.limits import check_code, time_limit
from nsmd.model.values import RunOutcome
from nsmd.sessions.fresh import CheckedProgram, ClientPrograms, FreshOutcome
from nsmd.sessions.session import Session

MAX_HANDLES = 100
"""Maps that one connection has open."""


async def run_fresh(
    call: Call, place: Place, options: RunOptions, code: str, *, argv: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run code in a fresh interpreter of a session, and return its result."""
    if options.stdin:
        raise BadRequestError(
            "Code in a fresh interpreter takes no standard input.",
            hint="Put the input into a file of the session.",
        )
    found = await _open(call, place, options)
    session = found.session
    program = _checked(session, FreshProgram(code, options.timeout_s, argv))
    if isinstance(program, NsmError):
        raise program
    run = ClientPrograms(session, call.as_client(), at_once=1)
    call.on_cancel(run.interrupt)
    try:
        run.add([program])
        await run.wait()
        ((_, outcome, error, _),) = run.take()
    finally:
        run.end()
    if error:
        raise SessionEndedError(error) if not session.live else InternalError(error)
    environment = session.spec.environment
    _, clamped_from_s = time_limit(options.timeout_s, environment)
    result = RunOutcome(
        # What ended was the program's own interpreter: nothing of the session's is lost.
        outcome=replace(outcome, interpreter_restarted=False, restart_reason=""),
        execution_id="",
        env=environment.name,
        session_id=session.id,
        session_name=session.name,
        created=found.created,
        replaced=found.replaced,
        waited_s=0.0,
        timeout_s=program.timeout_s,
        clamped_from_s=clamped_from_s,
    )
    return result_to_wire(result)


async def fresh_open(
    call: Call, place: Place, options: RunOptions, *, at_once: int | None = None
) -> dict[str, Any]:
    """Prepare to run programs in a session that the client names, which may be a new one."""
    found = await _open(call, place, options)
    session = found.session
    at_once = at_once or min(os.cpu_count() or 1, MAX_AT_ONCE)
    if len(call.programs) >= MAX_HANDLES:
        raise OverloadedError(
            f"{MAX_HANDLES} maps are open on this connection, which is the limit.",
            hint="Close those that have ended: leave their `with` blocks.",
        )
    handle = max(call.programs, default=0) + 1
    call.programs[handle] = ClientPrograms(session, call.as_client(), at_once)
    told = {
        "id": session.id,
        "name": session.name,
        "created": found.created,
        "replaced": found.replaced,
    }
    return {"handle": handle, "session": told, "at_once": at_once}


async def fresh_next(
    call: Call, handle: int, programs: Sequence[FreshProgram] = (), *, wait: bool = True
) -> dict[str, Any]:
    """Run programs, and return the results that have come."""
    run = _find(call, handle)
    refusal = call.services.ending.refusal(live=True)
    run.add([refusal or _checked(run.session, program) for program in programs])
    if wait:
        with trio.CancelScope() as scope:
            call.on_cancel(scope.cancel)
            await run.wait()
    run.session.note_activity()
    results = [_result_to_wire(result) for result in run.take()]
    return {"results": results, "pending": run.pending}


async def fresh_close(call: Call, handle: int) -> dict[str, Any]:
    """Interrupt programs that run, and run no further ones."""
    run = _find(call, handle)
    del call.programs[handle]
    run.end()
    await run.ended()
    return {}


async def _open(call: Call, place: Place, options: RunOptions) -> SessionForJob:
    """Find or make the session, in an environment that may have appeared just now."""
    begin = partial(session_of, call, place, options, session_for_code_job)
    try:
        return begin()
    except NO_ENVIRONMENT:
        await call.services.run_service.search_environments(call.as_client())
        return await patiently(begin, call.on_cancel)


def _find(call: Call, handle: int) -> ClientPrograms:
    run = call.programs.get(handle)
    if run is None:
        raise BadRequestError(
            f"No programs run as {handle} on this connection.",
            hint="`fresh_open` gives a number that counts until `fresh_close`.",
        )
    return run


def _checked(session: Session, program: FreshProgram) -> CheckedProgram | NsmError:
    """Make a program to run; or return why it cannot be run, which costs no other program."""
    environment = session.spec.environment
    try:
        check_code(program.code)
        timeout_s, _ = time_limit(program.timeout_s, environment)
    except NsmError as error:
        return error
    code, _ = without_fence(program.code, environment.interpreter)
    return CheckedProgram(code, timeout_s, program.argv)


def _result_to_wire(result: FreshOutcome) -> dict[str, Any]:
    """Make the fields of a result, but for those that have their defaults: both ends look at each
    item of a frame, which took a third of nsm's time for a program.
    """
    program, outcome, error, _ = result
    said = {**end_to_wire(outcome), "notes": list(outcome.notes), "error": error}
    return {
        "number": program.number,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "exit_code": outcome.exit_code,
        **{name: value for name, value in said.items() if value},
    }
