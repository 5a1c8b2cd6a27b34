"""Operations on environments that lie in projects: found, used once a person agrees, forgotten.

They need the right `manage`, which no model and no agent in a box has.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.control.ops.environments import row_of, wait_for
from nsmd.environments.builds.building import Building
from nsmd.environments.devshell import NAME as SHELL_NAME
from nsmd.environments.project.environment_manager import ListOptions, ProjectRow
from nsmd.host.paths import is_within
from nsmd.model.values import ProjectMount

MAX_PACKAGES = 256
"""Largest number of packages in a row."""


async def env_found(call: Call) -> dict[str, Any]:
    """List the environments in a project, in use or not."""
    project = _project(call)
    rows = await call.services.project_environments.find(project)
    return {"found": [_row(call, project, row) for row in rows]}


async def env_use(call: Call) -> dict[str, Any]:
    """Agree to use an environment of a project, for all clients of that project; report the
    progress of its build if it is made from a list of packages.
    """
    project = _project(call)
    catalog = call.services.run_service.provider.catalog
    environments = call.services.project_environments
    row = await environments.use(
        project,
        _relative(project, arguments.text(call.args, "path")),
        arguments.optional_text(call.args, "name") or None,
        {*catalog.view(call.as_client()).names, SHELL_NAME},
        ListOptions(
            interpreter=arguments.optional_text(call.args, "interpreter") or "",
            allow_builds=arguments.flag(call.args, "allow_builds"),
            extras=tuple(arguments.texts(call.args, "extras")),
            groups=tuple(arguments.texts(call.args, "groups")),
        ),
    )
    if (building := _building(call, project, row)) is not None:
        await wait_for(call, [building])
    return {"found": _row(call, project, row)}


async def env_forget(call: Call) -> dict[str, Any]:
    """Forget that somebody agreed; the project need not be there any more."""
    project, target = _target(call)
    return {"name": await call.services.project_environments.forget(project, target)}


def _project(call: Call) -> ProjectMount:
    path = arguments.text(call.args, "project")
    return call.services.run_service.check_project(path, None, None)


def _relative(project: ProjectMount, path: str) -> str:
    """The path below the project, links in it not followed.

    Raises:
        BadRequestError: it leads elsewhere.
    """
    absolute = os.path.normpath(os.path.join(project.path, path))
    if absolute == project.path or not is_within(absolute, project.path):
        raise BadRequestError(
            f"{path[:200]!r} is not in the project {project.path}.",
            hint="Name a directory or file in the project; --project names another project.",
        )
    return os.path.relpath(absolute, project.path)


def _target(call: Call) -> tuple[str, str]:
    project = os.path.realpath(arguments.text(call.args, "project"))
    target = os.path.normpath(arguments.text(call.args, "target"))
    return project, os.path.relpath(target, project) if is_within(target, project) else target


def _building(call: Call, project: ProjectMount, row: ProjectRow) -> Building | None:
    if row.kind != "packages" or row.name is None:
        return None
    return call.services.builder.of_project(project.path, row.name)


def _row(call: Call, project: ProjectMount, row: ProjectRow) -> dict[str, Any]:
    found, building = row.found, _building(call, project, row)
    packages = found.packages if found is not None else ()
    return {
        "path": row.path,
        "kind": row.kind,
        "version": found.version if found is not None else "",
        "packages": [asdict(package) for package in packages[:MAX_PACKAGES]],
        "package_count": len(packages) or row.package_count,
        "name": row.name,
        "changed": row.changed,
        "problem": row.problem or None,
        "build": None if building is None else row_of(building),
    }
