"""Processes of a sandbox (`process.Process` of E2B's), which are jobs of its session."""

from __future__ import annotations

import base64
import binascii
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from nsm.integrations.e2b.errors import RefusalError, gone, refusal_of
from nsm.integrations.e2b.requests import (
    ConnectStream,
    frames_of,
    inner,
    is_stream,
    message_of,
    number,
    text,
    texts,
)
from nsm.wire.errors import NsmError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm import AsyncJob, JobInfo
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox

KEEPALIVE_S = 30.0
"""Time without output after which a client is told that its stream is alive. It asks for 50 s."""

MAX_ARGUMENTS = 1000
"""Arguments of a process."""

_SIGNALS = {"SIGNAL_SIGTERM": "TERM", "SIGNAL_SIGKILL": "KILL", "15": "TERM", "9": "KILL"}
"""Signals of protobuf's JSON, by name or number."""


async def call(sandbox: E2bSandbox, method: str, request: HttpRequest) -> None:
    """Answer a call."""
    match method:
        case "Start":
            job = await _start(sandbox, request)
            await _follow(sandbox, job, request)
            return
        case "Connect":
            known = await _job(sandbox, message_of(request))
            job = await sandbox.client.job(sandbox.id, known.id)
            job.offset = job.info.output_bytes
            await _follow(sandbox, job, request)
            return
        case "StreamInput":
            await _stream_input(sandbox, request)
            await _answer(request, {})
            return
        case _:
            answer = await _unary(sandbox, method, message_of(request))
    await _answer(request, answer)


