"""An environment, made from an agreement and an interpreter of the host; pure."""

from __future__ import annotations

from nsm.dataclass import replace
from nsmd.environments.builds.building import Building, so_far
from nsmd.environments.builds.building import problem as problem_of
from nsmd.environments.project.agreements import UseAgreement
from nsmd.host.paths import printable
from nsmd.model.values import Environment

NODE_MODULES = "/node_modules"
"""Place in the jail where code finds packages from any directory: Node looks in each directory up
to the root.
"""

_MAX_PATH_CHARS = 200


def make_environment(
    agreement: UseAgreement,
    base: Environment | None,
    mount_point: str,
    *,
    problem: str = "",
    modules: tuple[str, ...] = (),
) -> Environment:
    """Make an environment.

    Args:
        base: of the host's interpreter; None if there is no Node, or while Python is asked.
        mount_point: of the project.
        problem: why it cannot be used; else empty.
        modules: as `packages` in `Environment`.
    """
    is_venv, path = agreement.kind == "venv", shown_path(agreement.path)
    unusable = Environment(
        name=agreement.name,
        interpreter="python" if is_venv else "node",
        source=agreement.source,
        description=f"the project's {path}",
    )
    if problem:
        return replace(unusable, problem=problem)
    if base is None and is_venv:
        return replace(unusable, pending=f"the Python in {shown_path(agreement.home)} is asked")
    if base is None or base.problem is not None:
        why = "there is no Node" if base is None else base.problem
        return replace(unusable, problem=f"{path}: {why}")
    there = f"{mount_point}/{agreement.path}"
    environment = replace(
        base,
        name=agreement.name,
        source=agreement.source,
        description=f"{base.description}, the project's {path}",
        preload=(),
    )
    if not is_venv:
        return replace(
            environment, links=((NODE_MODULES, there),), path=f"{there}/.bin:{base.path}"
        )
    return replace(
        environment,
        # The agent stays with the host's Python: a program of the project is no PID 1.
        program=f"{there}/bin/python",
        path=f"{there}/bin:{base.path}",
        packages=modules,
        variables=(*base.variables, ("VIRTUAL_ENV", there)),
        # Scripts, and packages that are installed as links, name the project by this path.
        links=((agreement.project, mount_point),),
    )


def built_environment(agreement: UseAgreement, building: Building | None) -> Environment:
    """Make the environment of a list of packages from its build.

    Args:
        building: None if nsm builds nothing.
    """
    description = f"the project's {shown_path(agreement.path)}"
    unusable = Environment(
        name=agreement.name,
        interpreter="python" if agreement.packages is None else agreement.packages.preset,
        source=agreement.source,
        description=description,
    )
    if building is None:
        return replace(unusable, problem="this supervisor builds no environments")
    if building.built is not None:
        built = building.built.environment
        return replace(
            built,
            source=agreement.source,
            description=f"{built.description}, {description}",
        )
    if building.attempt is not None:
        return replace(unusable, pending=so_far(building.attempt))
    problem = problem_of(building)
    return replace(unusable, problem="it is not built" if problem is None else problem.why)


def shown_path(path: str) -> str:
    """Format a path that anybody may have chosen, for people."""
    return printable(path)[:_MAX_PATH_CHARS]
