"""Operations on the bridge: programs of the host that clients may start."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from nsm.wire.errors import BadRequestError, NsmError
from nsmd.bridge.bridge import off
from nsmd.bridge.calls import ProgramCall
from nsmd.bridge.monitor import PIECE_CHARS
from nsmd.bridge.programs import Caller, OnLine, Problem, Program, ProgramEnd
from nsmd.control.call import Call
from nsmd.control.outgoing import MAX_WAITING_BYTES, OutputStream
from nsmd.model.text import shortened
from nsmd.model.values import Output, StreamName

MAX_ID_CHARS = 64

MAX_STREAM_BYTES = 6 * 1024 * 1024
"""Largest size of each stream in an answer, so that it fits into a frame (16 MiB). `[mcp]
max_result_chars`, which bounds kept output, may be larger.
"""


async def bridge_programs(call: Call) -> dict[str, Any]:
    """List the programs that the client may start. Only people get paths and mistakes of files."""
    bridge = call.services.bridge
    if not call.confined:
        await bridge.read_definitions()
    return {
        "enabled": bridge.enabled,
        "programs": [_row(call, each) for each in bridge.programs(_caller(call))],
        "problems": [] if call.confined else [_problem(each) for each in bridge.problems],
    }


async def bridge_help(call: Call, program: object = None) -> dict[str, Any]:
    """Return a program's documentation."""
    bridge = call.services.bridge
    if not bridge.enabled:
        raise off()
    if not call.confined:
        await bridge.read_definitions()
    found = bridge.program(_caller(call), program)
    return {"program": _row(call, found), "documentation": found.documentation}


async def bridge_run(
    call: Call,
    program: object = None,
    arguments: object = None,
    *,
    call_id: object = None,
    again: object = None,
    stream: object = None,
) -> dict[str, Any]:
    """Start a program, send its output with `stream`, and answer with its result.

    Arguments are passed on as they came, because wrong ones are recorded, too.
    """
    key, repeated, output, refusal = _wanted(call, call_id, again, stream)
    run = call.services.bridge.submit(
        _caller(call),
        program,
        arguments,
        None if output is None else _lines_to(output),
        call_id=key,
        again=repeated,
        refusal=refusal,
    )
    call.on_cancel(run.interrupt)
    try:
        if output is not None:
            await _tell(call, run, output)
        return _result(run, await run.wait())
    finally:
        if output is not None:
            output.discard()
        if run.answer is None:  # cancelled: the client is gone
            run.abandon()


def refused(call: Call, error: NsmError) -> None:
    """Record a call of a client that may start nothing at all; quick."""
    args = call.args
    with suppress(
        NsmError
    ):  # there is no bridge, or so many are under way that they are only counted
        call.services.bridge.submit(
            _caller(call), args.get("program"), args.get("arguments"), refusal=error
        )


def _wanted(
    call: Call, call_id: object, again: object, stream: object
) -> tuple[str | None, bool, OutputStream | None, BadRequestError | None]:
    """Read the call's id, whether it is repeated, the stream for its lines, and why it
    is refused.
    """
    for name, given, kind in (
        ("call_id", call_id, str),
        ("again", again, bool),
        ("stream", stream, bool),
    ):
        if given is not None and not isinstance(given, kind):
            wrong = f"Argument {name!r} is {given!r:.80}, not a {kind.__name__}."
            return None, False, None, BadRequestError(wrong)
    output = OutputStream(call.room) if stream else None
    if not isinstance(call_id, str):
        return None, bool(again), output, None
    if call_id.isprintable() and 1 <= len(call_id) <= MAX_ID_CHARS:
        return call_id, bool(again), output, None
    wrong = f"`call_id` must be 1 to {MAX_ID_CHARS} printable characters."
    return None, False, None, BadRequestError(wrong)


def _result(run: ProgramCall, ended: ProgramEnd) -> dict[str, Any]:
    stdout, stdout_cut = shortened(ended.stdout, MAX_STREAM_BYTES)
    stderr, stderr_cut = shortened(ended.stderr, MAX_STREAM_BYTES)
    return {
        "call_id": run.id,
        "program": run.asked.program,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "why_stopped": ended.why_stopped,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_omitted": ended.stdout_omitted + stdout_cut,
        "stderr_omitted": ended.stderr_omitted + stderr_cut,
        "duration_s": ended.duration_s,
        "timeout_s": ended.timeout_s,
        "left": ended.left,
    }


async def _tell(call: Call, run: ProgramCall, stream: OutputStream) -> None:
    """Send all output before the answer."""
    size = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, call, stream)
            with suppress(NsmError):  # it is the answer
                ended = await run.wait()
                size = len(ended.stdout) + len(ended.stderr)
            stream.close()
            call.room.answer_bytes += size
            if call.room.answer_bytes > MAX_WAITING_BYTES:
                nursery.cancel_scope.cancel()  # the answer has head and tail
    finally:
        call.room.answer_bytes -= size


async def _send(call: Call, stream: OutputStream) -> None:
    try:
        while (piece := await stream.get()) is not None:
            output, skipped = piece
            data: dict[str, Any] = {"stream": output.stream, "text": output.text}
            await call.emit("output", {**data, "skipped": skipped} if skipped else data)
        for name, skipped in stream.left_out().items():
            await call.emit("output", {"stream": name, "text": "", "skipped": skipped})
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # the client is gone: its connection notices, and ends this request


def _lines_to(stream: OutputStream) -> OnLine:
    def on_line(name: StreamName, line: str) -> None:
        end = "" if len(line) == PIECE_CHARS else "\n"  # the line continues, or is complete
        stream.put(Output(stream=name, text=line + end))

    return on_line


def _caller(call: Call) -> Caller:
    client_limits = call.client_limits
    return Caller(
        client=call.client,
        scope=call.scope,
        way="control",
        peer=call.peer,
        granted=None if client_limits is None else frozenset(client_limits.programs),
        writable=() if client_limits is None else client_limits.writable,
    )


def _row(call: Call, program: Program) -> dict[str, Any]:
    """Row of a program. A client that may only start it gets no facts about the host."""
    row: dict[str, Any] = {
        "name": program.name,
        "description": program.description,
        "timeout_s": program.timeout_s,
        "max_args": program.max_args,
        "allow_options": program.allow_options,
    }
    if not call.confined:
        row["command"] = program.command
        row["cwd"] = program.cwd
        row["env"] = list(program.env)
        row["unset"] = call.services.bridge.unset(program)
        row["source"] = program.source
    return row


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "source": problem.source,
        "line": problem.line,
        "reason": problem.reason,
        "name": problem.name,
    }
