"""Operations of the control socket: a row in `OPERATIONS` for each, with its description in
`nsm.wire` and the function that carries it out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from nsm.dataclass import dataclass
from nsm.wire import code as wire_code
from nsm.wire import environments as wire_environments
from nsm.wire import files as wire_files
from nsm.wire import fresh as wire_fresh
from nsm.wire import host as wire_host
from nsm.wire import inspection as wire_inspection
from nsm.wire import jobs as wire_jobs
from nsm.wire import status as wire_status
from nsm.wire import telemetry as wire_telemetry
from nsm.wire.decode import DecodeError, read_arguments
from nsm.wire.errors import BadRequestError, NsmError
from nsm.wire.operation import Operation, Right, encode
from nsmd.control.call import Call
from nsmd.control.ops import (
    bridge,
    environments,
    files,
    fresh,
    inspection,
    jobs,
    network,
    run,
    sessions,
    supervisor,
)
from nsmd.manager.jobs import ProgramStart
from nsmd.model import names
from nsmd.sessions.execution import Execution

P = ParamSpec("P")
R = TypeVar("R")

WaitsFor: TypeAlias = Callable[[Mapping[str, Any]], str | None]
"""Function that returns the target of a request: empty if it concerns no session, None if it may
concern all. After a restart, the request waits until the sessions that the target may mean have
said what they run.
"""


def _all(_: Mapping[str, Any]) -> None:
    return None


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


@dataclass(frozen=True, slots=True)
class Row:
    """An operation.

    Attributes:
        function: carries it out, and returns the answer.
        submit: returns the execution or start, if its result is the whole answer.
        refused: called before a request without the right is refused.
    """

    description: Operation[..., Any]
    function: Callable[..., Awaitable[Any]]
    submit: Callable[..., Execution | ProgramStart | None]
    waits_for: WaitsFor
    refused: Callable[[Call, NsmError], None]

    @property
    def right(self) -> Right:
        """Right that it needs."""
        return self.description.right

    @property
    def own(self) -> bool:
        """True if connections with only the right `run` may use it, for their own scope."""
        return self.description.own

    def read(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Read the arguments of a request.

        Raises:
            BadRequestError: one is missing or wrong.
        """
        try:
            return read_arguments(self.description.function, args)
        except DecodeError as error:
            if error.missing:
                raise BadRequestError(
                    f"Argument {error.path!r} is required.", hint=f"It is {error.expected}."
                ) from None
            raise BadRequestError(
                f"Argument {error.path!r} is {error.found!r:.80}, not {error.expected}."
            ) from None

    def answer(self, value: Any) -> dict[str, Any]:
        """Make what is sent of what the function returned."""
        key = self.description.key
        sent: dict[str, Any] = {key: value} if key else value
        return encode(sent) if key or not isinstance(value, dict) else sent


def _submit_nothing(_call: Call, **_arguments: object) -> None:
    """Have the operation answer by itself."""


def _row(
    description: Operation[P, R],
    function: Callable[Concatenate[Call, P], Awaitable[R | dict[str, Any] | list[dict[str, Any]]]],
    submit: Callable[..., Execution | ProgramStart | None] = _submit_nothing,
    *,
    waits_for: WaitsFor = _all,
    refused: Callable[[Call, NsmError], None] = lambda _call, _error: None,
) -> Row:
    """Make the row of an operation from its description and its function, which type checkers
    compare. The function may return plain maps in place of values.
    """
    return Row(description, function, submit, waits_for, refused)


