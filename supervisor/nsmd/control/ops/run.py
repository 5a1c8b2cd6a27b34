"""Operations that run code for a client: output while it runs, and the result on the wire."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeAlias

import trio

from nsm.dataclass import replace
from nsm.wire.code import Place, ProjectPlace, RunOptions
from nsm.wire.errors import (
    BadRequestError,
    ForbiddenError,
    OverloadedError,
    UnknownSessionError,
)
from nsmd.agent_link.frames import without_bytes
from nsmd.control.call import Call
from nsmd.control.ops import network
from nsmd.control.outgoing import MAX_WAITING_BYTES, OutputStream
from nsmd.environments.on_demand import NO_ENVIRONMENT, patiently
from nsmd.host.paths import is_within
from nsmd.model import names
from nsmd.model.limits import check_inherited
from nsmd.model.text import bytes_of
from nsmd.model.values import Outcome, OutputSink, ProjectMount, RunOutcome, RunRequest
from nsmd.sessions.execution import Execution

P = ParamSpec("P")
Submit: TypeAlias = Callable[Concatenate[Call, OutputSink | None, P], Execution]
"""Function that submits code of a client; raises `NsmError` if it cannot run."""


def not_streaming(submit: Submit[P]) -> Callable[..., Execution | None]:
    """Submit code for a client that wants only the result, and sends no input; None for others.

    A repeated request is excluded: another caller may wait for that execution already, and
    `Execution.when_answered` would displace it.
    """

    def submit_if_so(call: Call, /, *args: P.args, **kwargs: P.kwargs) -> Execution | None:
        options = _options_in(kwargs)
        if options.stream or options.again or options.stdin:
            return None
        try:
            return submit(call, None, *args, **kwargs)
        except NO_ENVIRONMENT:
            return None  # `streaming` looks for it

    return submit_if_so


def streaming(submit: Submit[P]) -> Callable[Concatenate[Call, P], Awaitable[dict[str, Any]]]:
    """Run code for a client that wants output while it runs, or in an environment that is not
    known: it may have appeared just now.
    """

    async def carry_out(call: Call, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        options = _options_in(kwargs)
        stream = OutputStream(call.room) if options.stream else None
        sink = None if stream is None else stream.put
        try:
            execution = submit(call, sink, *args, **kwargs)
        except NO_ENVIRONMENT:
            await call.services.run_service.search_environments(call.as_client())
            execution = await patiently(lambda: submit(call, sink, *args, **kwargs), call.on_cancel)
        call.on_cancel(execution.interrupt)
        try:
            if options.stdin:  # `run_write` finds the execution from now on
                told = {"execution_id": execution.id, "session": execution.session.id}
                await call.emit("stdin", told)
            data = options.stream and options.bytes
            if stream is not None and not await _send_output_until_done(
                call, stream, execution, data=data
            ):
                raise left_out(execution.id)
            return result_to_wire(await execution.wait(), data=data)
        finally:
            if stream is not None:
                stream.discard()
            if not execution.done:  # cancelled: the client is gone
                execution.abandon(sink)

    return carry_out


def _options_in(arguments: Mapping[str, object]) -> RunOptions:
    options = arguments["options"]
    assert isinstance(options, RunOptions), "the descriptions say so"
    return options


def request_of(call: Call, place: Place, options: RunOptions, code: str = "") -> RunRequest:
    """Make the request to run code, or to find the session for a program."""
    inherited = check_inherited(call.services.run_service.catalog.inherit, place.variables)
    project = _project(call, place)
    wanted = place.project
    return RunRequest(
        client=call.as_client(
            scope=call.names_in(project),
            project=project,
            inherited=inherited,
            network=network.chosen_network(call, place.network),
            secrets=network.chosen_secrets(call, place.secrets),
        ),
        env=place.env,
        language=place.language,
        code=code,
        session=place.session,
        timeout_s=options.timeout_s,
        execution_id=options.execution_id,
        again=options.again,
        sent_to=options.sent_to,
        must_exist=place.must_exist,
        stdin=options.stdin,
        project_mode=project.mode if project is not None and wanted and wanted.mode else None,
        project_chosen=place.no_project or (wanted is not None and wanted.chosen),
    )


def submit(
    call: Call,
    on_output: OutputSink | None,
    place: Place,
    options: RunOptions,
    code: str,
    *,
    reset: bool = False,
    argv: tuple[str, ...] = (),
) -> Execution:
    """Submit code in the session that its client names, or in a fresh one."""
    request = replace(request_of(call, place, options, code), reset=reset, argv=argv)
    run_service = call.services.run_service
    if (found := in_named_session(call, request)) is not None:
        return run_service.submit(found, on_output)
    return run_service.retries.find_of_gone(request).join(on_output)


def in_named_session(call: Call, request: RunRequest) -> RunRequest | None:
    """Return the request for the session that its name means, which may be another project's; None
    if it was sent before, and that session is gone.

    Raises:
        UnknownSessionError: there is none, and the name is that of no new one.
    """
    run_service, name = call.services.run_service, request.session
    if not call.by_project or name is None or run_service.named(request.client.scope, name):
        return request
    session = run_service.identified(name)
    if session is not None and session.tenancy is not None and session.name is not None:
        client = replace(request.client, scope=session.tenancy.scope)
        return replace(request, client=client, session=session.name)
    if request.again and ("/" in name or names.may_be_id(name)):
        return None
    if "/" in name:
        raise UnknownSessionError(
            f"No session {name[:200]!r}.",
            hint="`nsm ps` lists the live ones; a new session has a name without '/'.",
        )
    return request


async def result(call: Call, execution_id: str) -> dict[str, Any]:
    """Return the result of an execution, which may have ended before."""
    scope = call.scope if call.confined else None
    execution = call.services.run_service.execution(execution_id, scope)
    return result_to_wire(await execution.wait())


async def run_write(
    call: Call,
    target: str,
    execution_id: str,
    *,
    offset: int = 0,
    data: bytes = b"",
    eof: bool = False,
    broken: bool = False,
) -> dict[str, Any]:
    """Give code standard input, and end that if nothing follows; interrupt code whose input broke
    off.
    """
    session = call.find(target)
    if broken:
        execution = session.runs.find(execution_id)
        if execution is not None and execution.request.stdin:
            execution.interrupt()
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        taken, is_open = await session.runs.write_input(execution_id, offset, data, eof=eof)
        return {"offset": taken, "open": is_open}
    raise BadRequestError("The request was cancelled.")


async def _send_output_until_done(
    call: Call, stream: OutputStream, execution: Execution, *, data: bool
) -> bool:
    """Send all output before the answer, whatever the answer is.

    Returns:
        True if there was room for the answer at the end.
    """
    size = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_output, call, stream, data)
            await execution.wait_done()
            stream.close()
            size = execution.answer_bytes
            call.room.answer_bytes += size
            if call.room.answer_bytes > MAX_WAITING_BYTES:
                nursery.cancel_scope.cancel()
                return False
        return True
    finally:
        call.room.answer_bytes -= size


async def _send_output(
    call: Call,
    stream: OutputStream,
    data: bool,
) -> None:
    while (piece := await stream.get()) is not None:
        output, skipped = piece
        text = bytes_of(output.text) if data else output.text
        told: dict[str, Any] = {"stream": output.stream, "text": text}
        if skipped:
            told["skipped"] = skipped
        try:
            await call.emit("output", told)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client is gone: its connection notices, and ends this request


def left_out(execution_id: str | None) -> OverloadedError:
    """Error in place of an answer for which there is no room."""
    later = "Read answers while you send requests."
    if execution_id is not None:
        later += f" For a while the operation `result` has it, for {execution_id!r}."
    return OverloadedError(
        f"{MAX_WAITING_BYTES >> 20} MiB of answers wait for this client to read them, so this one "
        "was left out; its request was carried out.",
        hint=later,
        data={} if execution_id is None else {"execution_id": execution_id},
    )


def end_to_wire(outcome: Outcome) -> dict[str, Any]:
    """Make the fields that all results of code have, but for its output."""
    return {
        "exit_code": outcome.exit_code,
        "duration_s": outcome.duration_s,
        "displays": [dict(display) for display in outcome.displays],
        "truncated": {
            stream: truncation._asdict() for stream, truncation in outcome.truncated.items()
        },
        "timed_out": outcome.timed_out,
        "interrupted": outcome.interrupted,
    }


def result_to_wire(result: RunOutcome, *, data: bool = False) -> dict[str, Any]:
    """Make the answer to `run`, `run_in` and `result`.

    Args:
        data: output as bytes; else as text, in which bytes that are not UTF-8 are U+FFFD.
    """
    outcome = result.outcome if data else without_bytes(result.outcome)
    return {
        "execution_id": result.execution_id,
        "env": result.env,
        "session": {
            "id": result.session_id,
            "name": result.session_name,
            "created": result.created,
            "replaced": result.replaced,
        },
        "stdout": bytes_of(outcome.stdout) if data else outcome.stdout,
        "stderr": bytes_of(outcome.stderr) if data else outcome.stderr,
        **end_to_wire(outcome),
        "interpreter_restarted": outcome.interpreter_restarted,
        "restart_reason": outcome.restart_reason,
        "waited_s": result.waited_s,
        "timeout_s": result.timeout_s,
        "clamped_from_s": result.clamped_from_s,
        "notes": list(result.notes),
    }


def _project(call: Call, place: Place) -> ProjectMount | None:
    wanted = place.project
    if wanted is None:  # connections of a box's socket get its project
        return None if call.client_limits is None else call.client_limits.project
    if call.confined:
        return _chosen_within(call, wanted)
    run_service, live = call.services.run_service, None
    if place.session:
        scope = names.command_line_scope(wanted.path) if call.by_project else call.scope
        live = run_service.named(scope, place.session)
    return run_service.check_project(wanted.path, wanted.mount_point, wanted.mode, live)


def _chosen_within(call: Call, wanted: ProjectPlace) -> ProjectMount | None:
    """Check a directory that a box names: it must be its own. Nothing is said about others on the
    host.
    """
    client_limits, path = call.client_limits, wanted.path
    if client_limits is not None and client_limits.project is not None:
        real = os.path.realpath(path)
        if path.startswith("/") and is_within(real, client_limits.project.path):
            mount = call.services.run_service.check_project(real, wanted.mount_point, wanted.mode)
            if is_within(mount.path, client_limits.project.path):  # a link may have come between
                return mount
    elif (
        client_limits is not None
        and client_limits.directory is not None
        and is_within(os.path.normpath(path), client_limits.directory)
    ):
        return None  # parts of it are hidden in the box, and sessions would show them
    raise ForbiddenError(
        "This connection may run code, but not choose the directory that the code sees.",
        hint="Leave `project` out.",
    )
