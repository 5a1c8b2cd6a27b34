"""Arguments of the control socket's operations, shared by the blocking and the async client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from nsm._version import program_version
from nsm.client.projects import NO_PROJECT
from nsm.client.retry import RECONNECTED
from nsm.hosts.place import leads_elsewhere
from nsm.wire.answers import read
from nsm.wire.errors import BadProjectError, BadRequestError, CodeTooLargeError
from nsm.wire.frames import MAX_FRAME_BYTES
from nsm.wire.live import SessionRow
from nsm.wire.messages import RESUMES, Hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsm.client.projects import Project
    from nsm.wire.messages import Event
    from nsm.wire.transcripts import Entry

NetworkAction: TypeAlias = Literal["list", "allow", "deny", "off"]
Stream: TypeAlias = Literal["stdout", "stderr"]

if TYPE_CHECKING:
    OnOutput: TypeAlias = Callable[[Stream, str], object]
    OnEntry: TypeAlias = Callable[[Entry], object]

PROJECT_SHELL = "project"
"""The environment that is a project's own shell, and may have variables of its clients."""

_FRAME_RESERVE_BYTES = 64 * 1024
"""Room in a frame for everything but the code."""


class RunSettings(TypedDict, total=False):
    """Settings of a run; `nsm.Client.run` describes them."""

    session: str | None
    timeout_s: float | None
    execution_id: str | None
    mount_point: str | None
    project_mode: str | None
    network: str | None
    secrets: Sequence[str] | None
    reset: bool
    must_exist: bool


def check_names(settings: Mapping[str, object], kind: type) -> None:
    """Check that there are settings of these names.

    Args:
        kind: a `TypedDict`.

    Raises:
        TypeError: there is none of such a name, as with any other argument.
    """
    if unknown := sorted(settings.keys() - kind.__annotations__):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")


def hello(*, name: str, scope: str, project: str | None = None, path: str | None = None) -> Hello:
    """How a client introduces itself.

    Args:
        path: path of the socket, if a lost connection is opened again.
    """
    return Hello(
        name=name,
        program_version=program_version(),
        scope=scope,
        # On this machine, only the end of a client or of the supervisor ends a connection.
        capabilities=(RESUMES,) if path is not None and leads_elsewhere(path) else (),
        project=project or "",
    )


def run_arguments(
    code: str,
    *,
    env: str,
    session: str | None = None,
    timeout_s: float | None = None,
    execution_id: str | None = None,
    project: Project = NO_PROJECT,
    mount_point: str | None = None,
    project_mode: str | None = None,
    network: str | None = None,
    secrets: Sequence[str] | None = None,
    stream: bool = False,
    inherit: Iterable[str] = (),
    language: str = "",
    reset: bool = False,
    must_exist: bool = False,
    stdin: bool = False,
    data: bool = False,
    argv: Sequence[str] = (),
) -> dict[str, Any]:
    """The arguments of `run`; what is None is left out, for the supervisor to decide.

    Args:
        env: empty to have the supervisor choose, by session, configuration and language.
        inherit: names of variables of this process that the supervisor asked for.
        language: language of the code, if `env` is empty.
        data: have output as bytes, which need not be UTF-8, where it is streamed.
        argv: absolute path of the file that the code is from, and the script's arguments.

    Raises:
        BadRequestError: the code has characters that no UTF-8 text can have.
        BadProjectError: so has the project's path.
        CodeTooLargeError: the code does not fit into a frame. (The supervisor's limit is lower.)
    """
    _check_code(code)
    arguments = where_arguments(
        env=env,
        session=session,
        project=project,
        mount_point=mount_point,
        project_mode=project_mode,
        network=network,
        secrets=secrets,
        inherit=inherit,
        language=language,
        must_exist=must_exist,
    )
    arguments["code"] = code
    if stream:
        arguments["stream"] = True
    if reset:
        arguments["reset"] = True
    if stdin:
        arguments["stdin"] = True
    if data:
        arguments["bytes"] = True
    if argv:
        arguments["argv"] = list(argv)
    optional = {"timeout_s": timeout_s, "execution_id": execution_id}
    return arguments | {key: value for key, value in optional.items() if value is not None}


def where_arguments(
    *,
    env: str,
    session: str | None = None,
    project: Project = NO_PROJECT,
    mount_point: str | None = None,
    project_mode: str | None = None,
    network: str | None = None,
    secrets: Sequence[str] | None = None,
    inherit: Iterable[str] = (),
    language: str = "",
    must_exist: bool = False,
) -> dict[str, Any]:
    """The arguments that say in which session something runs, as in `run_arguments`."""
    arguments: dict[str, Any] = {"env": env} if env else {}
    if language:
        arguments["language"] = language
    if session is not None:
        arguments["session"] = session
    if must_exist:
        arguments["must_exist"] = True
    if network is not None:
        from nsm.wire.network import network_argument  # noqa: PLC0415  # few programs say

        arguments["network"] = network_argument(network)
    if secrets is not None:
        arguments["secrets"] = list(secrets)
    if env == PROJECT_SHELL and (variables := _variables(inherit)):
        arguments["variables"] = variables
    if project.path is not None:
        shown: dict[str, Any] = {"path": _project_path(project.path)}
        if project.chosen:
            shown["chosen"] = True
        if mount_point is not None:
            shown["mount_point"] = mount_point
        if project_mode is not None:
            shown["mode"] = project_mode
        arguments["project"] = shown
    elif project.chosen:
        arguments["no_project"] = True
    return arguments