OPERATIONS: Mapping[str, Row] = {
    row.description.name: row
    for row in (
        _row(wire_status.ping, supervisor.ping, waits_for=_no_session),
        _row(wire_status.status, supervisor.status, waits_for=_no_session),
        _row(wire_telemetry.pool, supervisor.pool, waits_for=_no_session),
        _row(wire_host.boxes, network.boxes),
        _row(wire_host.box_open, network.box_open),
        _row(wire_host.bridge_programs, bridge.bridge_programs),
        _row(wire_host.bridge_help, bridge.bridge_help),
        _row(wire_host.bridge_run, bridge.bridge_run, refused=bridge.refused),
        _row(wire_code.sessions, sessions.sessions),
        _row(wire_host.ports, network.ports),
        _row(wire_host.port_open, network.port_open),
        _row(wire_host.port_close, network.port_close),
        _row(wire_host.secrets, network.secrets, waits_for=_no_session),
        _row(wire_host.secret_test, network.secret_test, waits_for=_no_session),
        _row(wire_host.secret_revoke, network.secret_revoke),
        _row(wire_inspection.net, network.net),
        _row(wire_inspection.inspect, inspection.inspect),
        _row(wire_environments.envs, environments.envs, waits_for=_no_session),
        _row(
            wire_code.run,
            run.streaming(run.submit),
            run.not_streaming(run.submit),
            waits_for=_session_of_run,
        ),
        _row(wire_code.run_write, run.run_write, waits_for=_target),
        _row(wire_code.result, run.result),
        _row(wire_code.session_open, sessions.session_open, waits_for=_no_session),
        _row(wire_code.session_keep, sessions.session_keep, waits_for=_target),
        _row(wire_code.session_fork, sessions.session_fork, waits_for=_target),
        _row(wire_jobs.job_start, jobs.job_start, jobs.submit, waits_for=_session_of_run),
        _row(wire_jobs.job_list, jobs.job_list, waits_for=_target),
        _row(wire_jobs.job_read, jobs.job_read, waits_for=_target),
        _row(wire_jobs.job_write, jobs.job_write, waits_for=_target),
        _row(wire_jobs.job_signal, jobs.job_signal, waits_for=_target),
        _row(wire_jobs.job_stop, jobs.job_stop, waits_for=_target),
        _row(wire_jobs.job_resize, jobs.job_resize, waits_for=_target),
        _row(wire_fresh.run_fresh, fresh.run_fresh, waits_for=_session_of_run),
        _row(wire_fresh.fresh_open, fresh.fresh_open, waits_for=_session_of_run),
        _row(wire_fresh.fresh_next, fresh.fresh_next, waits_for=_no_session),
        _row(wire_fresh.fresh_close, fresh.fresh_close, waits_for=_no_session),
        _row(wire_code.find, sessions.find),
        _row(wire_code.interrupt, sessions.interrupt),
        _row(wire_code.kill, sessions.kill),
        _row(wire_status.drain, supervisor.drain),
        _row(wire_telemetry.metrics, supervisor.metrics),
        _row(wire_telemetry.stats, supervisor.stats),
        _row(wire_telemetry.http, supervisor.http),
        _row(wire_telemetry.events, supervisor.events),
        _row(wire_status.reload, supervisor.reload),
        _row(wire_status.config_reload, supervisor.config_reload),
        _row(wire_status.shutdown, supervisor.shutdown),
        _row(wire_code.logs, sessions.logs),
        _row(
            wire_code.run_in,
            run.streaming(sessions.submit_in),
            run.not_streaming(sessions.submit_in),
        ),
        _row(
            wire_code.undo,
            run.streaming(sessions.submit_undo),
            run.not_streaming(sessions.submit_undo),
            waits_for=_target,
        ),
        _row(wire_code.complete, sessions.complete),
        _row(wire_code.check, sessions.check),
        _row(wire_environments.env_add, environments.env_add),
        _row(wire_environments.env_update, environments.env_update),
        _row(wire_environments.env_list, environments.env_list),
        _row(wire_environments.env_remove, environments.env_remove),
        _row(wire_environments.env_log, environments.env_log),
        _row(wire_environments.env_gc, environments.env_gc),
        _row(wire_environments.env_preload, environments.env_preload),
        _row(wire_environments.env_found, environments.env_found, waits_for=_no_session),
        _row(wire_environments.env_use, environments.env_use, waits_for=_no_session),
        _row(wire_environments.env_forget, environments.env_forget, waits_for=_no_session),
        _row(wire_files.file_open, files.file_open),
        _row(wire_files.file_read, files.file_read),
        _row(wire_files.file_write, files.file_write),
        _row(wire_files.file_close, files.file_close),
        _row(wire_files.file_mkdir, files.file_mkdir),
        _row(wire_files.file_get, files.file_get),
        _row(wire_files.file_put, files.file_put),
        _row(wire_files.file_stat, files.file_stat),
        _row(wire_files.file_entries, files.file_entries),
        _row(wire_files.file_remove, files.file_remove),
        _row(wire_files.file_rename, files.file_rename),
        _row(wire_files.file_watch, files.file_watch),
        _row(wire_files.file_events, files.file_events),
        _row(wire_files.file_unwatch, files.file_unwatch),
        _row(wire_files.changes, files.changes),
        _row(wire_files.change, files.change),
        _row(wire_files.apply, files.apply),
        _row(wire_files.discard, files.discard),
    )
}
