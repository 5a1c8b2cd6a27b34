"""The place where code runs: the directory that it sees, and other arguments of operations."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict, TypeVar

from nsm.client.steps import ask
from nsm.hosts.place import wanted_host
from nsm.paths import PathError, home
from nsm.wire.errors import BadProjectError, BadRequestError, CodeTooLargeError, ForbiddenError
from nsm.wire.frames import MAX_FRAME_BYTES
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.wire.code import Place
    from nsm.wire.operation import OperationCall

    ProjectArgument: TypeAlias = "str | os.PathLike[str] | Default | None"


T = TypeVar("T")


class Default:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()


class Project(NamedTuple):
    """
    Attributes:
        path: The directory; None for none.
        chosen: True if somebody named it. If nobody did and it must not be shown, code runs
            without it.
        here: the directory on this machine, if `path` is a copy of it on another one.
    """

    path: str | None
    chosen: bool
    here: str | None = None


NO_PROJECT = Project(None, chosen=False)


def project_of(given: ProjectArgument, host: str | None = None) -> Project:
    """The project that an argument means, where its host has it.

    Args:
        given: a directory; `DEFAULT` is the current one.
        host: as of `nsm.Client`.
    """
    if isinstance(given, Default):
        project = Project(current_project(), chosen=False)
    else:
        path = None if given is None else os.path.abspath(os.path.expanduser(given))
        project = Project(path, chosen=True)
    elsewhere = wanted_host(host)
    if elsewhere is None or project.path is None:
        return project
    from nsm.hosts.place import is_brought, path_there  # noqa: PLC0415  # most clients stay here

    here = project.path if is_brought(elsewhere, project.path) else None
    return project._replace(path=path_there(elsewhere, project.path), here=here)


def bring_project(far_socket: str | None, project: Project, *, anew: bool = False) -> None:
    """Bring a project to the machine of a client as it is now, if that has a copy of it.

    Args:
        anew: as of `nsm.hosts.copies.bring`.

    Raises:
        HostError: it cannot be copied.
    """
    if far_socket is not None and project.here is not None:
        from nsm.hosts.copies import bring  # noqa: PLC0415  # most clients stay here

        bring(far_socket, project.here, anew=anew)


def current_project() -> str | None:
    """The current directory; None where it is no project, or there is none."""
    try:
        path = default_project(os.getcwd(), home())
        if path is not None:
            path.encode()  # frames hold text
    except (OSError, PathError, UnicodeEncodeError):
        return None
    return path


def why_no_project() -> str:
    """Return why there is no `current_project`, for people."""
    try:
        directory = os.getcwd()
    except OSError:
        return "the current directory is not there any more"
    try:
        directory.encode()
    except UnicodeEncodeError:
        return f"the name {directory!r} is not UTF-8; rename the directory, or go to another one"
    return (
        f"{directory} is your home directory or one above it, which code is not shown; go to a "
        "project, or name one with --project DIR"
    )


def default_project(directory: str, home: str) -> str | None:
    """The directory, unless that would show much more than a project."""
    directory, home = os.path.realpath(directory), os.path.realpath(home)
    return None if os.path.commonpath((directory, home)) == directory else directory


class ProjectCalls:
    """Calls that name a project. Both clients are one of these."""

    _project: Project
    _host: str | None = None
    far_socket: str | None = None
    """Path of the socket here, if it is that of another machine."""

    def in_project(
        self,
        project: ProjectArgument,
        project_mode: str | None,
        make: Callable[[Project], OperationCall[T]],
        on_event: OnEvent | None = None,
        *,
        interruptible: bool = False,
        stdin: InputSource | None = None,
    ) -> Steps[T]:
        """Ask for an operation that names a project; without one if nobody has chosen that one, and
        it is refused.

        Args:
            make: makes the request for a project; the rest is as in `ask`.
        """

        def asked(project: Project) -> Steps[T]:
            return ask(make(project), on_event, interruptible=interruptible, stdin=stdin)

        given = self._project if isinstance(project, Default) else project_of(project, self._host)
        if given.here is not None:
            yield partial(bring_project, self.far_socket, given)
        try:
            return (yield from asked(given))
        except (BadProjectError, ForbiddenError) as error:
            if given.here is not None and isinstance(error, BadProjectError):
                yield partial(bring_project, self.far_socket, given, anew=True)
                return (yield from asked(given))
            if given.chosen or given.path is None or project_mode is not None:
                raise
            self._project = NO_PROJECT  # refused before anything ran, and nobody asked for it
        return (yield from asked(NO_PROJECT))

    def in_session(
        self,
        session: str,
        settings: PlaceSettings,
        inherit: Iterable[str],
        make: Callable[[Place], OperationCall[T]],
    ) -> Steps[T]:
        """Ask for an operation in a session, which may be new.

        Args:
            inherit: names of variables of this process that the supervisor asked for.
            make: makes the request for the place.
        """
        mode = settings.get("project_mode")

        def call(project: Project) -> OperationCall[T]:
            place = place_of(
                project,
                env=settings.get("env", ""),
                session=session,
                mount_point=settings.get("mount_point"),
                project_mode=mode,
                network=settings.get("network"),
                secrets=settings.get("secrets"),
                must_exist=settings.get("must_exist", False),
                inherit=inherit,
            )
            return make(place)

        return (yield from self.in_project(settings.get("project", DEFAULT), mode, call))


PROJECT_SHELL = "project"
"""The environment that is a project's own shell, and may have variables of its clients."""

