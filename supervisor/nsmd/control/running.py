"""Running code for a client: its output on the way, and its result on the wire."""

from __future__ import annotations

import dataclasses
from typing import Any

import trio

from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.control.stream import OutputStream
from nsmd.execution import Execution
from nsmd.values import RunResult


def stream_for(call: Call) -> OutputStream | None:
    """Where output goes that the client wants while the code runs; None if it wants none."""
    return OutputStream() if arguments.flag(call.args, "stream") else None


async def carry_out(
    call: Call, execution: Execution, stream: OutputStream | None
) -> dict[str, Any]:
    """Wait for what comes of an execution; all output is sent before.

    Raises:
        NsmError: there is no result.

    Cancellation: the client is gone, so the execution is abandoned.
    """
    call.on_cancel(execution.interrupt)
    try:
        if stream is not None:
            await _send_output_until_done(call, stream, execution)
        return result_to_wire(await execution.wait())
    finally:
        if not execution.done:
            execution.abandon()


async def _send_output_until_done(call: Call, stream: OutputStream, execution: Execution) -> None:
    """All output is sent before the answer, whatever the answer is."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_output, call, stream)
        await execution.wait_done()
        stream.close()


async def _send_output(call: Call, stream: OutputStream) -> None:
    while (piece := await stream.get()) is not None:
        output, skipped = piece
        data: dict[str, Any] = {"stream": output.stream, "text": output.text}
        if skipped:
            data["skipped"] = skipped
        try:
            await call.emit("output", data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client is gone: its connection sees that too, and ends this request


def result_to_wire(result: RunResult) -> dict[str, Any]:
    """The answer to `run`, `run_in` and `result`."""
    outcome = result.outcome
    return {
        "execution_id": result.execution_id,
        "env": result.env,
        "session": {
            "id": result.session_id,
            "name": result.session_name,
            "created": result.created,
            "replaced": result.replaced,
        },
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "exit_code": outcome.exit_code,
        "duration_s": outcome.duration_s,
        "displays": [dict(display) for display in outcome.displays],
        "truncated": {
            stream: dataclasses.asdict(truncation)
            for stream, truncation in outcome.truncated.items()
        },
        "timed_out": outcome.timed_out,
        "interrupted": outcome.interrupted,
        "interpreter_restarted": outcome.interpreter_restarted,
        "restart_reason": outcome.restart_reason,
        "waited_s": result.waited_s,
        "timeout_s": result.timeout_s,
        "clamped_from_s": result.clamped_from_s,
    }