async def _unary(sandbox: E2bSandbox, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "List":
            return {"processes": await _list(sandbox)}
        case "SendInput":
            await (await _job(sandbox, asked)).write(_input(inner(asked, "input")))
        case "CloseStdin":
            await (await _job(sandbox, asked)).close_stdin()
        case "SendSignal":
            wanted = _SIGNALS.get(str(asked.get("signal")))
            if wanted is None:
                raise RefusalError("invalid_argument", "signal must be SIGTERM or SIGKILL")
            await (await _job(sandbox, asked)).signal(wanted)
        case "Update":
            job = await _job(sandbox, asked)
            if asked.get("pty") is not None:
                await job.resize(*_size(inner(asked, "pty")))
        case _:
            raise RefusalError("unimplemented", f"there is no process.Process/{method}")
    return {}


async def _start(sandbox: E2bSandbox, request: HttpRequest) -> AsyncJob:
    asked = message_of(request)
    process = inner(asked, "process")
    given: object = process.get("args") or []
    arguments = cast("list[str]", given) if isinstance(given, list) else [None]
    if not all(isinstance(one, str) for one in arguments):
        raise RefusalError("invalid_argument", "process.args must be a list of texts")
    if len(arguments) > MAX_ARGUMENTS:
        raise RefusalError("invalid_argument", f"a process has at most {MAX_ARGUMENTS} arguments")
    job = await sandbox.start(
        [text(process, "cmd"), *map(str, arguments)],
        cwd=sandbox.path(text(process, "cwd", "")),
        environ=texts(process, "envs"),
        tty=None if asked.get("pty") is None else _size(inner(asked, "pty")),
        stdin=asked.get("stdin") is not False,
        timeout_s=_limit_s(request),
    )
    sandbox.jobs[job.info.pid] = job
    if tag := text(asked, "tag", ""):
        sandbox.tags[job.info.pid] = tag
    return job


async def _follow(sandbox: E2bSandbox, job: AsyncJob, request: HttpRequest) -> None:
    stream = ConnectStream(request)
    await request.while_there(partial(_stream, sandbox, job, stream))


async def _stream(sandbox: E2bSandbox, job: AsyncJob, stream: ConnectStream) -> None:
    """Send what a job does, until it has ended. It goes on when its client goes."""
    await stream.send({"event": {"start": {"pid": job.info.pid}}})
    refusal: RefusalError | None = None
    try:
        while True:
            output = await job.read(wait_s=KEEPALIVE_S)
            chunks = chunks_of(output)
            for chunk in chunks:
                if chunk.missing:
                    note = f"[{chunk.missing} bytes of output are lost]\n".encode()
                    await stream.send(_data("pty" if job.info.tty else "stderr", note))
                if chunk.data:
                    name = "pty" if job.info.tty else chunk.stream
                    await stream.send(_data(name, chunk.data))
            if output.is_last:
                break
            if not chunks:
                await stream.send({"event": {"keepalive": {}}})
        _forget(sandbox, job.info)
        if job.info.timed_out:
            refusal = RefusalError("deadline_exceeded", "the process was ended at its time limit")
        else:
            await stream.send({"event": {"end": _end(job.info)}})
    except NsmError as error:
        refusal = refusal_of(error, sandbox.id)
        if refusal.code == "not_found":  # its job went with its session
            refusal = gone(sandbox.id)
    await stream.end(refusal)


async def _job(sandbox: E2bSandbox, asked: Mapping[str, Any]) -> AsyncJob:
    """Find the running process that a request means."""
    selector = inner(asked, "process")
    pid = number(selector, "pid", 0)
    if tag := text(selector, "tag", ""):
        pid = next((each for each, its in sandbox.tags.items() if its == tag), 0)
    job = sandbox.jobs.get(pid)
    if job is None:
        for info in await sandbox.client.jobs(sandbox.id):
            if info.pid == pid and info.running:
                job = sandbox.jobs[pid] = await sandbox.client.job(sandbox.id, info.id)
    if job is None or not job.info.running:
        raise RefusalError("not_found", f"there is no running process {tag or pid}")
    return job


async def _list(sandbox: E2bSandbox) -> list[dict[str, Any]]:
    own = {context.job.id for context in sandbox.contexts.values()}
    return [
        {
            "config": {"cmd": info.argv[0], "args": list(info.argv[1:]), "cwd": info.cwd},
            "pid": info.pid,
            **({"tag": tag} if (tag := sandbox.tags.get(info.pid)) else {}),
        }
        for info in await sandbox.client.jobs(sandbox.id)
        if info.running and info.id not in own
    ]


async def _stream_input(sandbox: E2bSandbox, request: HttpRequest) -> None:
    """Give a process the input that a client has sent, once all of it has come."""
    job: AsyncJob | None = None
    for message in frames_of(request.body):
        if "start" in message:
            job = await _job(sandbox, inner(message, "start"))
        elif "data" in message:
            if job is None:
                raise RefusalError("invalid_argument", "input came before its process was named")
            await job.write(_input(inner(inner(message, "data"), "input")))


async def _answer(request: HttpRequest, answer: dict[str, Any]) -> None:
    if not is_stream(request):
        await request.answer(200, answer)
        return
    stream = ConnectStream(request)
    await stream.send(answer)
    await stream.end()


def _forget(sandbox: E2bSandbox, info: JobInfo) -> None:
    if (known := sandbox.jobs.get(info.pid)) is not None and known.id == info.id:
        sandbox.jobs.pop(info.pid, None)
        sandbox.tags.pop(info.pid, None)


def _data(name: str, data: bytes) -> dict[str, Any]:
    return {"event": {"data": {name: base64.b64encode(data).decode()}}}


def _end(info: JobInfo) -> dict[str, Any]:
    """The end of a process, in the words of Go's `os.ProcessState`, as E2B's has them."""
    code = info.exit_code or 0
    if info.signal:
        status = f"signal: {_signal_name(info.signal)}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    status = f"exit status {code}"
    return {"exitCode": code, "exited": True, "status": status} | (
        {"error": status} if code else {}
    )


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return (signal.strsignal(number) or f"signal {number}").lower()
    return f"signal {number}"


def _input(asked: Mapping[str, Any]) -> bytes:
    data = asked.get("stdin", asked.get("pty"))
    if not isinstance(data, str):
        raise RefusalError("invalid_argument", "input must have stdin or pty")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise RefusalError("invalid_argument", "input is not base64") from None


def _size(pty: Mapping[str, Any]) -> tuple[int, int]:
    size = inner(pty, "size")
    rows, columns = number(size, "rows", 24), number(size, "cols", 80)
    if not (0 < rows < 65536 and 0 < columns < 65536):
        raise RefusalError("invalid_argument", "a terminal has 1 to 65535 rows and columns")
    return rows, columns


def _limit_s(request: HttpRequest) -> float | None:
    """The time limit that a client gave a process: it ends with its stream's deadline."""
    said = request.headers.get("connect-timeout-ms", "")
    if not (said.isascii() and said.isdecimal() and len(said) <= 10) or int(said) == 0:
        return None
    return int(said) / 1000
