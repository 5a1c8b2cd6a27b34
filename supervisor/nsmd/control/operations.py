"""The operations of the control socket: a row in `OPERATIONS` and a function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import trio

from nsm._version import __version__
from nsm.wire.errors import BadRequestError, NsmError
from nsmd.control import arguments
from nsmd.control.stream import OutputStream
from nsmd.execution import Execution
from nsmd.registry import ALIASES, Registry, as_row
from nsmd.session import Session
from nsmd.values import Client, Environment, ProjectMount, RunRequest, RunResult

Right = Literal["read", "run", "manage"]

ALL_RIGHTS: frozenset[Right] = frozenset(("read", "run", "manage"))

KILL_WAIT_S = 5.0
"""How long `kill` waits for what it killed to be gone; the kernel needs milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What operations work on; the daemon makes one.

    Attributes:
        jail: facts for people: how jails are made here.
        shutdown: asks the daemon to end.
        clients: how many connections there are.
        started_s: on trio's clock.
    """

    registry: Registry
    socket_path: str
    pid: int
    jail: Mapping[str, Any]
    started_s: float
    shutdown: Callable[[], None]
    clients: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request being carried out.

    Attributes:
        client, scope: from the connection's hello.
        emit: sends an event that belongs to the request; waits for a slow client.
        on_cancel: says what to do when the client cancels.
        afterwards: says what to do once the answer has been sent.
    """

    services: Services
    args: arguments.Arguments
    client: str
    scope: str
    emit: Callable[[str, dict[str, Any]], Awaitable[None]]
    on_cancel: Callable[[Callable[[], None]], None]
    afterwards: Callable[[Callable[[], None]], None]


Operation = Callable[[Call], Awaitable[dict[str, Any]]]


async def _ping(call: Call) -> dict[str, Any]:  # noqa: ARG001 (all operations look alike)
    return {}


async def _status(call: Call) -> dict[str, Any]:
    services = call.services
    return {
        "version": __version__,
        "pid": services.pid,
        "uptime_s": trio.current_time() - services.started_s,
        "sessions": len(services.registry.live_sessions()),
        "spares": services.registry.pool.spares,
        "clients": services.clients(),
        "socket": services.socket_path,
        "jail": dict(services.jail),
    }


async def _run(call: Call) -> dict[str, Any]:
    args = call.args
    request = RunRequest(
        client=Client(name=call.client, scope=call.scope, project=_project(call)),
        env=arguments.text(args, "env"),
        code=arguments.text(args, "code"),
        session=arguments.optional_text(args, "session"),
        timeout_s=arguments.optional_number(args, "timeout_s"),
        execution_id=arguments.optional_text(args, "execution_id"),
    )
    stream = OutputStream() if arguments.flag(args, "stream") else None
    execution = await call.services.registry.submit(request, stream.put if stream else None)
    call.on_cancel(execution.interrupt)
    try:
        if stream is not None:
            await _send_output_until_done(call, stream, execution)
        return _result(await execution.wait())
    finally:
        if not execution.done:  # cancelled: the client is gone
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


async def _result_of(call: Call) -> dict[str, Any]:
    execution = call.services.registry.execution(arguments.text(call.args, "execution_id"))
    return _result(await execution.wait())


async def _sessions(call: Call) -> dict[str, Any]:
    return {"sessions": [as_row(row) for row in await call.services.registry.describe()]}


async def _kill(call: Call) -> dict[str, Any]:
    registry, args = call.services.registry, call.args
    targets = arguments.texts(args, "targets")
    idle_s = arguments.optional_number(args, "idle_s")
    everything = arguments.flag(args, "all")
    if (bool(targets), idle_s is not None, everything).count(True) != 1:
        raise BadRequestError(
            "`kill` takes exactly one of `targets`, `idle_s` and `all`.",
            hint="Name sessions, or say `all` or `idle_s`.",
        )
    errors: list[dict[str, Any]] = []
    chosen: dict[str, Session] = {}
    if everything:
        chosen = {s.id: s for s in registry.live_sessions()}
    elif idle_s is not None:
        chosen = {s.id: s for s in registry.idle_longer_than(idle_s)}
    for target in targets:
        try:
            session = registry.find(target)
            chosen[session.id] = session
        except NsmError as error:
            errors.append({"target": target, "error": error.to_wire()})
    for session in chosen.values():
        session.end(f"killed by {call.client}")
    with trio.move_on_after(KILL_WAIT_S):
        for session in chosen.values():
            await session.wait_ended()
    return {"killed": [{"id": s.id, "name": s.name} for s in chosen.values()], "errors": errors}


async def _interrupt(call: Call) -> dict[str, Any]:
    session = call.services.registry.find(arguments.text(call.args, "target"))
    return {"interrupted": session.interrupt(), "session": session.id}


async def _envs(call: Call) -> dict[str, Any]:
    return {"environments": [_environment(e) for e in call.services.registry.environments()]}


async def _shutdown(call: Call) -> dict[str, Any]:
    call.afterwards(call.services.shutdown)
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """An operation: the right it needs, and what carries it out."""

    right: Right
    function: Operation


OPERATIONS: Mapping[str, Row] = {
    "ping": Row("read", _ping),
    "status": Row("read", _status),
    "sessions": Row("read", _sessions),
    "envs": Row("read", _envs),
    "run": Row("run", _run),
    "result": Row("run", _result_of),
    "interrupt": Row("run", _interrupt),
    "kill": Row("manage", _kill),
    "shutdown": Row("manage", _shutdown),
}


def _project(call: Call) -> ProjectMount | None:
    wanted = arguments.optional_map(call.args, "project")
    if wanted is None:
        return None
    return call.services.registry.check_project(
        arguments.text(wanted, "path"), arguments.optional_text(wanted, "mount_point")
    )


def _result(result: RunResult) -> dict[str, Any]:
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


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "name": environment.name,
        "interpreter": environment.interpreter,
        "description": environment.description,
        "available": environment.problem is None,
        "problem": environment.problem,
        "source": environment.source,
        "program": environment.program,
        "timeout_s": environment.timeout_s,
        "memory_mb": environment.memory_mb,
        "aliases": [alias for alias, name in ALIASES.items() if name == environment.name],
    }
