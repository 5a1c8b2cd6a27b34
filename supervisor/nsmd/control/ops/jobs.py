"""Operations on jobs: programs that run in a session beside its interpreter."""

from __future__ import annotations

import re
import shlex
import signal as signals
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import trio

from nsm.wire.code import Place, RunOptions
from nsm.wire.errors import BadRequestError
from nsm.wire.jobs import MAX_KEY_CHARS, JobInfo, JobOutput, JobTerminal, WrittenInput, is_key
from nsm.wire.operation import PIECE_BYTES
from nsmd.agent_link.frames import JobFrame, JobOutputFrame
from nsmd.control.call import Call
from nsmd.control.ops.run import in_named_session, request_of
from nsmd.environments.on_demand import NO_ENVIRONMENT, patiently
from nsmd.manager import jobs
from nsmd.manager.jobs import ProgramStart, SessionForJob, session_for_job
from nsmd.manager.run_service import RunService
from nsmd.model.values import RunRequest

MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
"""Largest size of a job's arguments and variables together; the kernel takes less."""

MAX_VARIABLES = 1000
MAX_VARIABLE_CHARS = 128 * 1024
"""Characters of all variables together."""

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def submit(call: Call, **arguments: Any) -> ProgramStart | None:
    """Start a job whose environment is known; None for others, which `job_start` looks for. It has
    the arguments of that.
    """
    try:
        return _start(call, **arguments)
    except NO_ENVIRONMENT:
        return None


async def job_start(
    call: Call,
    place: Place,
    options: RunOptions,
    argv: tuple[str, ...],
    *,
    cwd: str | None = None,
    environ: Mapping[str, str] = NO_VARIABLES,
    tty: JobTerminal | None = None,
    wait_s: float = 0.0,
) -> dict[str, Any]:
    """Start a job in an environment that may have appeared just now."""
    await call.services.run_service.search_environments(call.as_client())
    start = partial(_start, call, place, options, argv, cwd, environ, tty, wait_s)
    begun = await patiently(start, call.on_cancel)
    call.on_cancel(begun.interrupt)
    told: dict[str, Any] = await begun.wait()
    return told


def _start(
    call: Call,
    place: Place,
    options: RunOptions,
    argv: tuple[str, ...],
    cwd: str | None,
    environ: Mapping[str, str],
    tty: JobTerminal | None,
    wait_s: float,
) -> ProgramStart:
    check_variables(environ)
    size = sum(len(text) for text in (*argv, *environ, *environ.values()))
    if size > MAX_ARGUMENT_BYTES:
        raise BadRequestError(
            f"The program's arguments and variables have {size} characters; at most "
            f"{MAX_ARGUMENT_BYTES} are taken.",
            hint="Put large values into files, or send them as input.",
        )
    wanted: dict[str, Any] = {
        "argv": list(argv),
        "env": dict(environ),
        "stdin": options.stdin,
        "grace_s": call.services.run_service.session_manager.grace_s,
    }
    if cwd:
        wanted["cwd"] = cwd
    if (timeout_s := options.timeout_s) is not None:
        if not 0 < timeout_s < 1e9:
            raise BadRequestError(
                f"timeout_s must be a number of seconds above 0, not {timeout_s}."
            )
        wanted["timeout_s"] = timeout_s
    if tty is not None:
        wanted["tty"] = {"rows": tty.rows, "columns": tty.columns}
        wanted["tty"] |= {} if tty.term is None else {"term": tty.term}
    if (key := options.execution_id) is not None:
        if not is_key(key):
            raise BadRequestError(
                f"execution_id must be 1 to {MAX_KEY_CHARS} printable characters."
            )
        wanted["key"] = f"{call.scope} {key}"
    found, wait_s = (
        session_of(call, place, options, session_for_job),
        min(wait_s, jobs.MAX_START_WAIT_S),
    )
    told = partial(_start_to_wire, found)
    run_service = call.services.run_service
    return ProgramStart(run_service, found, shlex.join(argv), wanted, wait_s, told)


def session_of(
    call: Call,
    place: Place,
    options: RunOptions,
    find: Callable[[RunService, RunRequest], SessionForJob],
) -> SessionForJob:
    """Find or make the session that a client names for what it starts."""
    request = request_of(call, place, options)
    run_service = call.services.run_service
    if (found := in_named_session(call, request)) is not None:
        return find(run_service, found)
    raise run_service.retries.job_of_gone(request)


