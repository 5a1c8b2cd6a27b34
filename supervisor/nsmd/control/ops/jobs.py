"""Operations on jobs: programs that run in a session beside its interpreter."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import trio

from nsm.wire.errors import BadRequestError
from nsm.wire.files import PIECE_BYTES
from nsmd.agent_link.frames import JobFacts, JobFrame, JobOutputFrame
from nsmd.control import arguments
from nsmd.control.call import Call, Operation
from nsmd.environments.pending import NO_ENVIRONMENT, patiently
from nsmd.manager.job_starts import ProgramStart, SessionForJob
from nsmd.sessions import jobs

MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
"""Largest size of a job's arguments and variables together; the kernel takes less."""

MAX_KEY_CHARS = 128


class FindSession(Protocol):
    """Function that finds or makes the session for a program."""

    def __call__(self, call: Call, /) -> SessionForJob:
        """Find or make it.

        Raises:
            NsmError: there is none, and none can be made.
        """
        ...


def start(call: Call, find_session: FindSession) -> ProgramStart:
    """Start a job.

    Args:
        find_session: finds or makes the session that a call names.

    Raises:
        NsmError: the arguments are wrong, or there is no such session.
    """
    options = _options(call)
    wait_s = arguments.wait_s(call.args, jobs.MAX_START_WAIT_S)
    found, command = find_session(call), shlex.join(options["argv"])
    told = partial(_start_to_wire, found)
    return ProgramStart(call.services.run_service, found, command, options, wait_s, told)


def started(start_one: Callable[[Call], ProgramStart]) -> Callable[[Call], ProgramStart | None]:
    """Start a job whose environment is known; None for others."""

    def start_if_known(call: Call) -> ProgramStart | None:
        try:
            return start_one(call)
        except NO_ENVIRONMENT:
            return None  # `starting` looks for it

    return start_if_known


def starting(start_one: Callable[[Call], ProgramStart]) -> Operation:
    """Make the operation that starts a job in an environment that may have appeared just now."""

    async def job_start(call: Call) -> dict[str, Any]:
        await call.services.run_service.look(call.as_client())
        begun = await patiently(partial(start_one, call), call.on_cancel)
        call.on_cancel(begun.interrupt)
        told: dict[str, Any] = await begun.wait()
        return told

    return job_start


def _start_to_wire(found: SessionForJob, answer: JobFrame | JobOutputFrame) -> dict[str, Any]:
    session = found.session
    told: dict[str, Any] = {
        "session": {
            "id": session.id,
            "name": session.name,
            "created": found.created,
            "replaced": found.replaced,
        },
        "job": facts_to_wire(answer.job),
    }
    if isinstance(answer, JobOutputFrame):
        told["output"] = _output_to_wire(answer)
    return told


def _options(call: Call) -> dict[str, Any]:
    """Read what is asked for of a job besides its session; raises for wrong arguments."""
    args = call.args
    argv = arguments.texts(args, "argv")
    if not argv:
        raise BadRequestError("Argument 'argv' is required: a program and its arguments.")
    env = arguments.variables(args)
    cwd = arguments.optional_text(args, "cwd")
    size = sum(len(text) for text in argv) + sum(len(each) for each in (*env, *env.values()))
    if size > MAX_ARGUMENT_BYTES:
        raise BadRequestError(
            f"The program's arguments and variables have {size} characters; at most "
            f"{MAX_ARGUMENT_BYTES} are taken.",
            hint="Put large values into files, or send them as input.",
        )
    wanted: dict[str, Any] = {
        "argv": argv,
        "env": env,
        "stdin": arguments.flag(args, "stdin"),
        "grace_s": call.services.run_service.session_manager.grace_s,
    }
    if cwd:
        wanted["cwd"] = cwd
    if (timeout_s := arguments.optional_number(args, "timeout_s")) is not None:
        if not 0 < timeout_s < 1e9:
            raise BadRequestError(
                f"timeout_s must be a number of seconds above 0, not {timeout_s}."
            )
        wanted["timeout_s"] = timeout_s
    if (terminal := arguments.optional_map(args, "tty")) is not None:
        term = arguments.optional_text(terminal, "term")
        wanted["tty"] = _size(terminal) | ({} if term is None else {"term": term})
    if (key := _key(args, "execution_id")) is not None:
        wanted["key"] = f"{call.scope} {key}"
    return wanted