_FRAME_RESERVE_BYTES = 64 * 1024
"""Room in a frame for everything but the code."""


class PlaceSettings(TypedDict, total=False):
    """Settings of the session in which something is started; `nsm.Client.run` describes them."""

    env: str
    project: ProjectArgument
    mount_point: str | None
    project_mode: str | None
    network: str | None
    secrets: Sequence[str] | None
    must_exist: bool


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
    fresh: bool
    must_exist: bool


def check_fresh(settings: RunSettings, has_streams: bool) -> None:
    """Check the settings of a run in a fresh interpreter."""
    if settings.get("session") is None:
        raise BadRequestError(
            "a fresh interpreter is one of a session, and none is named",
            hint="Name a session; without one, each run has a jail of its own anyway.",
        )
    if has_streams or settings.get("execution_id") or settings.get("reset"):
        raise BadRequestError(
            "code in a fresh interpreter takes no stdin, on_output, execution_id or reset"
        )


def check_names(settings: Mapping[str, object], kind: type) -> None:
    """Check that there are settings of these names.

    Args:
        kind: a `TypedDict`.

    Raises:
        TypeError: there is none of such a name, as with any other argument.
    """
    if unknown := sorted(settings.keys() - kind.__annotations__):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")


def place_of(
    project: Project = NO_PROJECT,
    *,
    env: str = "",
    session: str | None = None,
    mount_point: str | None = None,
    project_mode: str | None = None,
    network: str | None = None,
    secrets: Sequence[str] | None = None,
    inherit: Iterable[str] = (),
    language: str = "",
    must_exist: bool = False,
) -> Place:
    """The session in which something runs; what is None is left for the supervisor to decide.

    Args:
        env: empty to have the supervisor choose, by session, configuration and language.
        inherit: names of variables of this process that the supervisor asked for.
        language: language of the code, if `env` is empty.

    Raises:
        BadProjectError: the project's path has characters that no UTF-8 text can have.
        BadRequestError: the network is none.
    """
    from nsm.wire.code import Place, ProjectPlace  # noqa: PLC0415  # `nsm ps` does without

    asked = None
    if network is not None:
        from nsm.wire.inspection import network_request  # noqa: PLC0415  # few programs say

        asked = network_request(network)
    shown = None
    if project.path is not None:
        shown = ProjectPlace(
            _project_path(project.path), mount_point, project_mode, chosen=project.chosen
        )
    return Place(
        env=env,
        language=language,
        session=session,
        must_exist=must_exist,
        project=shown,
        no_project=project.path is None and project.chosen,
        network=asked,
        secrets=None if secrets is None else tuple(secrets),
        variables=_variables(inherit) if env == PROJECT_SHELL else {},
    )


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


def _project_path(project: str) -> str:
    path = os.path.abspath(project)
    if not _is_text(path):  # frames hold text; sent as it is, it would be another path
        raise BadProjectError(
            f"the path of the project directory is not UTF-8 text: {path!a}",
            hint="Rename it, or name it by a symbolic link.",
        )
    return path


def checked_code(code: str) -> str:
    """Code that can be sent.

    Raises:
        BadRequestError: it has characters that no UTF-8 text can have.
        CodeTooLargeError: it does not fit into a frame. (The supervisor's limit is lower.)
    """
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
    return code
