"""Modules that environments preload: what sessions wait for, templates and their memory, and
changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.environments import PreloadReport
from nsm.wire.errors import BadRequestError, UnknownEnvironmentError
from nsmd.control.call import Call, Services
from nsmd.environments.builds.building import Building
from nsmd.host.processes import share_of
from nsmd.jail.templates import Template, TemplateTrial
from nsmd.jail.templates.spec import can_preload
from nsmd.model.names import is_module_name
from nsmd.model.settings import PRESETS
from nsmd.model.values import Environment, EnvironmentProblem

PRELOAD_WAIT_S = 20.0
"""Seconds that `envs` waits for trial imports of the modules to preload."""

MAX_PRELOADED = 64


async def env_preload(
    call: Call, target: str, modules: tuple[str, ...], *, remove: bool = False
) -> PreloadReport:
    """Preload modules in an environment, or stop that."""
    for module in modules:
        if not is_module_name(module):
            raise BadRequestError(f"{module!r:.100} is not the name of a Python module.")
    building, environment = _meant(call, target)
    _check_can_preload(environment)
    trial, failed = TemplateTrial(), dict[str, str]()
    if remove:
        kept = _without(environment, modules)
    else:
        wanted = tuple(dict.fromkeys((*environment.preload, *modules)))
        if len(wanted) > MAX_PRELOADED:
            raise BadRequestError(
                f"An environment can preload at most {MAX_PRELOADED} modules.",
                hint="`nsm env preload --remove` removes some.",
            )
        if environment.image is None:  # else each session says what cannot be imported
            trial = await _try(call.services, environment, wanted)
        failed = {module: why for module, why in trial.failed.items() if module in modules}
        kept = tuple(module for module in wanted if module not in failed)
    if kept != environment.preload:
        if building is None:
            raise _not_ours(call.services, environment, kept, failed)
        call.services.builder.preload(building, kept)
        if call.services.forking is not None and environment.image is None:
            call.services.forking.replace(environment, replace(environment, preload=kept))
    imported = dict(trial.imported)
    return PreloadReport(environment.name, kept, imported, failed, trial.memory_bytes)


def _meant(call: Call, target: str) -> tuple[Building | None, Environment]:
    """Find an environment, with its build if nsm itself may change what it preloads: one of
    `nsm env add`, or one from a project's list of packages.
    """
    builds = [each for each in call.services.builder.buildings if each.name == target]
    # Of several projects' environments, that of the client's project is meant.
    builds.sort(key=lambda each: (not each.added, each.project != call.project))
    for building in builds:
        if building.built is not None and (building.added or building.project):
            ours = None if building.configured else building
            return ours, building.built.environment
    problem = ""
    for listed in call.services.run_service.catalog.listed():
        item = listed.item
        if target == item.name or target in listed.aliases:
            if isinstance(item, Environment) and item.problem is None:
                return None, item
            problem = item.problem or "" if isinstance(item, Environment) else item.why
    if problem:
        raise UnknownEnvironmentError(f"Environment {target!r} is unavailable: {problem}.")
    raise UnknownEnvironmentError(f"No environment {target[:80]!r}.", hint="`nsm env` lists them.")


def _check_can_preload(environment: Environment) -> None:
    name = environment.name
    if environment.interpreter != "python":
        raise BadRequestError(
            f"{name!r} runs {environment.interpreter}; only Python modules can be preloaded.",
        )
    if environment.artifact is not None and not can_preload(environment):
        raise BadRequestError(
            f"Nix built {name!r} for an older nsm, without templates.",
            hint="Build it again with this version of nsm's flake.",
        )
    if not can_preload(environment):
        raise BadRequestError(
            f"{name!r} lies in a project, whose code runs in sessions only, never in advance.",
            hint="An environment of `nsm env add` can preload the same packages.",
        )


def _without(environment: Environment, modules: Sequence[str]) -> tuple[str, ...]:
    if missing := [module for module in modules if module not in environment.preload]:
        known = ", ".join(environment.preload)
        raise BadRequestError(
            f"{environment.name!r} does not preload {', '.join(missing)}.",
            hint=f"It preloads {known}." if known else "It preloads nothing.",
        )
    return tuple(module for module in environment.preload if module not in modules)


async def _try(
    services: Services, environment: Environment, wanted: tuple[str, ...]
) -> TemplateTrial:
    """Preload modules in a template."""
    if services.forking is None:
        raise BadRequestError(
            "Sessions are not forks of templates here, so nothing can be preloaded.",
            hint="`nsm doctor` says why.",
        )
    newer = replace(environment, preload=wanted)
    trial = await services.forking.try_template(newer, environment)
    if trial.reason:
        raise BadRequestError(
            f"Nothing has changed: there is no template with {', '.join(wanted)}: {trial.reason}"
        )
    return trial


def _not_ours(
    services: Services,
    environment: Environment,
    kept: Sequence[str],
    failed: Mapping[str, str],
) -> BadRequestError:
    """Make the error for an environment that nsm does not write: what to write, and where."""
    name, source = environment.name, environment.source
    entry = services.configuration.settings.environments.get(name)
    line = f"preload = {json.dumps(list(kept))}"
    told = "".join(f"\nNot preloaded: {module}: {why}" for module, why in failed.items())
    if entry is None and not (name in PRESETS and source == "preset"):
        return BadRequestError(
            f"{name!r} comes from {source}, which nsm does not write.{told}",
            hint=f"Set its `preload` there to: {', '.join(kept) or 'nothing'}.",
        )
    return BadRequestError(
        f"{name!r} is an environment of the configuration, which nsm does not write.{told}",
        hint=f"Write into {services.configuration.path}:\n"
        f"    [environments.{name}]\n    {line}\n"
        "then run `nsm reload --config`.",
    )


# For lists of environments.


async def try_preloading(
    items: Iterable[Environment | EnvironmentProblem], services: Services
) -> None:
    """Find out which modules cannot be preloaded, as far as time permits."""
    if services.forking is None:
        return
    with trio.move_on_after(PRELOAD_WAIT_S):
        async with trio.open_nursery() as nursery:
            for item in items:
                if not isinstance(item, Environment) or item.image is not None:
                    continue  # each session of an image tells by itself
                if item.preload and item.problem is None:
                    nursery.start_soon(services.forking.try_preloading, item)


def not_preloaded(environment: Environment, services: Services) -> list[str]:
    """Modules that an environment could not preload, each with the reason."""
    if services.forking is None:
        return []
    told = services.forking.unloaded.get(environment.name, ())
    return [text for text in told if text.partition(":")[0] in environment.preload]


async def memory_of_templates(services: Services) -> Mapping[int, int]:
    """Measure the memory of all templates, in bytes by process id."""
    pids = [each.forker_pid for each in services.forking.templates] if services.forking else []
    return await trio.to_thread.run_sync(_shares, pids)


def _shares(pids: Sequence[int]) -> Mapping[int, int]:
    return {pid: share for pid in pids if (share := share_of(pid)) is not None}


def facts_of(
    environment: Environment, services: Services, memory: Mapping[int, int]
) -> dict[str, Any]:
    """Describe templates of an environment, and imports that its sessions wait for."""
    forking = services.forking
    if forking is None or environment.problem is not None:
        return {}
    found: dict[str, Any] = {
        "templates": [_template(each, memory) for each in forking.templates_of(environment)]
    }
    return found | {"slow_imports": slow_imports(environment, services)}


def slow_imports(environment: Environment, services: Services) -> list[dict[str, Any]]:
    """Modules that are worth preloading. For people only: code in sessions can forge this."""
    if services.forking is None or environment.name in services.forking.reasons:
        return []
    if not services.run_service.catalog.reachable()(environment):
        return []  # it is another one by now
    return [each._asdict() for each in services.import_times.suggestions(environment)]


def _template(template: Template, memory: Mapping[int, int]) -> dict[str, Any]:
    project, pid = template.spec.project, template.forker_pid
    return {
        "pid": pid,
        "project": None if project is None else project.path,
        "memory_bytes": memory.get(pid),
        "imported": dict(template.imported),
        "sessions": template.forks,
    }
