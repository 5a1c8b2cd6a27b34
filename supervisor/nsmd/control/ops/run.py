"""Operations that run code for a client: output while it runs, and the result on the wire."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import trio

from nsm.wire.errors import (
    BadRequestError,
    OverloadedError,
)
from nsm.wire.files import PIECE_BYTES
from nsmd.agent_link.frames import without_bytes
from nsmd.control import arguments
from nsmd.control.call import Call, Operation
from nsmd.control.outgoing import MAX_WAITING_BYTES
from nsmd.control.output_stream import OutputStream
from nsmd.environments.pending import NO_ENVIRONMENT, patiently
from nsmd.model.text import bytes_of
from nsmd.model.values import OutputSink, RunOutcome
from nsmd.sessions.execution import Execution


class Submit(Protocol):
    """Function that submits code of a client."""

    def __call__(self, call: Call, on_output: OutputSink | None = None, /) -> Execution:
        """Submit the code of a call.

        Raises:
            NsmError: it cannot run.
        """
        ...


def not_streaming(submit: Submit) -> Callable[[Call], Execution | None]:
    """Submit code for a client that wants only the result, and sends no input; None for others.

    A repeated request is excluded: another caller may wait for that execution already, and
    `Execution.tell` would displace it.
    """

    def submit_if_so(call: Call) -> Execution | None:
        if any(arguments.flag(call.args, name) for name in ("stream", "again", "stdin")):
            return None
        try:
            return submit(call)
        except NO_ENVIRONMENT:
            return None  # `streaming` looks for it

    return submit_if_so


def streaming(submit: Submit) -> Operation:
    """Run code for a client that wants output while it runs, or in an environment that is not
    known: it may have appeared just now.
    """

    async def carry_out(call: Call) -> dict[str, Any]:
        if not arguments.flag(call.args, "stream"):
            return await _carry_out(call, submit)
        stream = OutputStream(call.room)
        try:
            execution = submit(call, stream.put)
        except NO_ENVIRONMENT:
            await call.services.run_service.look(call.as_client())
            execution = await patiently(partial(submit, call, stream.put), call.on_cancel)
        call.on_cancel(execution.interrupt)
        try:
            await _invite_input(call, execution)
            if not await _send_output_until_done(call, stream, execution):
                raise left_out(execution.id)
            return result_to_wire(await execution.wait(), data=_wants_data(call))
        finally:
            stream.discard()
            if not execution.done:  # cancelled: the client is gone
                execution.abandon(stream.put)

    return carry_out


async def _carry_out(call: Call, submit: Submit) -> dict[str, Any]:
    try:
        execution = submit(call)
    except NO_ENVIRONMENT:
        await call.services.run_service.look(call.as_client())
        execution = await patiently(partial(submit, call), call.on_cancel)
    call.on_cancel(execution.interrupt)
    try:
        await _invite_input(call, execution)
        return result_to_wire(await execution.wait())
    finally:
        if not execution.done:  # cancelled: the client is gone
            execution.abandon()


async def _invite_input(call: Call, execution: Execution) -> None:
    """Tell the client that `run_write` finds the execution now, if it has input for that."""
    if arguments.flag(call.args, "stdin"):
        told = {"execution_id": execution.id, "session": execution.session.id}
        await call.emit("stdin", told)


async def run_write(call: Call) -> dict[str, Any]:
    """Give code standard input, and end that if nothing follows; interrupt code whose input broke
    off.
    """
    data = arguments.data(call.args, "data") if "data" in call.args else b""
    if len(data) > PIECE_BYTES:
        raise BadRequestError(
            f"Argument 'data' has {len(data)} bytes; at most {PIECE_BYTES} are taken at once."
        )
    session, execution_id = call.target(), arguments.text(call.args, "execution_id")
    if arguments.flag(call.args, "broken"):
        execution = session.runs.find(execution_id)
        if execution is not None and execution.request.stdin:
            execution.interrupt()
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        offset, is_open = await session.runs.write_input(
            execution_id,
            arguments.optional_count(call.args, "offset") or 0,
            data,
            eof=arguments.flag(call.args, "eof"),
        )
        return {"offset": offset, "open": is_open}
    raise BadRequestError("The request was cancelled.")


async def _send_output_until_done(call: Call, stream: OutputStream, execution: Execution) -> bool:
    """Send all output before the answer, whatever the answer is.

    Returns:
        True if there was room for the answer at the end.
    """
    size = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_output, call, stream)
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


def _wants_data(call: Call) -> bool:
    return arguments.flag(call.args, "bytes")


async def _send_output(call: Call, stream: OutputStream) -> None:
    while (piece := await stream.get()) is not None:
        output, skipped = piece
        text = bytes_of(output.text) if _wants_data(call) else output.text
        data: dict[str, Any] = {"stream": output.stream, "text": text}
        if skipped:
            data["skipped"] = skipped
        try:
            await call.emit("output", data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client is gone: its connection notices, and ends this request


def left_out(execution_id: str | None) -> OverloadedError:
    """Error in place of an answer for which there is no room.

    Args:
        execution_id: id of the execution, if the answer is a result.
    """
    later = "Read answers while you send requests."
    if execution_id is not None:
        later += f" For a while the operation `result` has it, for {execution_id!r}."
    return OverloadedError(
        f"{MAX_WAITING_BYTES >> 20} MiB of answers wait for this client to read them, so this one "
        "was left out; its request was carried out.",
        hint=later,
        data={} if execution_id is None else {"execution_id": execution_id},
    )


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
        "exit_code": outcome.exit_code,
        "duration_s": outcome.duration_s,
        "displays": [dict(display) for display in outcome.displays],
        "truncated": {
            stream: truncation._asdict() for stream, truncation in outcome.truncated.items()
        },
        "timed_out": outcome.timed_out,
        "interrupted": outcome.interrupted,
        "interpreter_restarted": outcome.interpreter_restarted,
        "restart_reason": outcome.restart_reason,
        "waited_s": result.waited_s,
        "timeout_s": result.timeout_s,
        "clamped_from_s": result.clamped_from_s,
        "notes": list(result.notes),
    }
