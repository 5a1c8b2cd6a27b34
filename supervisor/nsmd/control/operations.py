"""Operations of the control socket: a row in `OPERATIONS` and a function for each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from nsm._version import program_version
from nsm.dataclass import dataclass, replace
from nsm.wire import ports as wire_ports
from nsm.wire.decode import DecodeError, read_arguments
from nsm.wire.errors import (
    BadRequestError,
    ForbiddenError,
    NsmError,
    UnknownSessionError,
    UnreadableSessionError,
)
from nsm.wire.live import FORKED_FROM
from nsm.wire.operation import Operation as Description
from nsm.wire.operation import encode
from nsmd.control import arguments
from nsmd.control.call import Call, Right
from nsmd.control.ops import (
    attach,
    boxes,
    bridge,
    catalog,
    changes,
    drain,
    environments,
    files,
    fork,
    inspection,
    jobs,
    network,
    pool,
    ports,
    preloading,
    project_environments,
    reload,
    run,
    sandbox,
    secrets,
    telemetry,
)
from nsmd.host.paths import is_within
from nsmd.manager.job_starts import ProgramStart, SessionForJob, session_for_job
from nsmd.manager.listing import unread_row
from nsmd.manager.session_index import project_path
from nsmd.model import names
from nsmd.model.limits import check_inherited
from nsmd.model.values import OutputSink, ProjectMount, RunRequest
from nsmd.restart.earlier_sessions import UnreadSession
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session

P = ParamSpec("P")
R = TypeVar("R")

KILL_WAIT_S = 5.0
"""How long `kill` waits until the killed sessions are gone; the kernel needs milliseconds."""

_OF_HTTP = {"enabled", "listen", "url", "token", "connections", "max_connections", "problem"}
"""Fields that `status` shows; the operation `http` has the rest."""


async def _ping(call: Call) -> dict[str, Any]:  # noqa: ARG001 (all operations look alike)
    return {}


async def _status(call: Call) -> dict[str, Any]:
    services = call.services
    if call.confined:
        return {"version": program_version()}
    hidden = services.silent.problem if services.silent else ""
    return {
        "version": program_version(),
        "pid": services.pid,
        "uptime_s": trio.current_time() - services.started_s,
        "sessions": len(services.run_service.live_sessions()),
        "spares": services.run_service.session_manager.pool.spares,
        "clients": services.clients(),
        "socket": services.socket_path,
        "jail": dict(services.jail),
        "limits": dict(services.limits),
        "draining": services.ending.draining or None,
        "audit": dict(services.audit()),
        "survival": {
            "kind": services.store.kind,
            "problem": hidden or services.store.problem,
            "unread": services.left_alone.problem,
            "hidden": hidden,
        },
        "bridge": dict(services.bridge.facts()),
        "http": {name: value for name, value in services.http().items() if name in _OF_HTTP},
        "ports": {
            "open": len(services.ports.rows()),
            "unopened": len(services.ports.unopened()),
        },
    }


def _request(call: Call, code: str) -> RunRequest:
    """The request to run code, or to find the session for a program."""
    args = call.args
    inherited = check_inherited(
        call.services.run_service.inherit, arguments.optional_map(args, "variables") or {}
    )
    project = _project(call)
    wanted = arguments.optional_map(args, "project") or {}
    return RunRequest(
        client=call.as_client(
            scope=call.names_in(project),
            project=project,
            inherited=inherited,
            network=network.wanted(call),
            secrets=secrets.wanted(call),
        ),
        env=arguments.optional_text(args, "env") or "",
        language=arguments.optional_text(args, "language") or "",
        code=code,
        session=arguments.optional_text(args, "session"),
        timeout_s=arguments.optional_number(args, "timeout_s"),
        execution_id=arguments.optional_text(args, "execution_id"),
        again=arguments.flag(args, "again"),
        sent_to=arguments.optional_text(args, "sent_to") or "",
        reset=arguments.flag(args, "reset"),
        must_exist=arguments.flag(args, "must_exist"),
        stdin=arguments.flag(args, "stdin"),
        argv=tuple(arguments.texts(args, "argv")),
        project_mode=project.mode if project is not None and wanted.get("mode") else None,
        project_chosen=arguments.flag(wanted, "chosen") or arguments.flag(args, "no_project"),
    )


def _submit(call: Call, on_output: OutputSink | None = None) -> Execution:
    request = _request(call, arguments.text(call.args, "code"))
    run_service = call.services.run_service
    if (found := _in_named_session(call, request)) is not None:
        return run_service.submit(found, on_output)
    return run_service.retries.find_of_gone(request).join(on_output)


def _session_for_job(call: Call) -> SessionForJob:
    request = _request(call, "")
    run_service = call.services.run_service
    if (found := _in_named_session(call, request)) is not None:
        return session_for_job(run_service, found)
    raise run_service.retries.job_of_gone(request)


def _start_job(call: Call) -> ProgramStart:
    return jobs.start(call, _session_for_job)


def _in_named_session(call: Call, request: RunRequest) -> RunRequest | None:
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


async def _find(call: Call) -> dict[str, Any]:
    """Find the session that a target means, and say whether its name led to another project."""
    target, here = arguments.text(call.args, "target"), call.here()
    session = call.target()
    own = here is None or here.has(session) or session.name != target
    tenancy = session.tenancy
    return {
        "id": session.id,
        "name": session.name,
        "scope": tenancy.scope if tenancy is not None else "",
        "project": project_path(session),
        "elsewhere": not own,
    }


async def _result_of(call: Call) -> dict[str, Any]:
    execution_id = arguments.text(call.args, "execution_id")
    execution = call.services.run_service.execution(
        execution_id, call.scope if call.confined else None
    )
    return run.result_to_wire(await execution.wait())


async def _sessions(call: Call) -> dict[str, Any]:
    """List the live sessions: in events if the client asks for `stream`, else in the answer. One
    frame has room for some thousands of rows only.
    """
    run_service = call.services.run_service
    unusable = run_service.session_manager.index.unread
    scope = call.scope if call.confined else None
    stream = arguments.flag(call.args, "stream")
    rows: list[dict[str, Any]] = []
    for part in run_service.parts(scope):
        described = [row._asdict() for row in await run_service.describe(part)]
        if not call.confined:  # what is outside is not theirs to know
            for row in described:
                row["ports"] = encode(ports.addresses_of(call, row["id"]))
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
    if arguments.flag(call.args, "all"):
        ended = run_service.describe_ended()
        answer["ended"] = [row._asdict() for row in ended if scope in (None, row.scope)]
    return answer


async def _kill(call: Call) -> dict[str, Any]:
    run_service, args = call.services.run_service, call.args
    unusable = run_service.session_manager.index.unread
    targets = arguments.texts(args, "targets")
    idle_s = arguments.optional_number(args, "idle_s")
    everything, labels = arguments.flag(args, "all"), sandbox.labels_of(args)
    if (bool(targets), idle_s is not None, everything, bool(labels)).count(True) != 1:
        raise BadRequestError(
            "`kill` takes exactly one of `targets`, `idle_s`, `all` and `labels`.",
            hint="Name sessions, or say `all`, `idle_s` or `labels`.",
        )
    errors: list[dict[str, Any]] = []
    chosen: dict[str, Session] = {}
    unread: dict[str, UnreadSession] = {}
    scope = call.scope if call.confined else None
    if everything:
        chosen = {s.id: s for s in run_service.live_sessions()}
        unread = {each.id: each for each in unusable.live(scope)}
    elif idle_s is not None:
        chosen = {s.id: s for s in run_service.idle_longer_than(idle_s)}
    elif labels:
        live = run_service.live_sessions()
        chosen = {s.id: s for s in live if sandbox.has_labels(s, labels)}
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


async def _interrupt(call: Call) -> dict[str, Any]:
    session = call.target()
    return {"interrupted": session.interrupt(), "session": session.id}


async def _config_reload(call: Call) -> dict[str, Any]:
    return (await call.services.configuration.reload(call.client)).to_wire()


async def _shutdown(call: Call) -> dict[str, Any]:
    await call.services.save_all()
    call.afterwards(call.services.shutdown)
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """An operation.

    Attributes:
        right: right that it needs.
        own: connections with only the right `run` may also use it; it then covers their own scope
            only.
        function: carries it out, and returns the answer.
        submit: returns the execution or start, if its result is the whole answer.
        waits_for: returns the target of a request, empty if it concerns no session, None if it may
            concern all. After a restart, the request waits until the sessions that the target may
            mean have said what they run.
        refused: called before a request without the right is refused.
    """

    right: Right
    function: Callable[..., Awaitable[Any]]
    submit: Callable[..., Execution | ProgramStart | None] = lambda _, **_args: None
    own: bool = False
    waits_for: Callable[[Mapping[str, Any]], str | None] = lambda _: None
    refused: Callable[[Call, NsmError], None] = lambda _call, _error: None
    description: Description[..., Any] | None = None

    def read(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Read the arguments of a request.

        Raises:
            BadRequestError: one is missing or wrong.
        """
        if self.description is None:
            return {}
        try:
            return read_arguments(self.description.function, args)
        except DecodeError as error:
            raise arguments.refusal(error) from None

    def answer(self, value: Any) -> dict[str, Any]:
        """Make what is sent of what the function returned."""
        key = "" if self.description is None else self.description.key
        sent: dict[str, Any] = {key: value} if key else value
        return encode(sent) if key or not isinstance(value, dict) else sent


