"""Arguments of the operations that run code: where it runs, and how."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

from nsm.client.projects import NO_PROJECT
from nsm.wire.code import Place, ProjectPlace
from nsm.wire.errors import BadProjectError, BadRequestError, CodeTooLargeError
from nsm.wire.frames import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsm.client.projects import Project

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