def check_variables(environ: Mapping[str, str]) -> None:
    """Check environment variables."""
    size = sum(len(name) + len(value) for name, value in environ.items())
    if len(environ) > MAX_VARIABLES or size > MAX_VARIABLE_CHARS:
        raise BadRequestError(
            f"Argument 'environ' has {len(environ)} variables of {size} characters; at most "
            f"{MAX_VARIABLES} of {MAX_VARIABLE_CHARS} are taken.",
            hint="Put large values into files.",
        )
    for name, value in environ.items():
        if not _VARIABLE.fullmatch(name):
            raise BadRequestError(
                f"Argument 'environ' has {name!r:.80}, which is not a variable's name."
            )
        if "\0" in value:
            raise BadRequestError(f"Argument 'environ' has a NUL in the value of {name}.")


def _start_to_wire(found: SessionForJob, answer: JobFrame | JobOutputFrame) -> dict[str, Any]:
    session = found.session
    told: dict[str, Any] = {
        "session": {
            "id": session.id,
            "name": session.name,
            "created": found.created,
            "replaced": found.replaced,
        },
        "job": JobInfo(*answer.job)._asdict(),
    }
    if isinstance(answer, JobOutputFrame):
        told["output"] = {
            "offset": answer.offset,
            "missing": answer.missing,
            "pieces": [list(piece) for piece in answer.pieces],
            "data": answer.data,
        }
    return told


async def job_read(
    call: Call,
    target: str,
    job: str,
    *,
    offset: int = 0,
    bytes: int = PIECE_BYTES,  # noqa: A002  # on the wire
    wait_s: float = 0.0,
    hold: bool = False,
) -> JobOutput:
    """Read output of a job, or wait for some."""
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        wait_s = min(wait_s, jobs.MAX_WAIT_S)
        session = call.find(target)
        read = await jobs.read_job(
            session, job, offset=offset, count=bytes, wait_s=wait_s, hold=hold
        )
        return JobOutput(read.offset, read.missing, read.pieces, read.data, JobInfo(*read.job))
    raise _cancelled()


async def job_write(
    call: Call,
    target: str,
    job: str,
    data: bytes = b"",
    *,
    eof: bool = False,
    wait_s: float = 0.0,
    write_id: str | None = None,
) -> WrittenInput:
    """Give a job input, and end its input if nothing follows."""
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        wait_s = min(wait_s, jobs.MAX_WAIT_S)
        session = call.find(target)
        written = await jobs.write_job(session, job, data, key=write_id, eof=eof, wait_s=wait_s)
        return WrittenInput(written.taken, JobInfo(*written.job))
    raise _cancelled()


async def job_signal(call: Call, target: str, job: str, signal: str) -> JobInfo:
    """Send a signal to the processes of a job."""
    return await _change(call, target, "job_signal", job, signal=signal_number(signal))


def signal_number(name: str) -> int:
    """The number of a signal, from its name or number."""
    text = name.upper().removeprefix("SIG")
    if text.isdecimal() and len(text) < 3 and int(text) <= signals.SIGRTMAX:
        return int(text)
    found = getattr(signals, f"SIG{text}", None)
    if isinstance(found, signals.Signals):
        return int(found)
    raise BadRequestError(
        f"There is no signal {name[:40]!r}.", hint="Say INT, TERM, KILL, HUP, USR1 or a number."
    )


async def job_stop(call: Call, target: str, job: str, grace_s: float | None = None) -> JobInfo:
    """End a job: interrupt it, then SIGTERM, then kill it with all that it has started."""
    if grace_s is None:
        grace_s = call.services.run_service.session_manager.grace_s
    return await _change(call, target, "job_stop", job, grace_s=grace_s)


async def job_resize(call: Call, target: str, job: str, rows: int, columns: int) -> JobInfo:
    """Change the size of a job's terminal."""
    return await _change(call, target, "job_resize", job, rows=rows, columns=columns)


async def job_list(call: Call, target: str) -> list[JobInfo]:
    """List the jobs of a session."""
    return [JobInfo(*each) for each in await jobs.list_jobs(call.find(target))]


async def _change(call: Call, target: str, kind: str, job: str, **args: object) -> JobInfo:
    return JobInfo(*await jobs.change_job(call.find(target), kind, job, **args))


def _cancelled() -> BadRequestError:
    return BadRequestError("The request was cancelled.")