def _row(
    description: Description[P, R],
    function: Callable[Concatenate[Call, P], Awaitable[R | dict[str, Any]]],
    *,
    waits_for: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
) -> Row:
    """Make the row of an operation from its description and its function, which type checkers
    compare.
    """
    return Row(
        description.right,
        function,
        own=description.own,
        waits_for=waits_for,
        description=description,
    )


def _no_session(_: Mapping[str, Any]) -> str:
    return ""


def _session_of_run(args: Mapping[str, Any]) -> str | None:
    name = args.get("session")
    if isinstance(name, str) and name != names.NEW:
        return name
    return None if args.get("again") else ""


def _target(args: Mapping[str, Any]) -> str | None:
    target = args.get("target")
    return target if isinstance(target, str) else ""


OPERATIONS: Mapping[str, Row] = {
    "ping": Row("read", _ping, own=True, waits_for=_no_session),
    "status": Row("read", _status, own=True, waits_for=_no_session),
    "pool": Row("read", pool.pool, waits_for=_no_session),
    "boxes": Row("read", boxes.boxes),
    "box_open": Row("manage", boxes.box_open),
    "bridge_programs": Row("bridge", bridge.bridge_programs),
    "bridge_help": Row("bridge", bridge.bridge_help),
    "bridge_run": Row("bridge", bridge.bridge_run, refused=bridge.refused),
    "sessions": Row("read", _sessions, own=True),
    "ports": _row(wire_ports.ports, ports.ports),
    "port_open": _row(wire_ports.port_open, ports.port_open),
    "port_close": _row(wire_ports.port_close, ports.port_close),
    "secrets": Row("read", secrets.secrets, waits_for=_no_session),
    "secret_test": Row("manage", secrets.secret_test, waits_for=_no_session),
    "secret_revoke": Row("manage", secrets.secret_revoke),
    "net": Row("manage", network.net),
    "inspect": Row("read", inspection.inspect, own=True),
    "envs": Row("read", catalog.envs, own=True, waits_for=_no_session),
    "run": Row(
        "run", run.streaming(_submit), run.not_streaming(_submit), waits_for=_session_of_run
    ),
    "run_write": Row("manage", run.run_write, own=True, waits_for=_target),
    "result": Row("run", _result_of),
    "session_open": Row("run", sandbox.opening(_request), waits_for=_no_session),
    "session_keep": Row("manage", sandbox.session_keep, own=True, waits_for=_target),
    "session_fork": Row("manage", fork.fork, own=True, waits_for=_target),
    "job_start": Row(
        "run", jobs.starting(_start_job), jobs.started(_start_job), waits_for=_session_of_run
    ),
    "job_list": Row("manage", jobs.job_list, own=True, waits_for=_target),
    "job_read": Row("manage", jobs.job_read, own=True, waits_for=_target),
    "job_write": Row("manage", jobs.job_write, own=True, waits_for=_target),
    "job_signal": Row("manage", jobs.job_signal, own=True, waits_for=_target),
    "job_stop": Row("manage", jobs.job_stop, own=True, waits_for=_target),
    "job_resize": Row("manage", jobs.job_resize, own=True, waits_for=_target),
    "find": Row("read", _find, own=True),
    "interrupt": Row("manage", _interrupt, own=True),
    "kill": Row("manage", _kill, own=True),
    "drain": Row("manage", drain.drain),
    "metrics": Row("read", telemetry.metrics),
    "stats": Row("read", telemetry.stats),
    "http": Row("read", telemetry.http),
    "events": Row("manage", telemetry.events),
    "reload": Row("manage", reload.reload),
    "config_reload": Row("manage", _config_reload),
    "shutdown": Row("manage", _shutdown),
    "logs": Row("manage", attach.logs),
    "run_in": Row("manage", run.streaming(attach.submit_in), run.not_streaming(attach.submit_in)),
    "undo": Row(
        "manage",
        run.streaming(attach.submit_undo),
        run.not_streaming(attach.submit_undo),
        own=True,
        waits_for=_target,
    ),
    "complete": Row("manage", attach.complete),
    "check": Row("manage", attach.check),
    "env_add": Row("manage", environments.env_add),
    "env_update": Row("manage", environments.env_update),
    "env_list": Row("manage", environments.env_list),
    "env_remove": Row("manage", environments.env_remove),
    "env_log": Row("manage", environments.env_log),
    "env_gc": Row("manage", environments.env_gc),
    "env_preload": Row("manage", preloading.env_preload),
    "env_found": Row("manage", project_environments.env_found, waits_for=_no_session),
    "env_use": Row("manage", project_environments.env_use, waits_for=_no_session),
    "env_forget": Row("manage", project_environments.env_forget, waits_for=_no_session),
    "file_open": Row("manage", files.file_open, own=True),
    "file_read": Row("manage", files.file_read, own=True),
    "file_write": Row("manage", files.file_write, own=True),
    "file_close": Row("manage", files.file_close, own=True),
    "file_mkdir": Row("manage", files.file_mkdir, own=True),
    "file_get": Row("manage", files.file_get, own=True),
    "file_put": Row("manage", files.file_put, own=True),
    "file_stat": Row("manage", files.file_stat, own=True),
    "file_entries": Row("manage", files.file_entries, own=True),
    "file_remove": Row("manage", files.file_remove, own=True),
    "file_rename": Row("manage", files.file_rename, own=True),
    "file_watch": Row("manage", files.file_watch, own=True),
    "file_events": Row("manage", files.file_events, own=True),
    "file_unwatch": Row("manage", files.file_unwatch, own=True),
    "changes": Row("manage", changes.changes),
    "change": Row("manage", changes.change),
    "apply": Row("manage", changes.apply),
    "discard": Row("manage", changes.discard),
}