def _key(args: arguments.Arguments, name: str) -> str | None:
    key = arguments.optional_text(args, name)
    if key is not None and (not 1 <= len(key) <= MAX_KEY_CHARS or not key.isprintable()):
        raise BadRequestError(f"{name} must be 1 to {MAX_KEY_CHARS} printable characters.")
    return key


def _size(args: arguments.Arguments) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in ("rows", "columns"):
        value = arguments.optional_count(args, name)
        if value is None or not 0 < value <= 10_000:
            raise BadRequestError(f"A terminal needs {name}, 1 to 10000.")
        found[name] = value
    return found


async def job_read(call: Call) -> dict[str, Any]:
    """Read output of a job, or wait for some."""
    count = arguments.optional_count(call.args, "bytes")
    if count is None:
        count = PIECE_BYTES
    if count > PIECE_BYTES:
        raise BadRequestError(f"Argument 'bytes' is {count}, not 0 to {PIECE_BYTES}.")
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        read = await jobs.read_job(
            call.target(),
            _job(call),
            offset=arguments.optional_count(call.args, "offset") or 0,
            count=count,
            wait_s=arguments.wait_s(call.args, jobs.MAX_WAIT_S),
            hold=arguments.flag(call.args, "hold"),
        )
        return {**_output_to_wire(read), "job": facts_to_wire(read.job)}
    raise _cancelled()


def _output_to_wire(read: JobOutputFrame) -> dict[str, Any]:
    return {
        "offset": read.offset,
        "missing": read.missing,
        "pieces": [list(piece) for piece in read.pieces],
        "data": read.data,
    }


async def job_write(call: Call) -> dict[str, Any]:
    """Give a job input, and end its input if nothing follows."""
    data = arguments.data(call.args, "data") if "data" in call.args else b""
    if len(data) > PIECE_BYTES:
        raise BadRequestError(
            f"Argument 'data' has {len(data)} bytes; at most {PIECE_BYTES} are taken at once."
        )
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        written = await jobs.write_job(
            call.target(),
            _job(call),
            data,
            key=_key(call.args, "write_id"),
            eof=arguments.flag(call.args, "eof"),
            wait_s=arguments.wait_s(call.args, jobs.MAX_WAIT_S),
        )
        return {"taken": written.taken, "job": facts_to_wire(written.job)}
    raise _cancelled()


async def job_signal(call: Call) -> dict[str, Any]:
    """Send a signal to the processes of a job."""
    name = arguments.text(call.args, "signal")
    number = signal_number(name)
    return await _change(call, "job_signal", signal=number)


def signal_number(name: str) -> int:
    """The number of a signal, from its name or number.

    Raises:
        BadRequestError: there is none.
    """
    text = name.upper().removeprefix("SIG")
    if text.isdecimal() and len(text) < 3 and int(text) <= signal.SIGRTMAX:
        return int(text)
    found = getattr(signal, f"SIG{text}", None)
    if isinstance(found, signal.Signals):
        return int(found)
    raise BadRequestError(
        f"There is no signal {name[:40]!r}.", hint="Say INT, TERM, KILL, HUP, USR1 or a number."
    )


async def job_stop(call: Call) -> dict[str, Any]:
    """End a job: interrupt it, then SIGTERM, then kill it with all that it has started."""
    grace_s = arguments.optional_number(call.args, "grace_s")
    if grace_s is None:
        grace_s = call.services.run_service.session_manager.grace_s
    if not 0 <= grace_s < 1e9:
        raise BadRequestError(f"grace_s must be a number of seconds, 0 or more, not {grace_s}.")
    return await _change(call, "job_stop", grace_s=grace_s)


async def job_resize(call: Call) -> dict[str, Any]:
    """Change the size of a job's terminal."""
    return await _change(call, "job_resize", **_size(call.args))


async def job_list(call: Call) -> dict[str, Any]:
    """List the jobs of a session."""
    return {"jobs": [facts_to_wire(each) for each in await jobs.list_jobs(call.target())]}


async def _change(call: Call, kind: str, **args: object) -> dict[str, Any]:
    return {"job": facts_to_wire(await jobs.change_job(call.target(), kind, _job(call), **args))}


def _job(call: Call) -> str:
    return arguments.text(call.args, "job")


def _cancelled() -> BadRequestError:
    return BadRequestError("The request was cancelled.")


def facts_to_wire(facts: JobFacts) -> dict[str, Any]:
    """Describe a job for a client."""
    wire = facts._asdict()
    wire["id"] = wire.pop("job")
    wire["argv"] = list(facts.argv)
    return wire