def _variables(names: Iterable[str]) -> dict[str, str]:
    """Values of the variables that are set and are text."""
    found: dict[str, str] = {}
    for name in names:
        value = os.environ.get(name)
        if value is not None and _is_text(value):
            found[name] = value
    return found


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_in_arguments(
    target: str,
    code: str,
    *,
    timeout_s: float | None = None,
    execution_id: str | None = None,
    stream: bool = False,
) -> dict[str, Any]:
    """The arguments of `run_in`; errors as in `run_arguments`."""
    _check_code(code)
    arguments: dict[str, Any] = {"target": target, "code": code}
    if stream:
        arguments["stream"] = True
    optional = {"timeout_s": timeout_s, "execution_id": execution_id}
    return arguments | {key: value for key, value in optional.items() if value is not None}


def undo_arguments(target: str, calls: int) -> dict[str, Any]:
    """The arguments of `undo`."""
    return {"target": target, "calls": calls}


def logs_arguments(target: str, *, executions: int | None, follow: bool) -> dict[str, Any]:
    """The arguments of `logs`."""
    arguments: dict[str, Any] = {"target": target, "follow": follow}
    if executions is not None:
        arguments["executions"] = executions
    return arguments


def kill_arguments(targets: str | Iterable[str]) -> dict[str, Any]:
    """The arguments of `kill` for ids, names or ``scope/name``s."""
    return {"targets": [targets] if isinstance(targets, str) else list(targets)}


def lease(session: str) -> tuple[str, dict[str, Any]]:
    """The operation by which a session ends with the connection, and its arguments."""
    return "session_keep", {"target": session, "ends_with_client": True}


def fork_arguments(target: str, names: Iterable[str], count: int | None) -> dict[str, Any]:
    """The arguments of `session_fork`."""
    found: dict[str, Any] = {"target": target, "names": list(names)}
    return found if count is None else {**found, "count": count}


def output_of(event: Event) -> tuple[Stream, str] | None:
    """The stream and text of an `output` event; None for events of any other kind."""
    stream, text = event.data.get("stream"), text_of(event.data.get("text"))
    if event.event != "output" or not isinstance(text, str):
        return None
    if stream == "stdout" or stream == "stderr":  # checkers narrow this
        return stream, text
    return None


def text_of(told: object) -> object:
    """Output as text, in which bytes that are not UTF-8 are lone surrogates."""
    return told.decode("utf-8", "surrogateescape") if isinstance(told, bytes) else told


def output_to(on_output: OnOutput) -> Callable[[Event], None]:
    """A callback for events that hands output on."""

    def on_event(event: Event) -> None:
        output = output_of(event)
        if output is not None:
            on_output(*output)

    return on_event


def rows_to(rows: list[object]) -> Callable[[Event], None]:
    """Make a callback for the events of `sessions`, which collects rows for `rows_of`."""

    def on_event(event: Event) -> None:
        if event.event == "sessions" and isinstance(event.data.get("sessions"), list):
            rows.extend(event.data["sessions"])
        elif event.event == RECONNECTED:  # it starts again
            rows.clear()

    return on_event


def rows_of(rows: list[object], answer: Mapping[str, Any]) -> list[SessionRow]:
    """Return the rows of `sessions`: from its events, and from the answer, in which an older
    supervisor sends all of them.
    """
    streamed = read(list[SessionRow], {"sessions": rows}, "sessions")
    return streamed + read(list[SessionRow], answer, "sessions")


def entries_to(on_entry: OnEntry) -> Callable[[Event], None]:
    """A callback for the events of `logs` that hands entries on."""
    from nsm.wire import transcripts  # noqa: PLC0415  # few programs read logs

    def on_event(event: Event) -> None:
        entry = transcripts.entry(event.event, event.data)
        if entry is not None:
            on_entry(entry)

    return on_event


def _project_path(project: str) -> str:
    path = os.path.abspath(project)
    try:
        path.encode()
    except UnicodeEncodeError:  # frames hold text; sent as it is, it would be another path
        raise BadProjectError(
            f"the path of the project directory is not UTF-8 text: {path!a}",
            hint="Rename it, or name it by a symbolic link.",
        ) from None
    return path


def _check_code(code: str) -> None:
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"the code is not valid text: character {error.start} is half of a surrogate pair",
            hint="Read it as UTF-8.",
        ) from None
    if size > MAX_FRAME_BYTES - _FRAME_RESERVE_BYTES:
        raise CodeTooLargeError(
            f"the code has {size} bytes, more than can be sent at once",
            hint="Put data into a file of the project and read it from there.",
        )