def _project(call: Call) -> ProjectMount | None:
    wanted = arguments.optional_map(call.args, "project")
    if wanted is None:
        return _project_within(call)
    if call.confined:
        return _chosen_within(call, wanted)
    run_service, path = call.services.run_service, arguments.text(wanted, "path")
    live = None
    if name := arguments.optional_text(call.args, "session"):
        scope = names.command_line_scope(path) if call.by_project else call.scope
        live = run_service.named(scope, name)
    return run_service.check_project(
        path,
        arguments.optional_text(wanted, "mount_point"),
        arguments.optional_text(wanted, "mode"),
        live,
    )


def _chosen_within(call: Call, wanted: Mapping[str, object]) -> ProjectMount | None:
    """Check a directory that a box names: it must be its own. Nothing is said about others on the
    host.

    Raises:
        ForbiddenError: it is another one.
    """
    client_limits, path = call.client_limits, arguments.text(wanted, "path")
    if client_limits is not None and client_limits.project is not None:
        real = os.path.realpath(path)
        if path.startswith("/") and is_within(real, client_limits.project.path):
            mount = call.services.run_service.check_project(
                real,
                arguments.optional_text(wanted, "mount_point"),
                arguments.optional_text(wanted, "mode"),
            )
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


def _project_within(call: Call) -> ProjectMount | None:
    """Return the project that connections of that socket get by default."""
    return None if call.client_limits is None else call.client_limits.project
