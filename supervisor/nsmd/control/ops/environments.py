"""Operations on environments: those that there are, those that nsm builds, and those that lie in
projects; and modules that they preload: what sessions wait for, templates and their memory, and
changes. A build continues without the client that asked.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import trio

from nsm.dataclass import replace
from nsm.wire.environments import CollectReport, PackageRequest, PreloadReport
from nsm.wire.errors import BadRequestError, NsmError, UnknownEnvironmentError
from nsmd.control.call import Call, Services
from nsmd.environments.builds.building import Building
from nsmd.environments.catalog import CatalogEntry
from nsmd.environments.devshell import NAME as SHELL_NAME
from nsmd.environments.project.environment_manager import ListOptions, ProjectRow
from nsmd.host.paths import is_within
from nsmd.host.processes import share_of
from nsmd.jail.templates import Template, TemplateTrial
from nsmd.jail.templates.spec import can_preload
from nsmd.model.names import is_module_name
from nsmd.model.packages import WantedPackages, shown_reference
from nsmd.model.settings import PRESETS
from nsmd.model.values import Environment, EnvironmentProblem, ProjectMount

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


TELL_INTERVAL_S = 1.0
"""Interval of progress events, so that a client sees time pass in a silent build."""

LOG_PIECE_BYTES = 64 * 1024
"""Largest piece of a log in one event."""

MAX_PACKAGES = 256
"""Largest number of packages in a row of an environment in a project."""


async def envs(call: Call, *, preload: bool = False) -> list[dict[str, Any]]:
    """List the environments, after a look for changes in their sources."""
    run_service, services = call.services.run_service, call.services
    if call.confined:
        mine = run_service.catalog.environments(call.as_client())
        return [_listed(CatalogEntry(item=each), services) for each in mine]
    await run_service.search_environments()
    await services.project_environments.ready()
    listed = list(run_service.catalog.listed())
    if preload:
        await try_preloading([each.item for each in listed], services)
    memory = await memory_of_templates(services)
    rows: list[dict[str, Any]] = []
    for each in listed:
        row = _listed(each, services)
        if isinstance(each.item, Environment):
            row |= facts_of(each.item, services, memory)
        rows.append(row)
    return rows


def _listed(listed: CatalogEntry, services: Services) -> dict[str, Any]:
    item = listed.item
    if isinstance(item, EnvironmentProblem):
        return {
            "name": item.name or "",
            "interpreter": "",
            "description": "",
            "available": False,
            "problem": item.explain() if item.explain is not None else item.why,
            "source": item.where,
            "program": "",
            "timeout_s": 0.0,
            "memory_mb": 0,
            "preload": [],
            "not_preloaded": [],
            "keeps_state": False,
            "cold_start": None,
            "aliases": [],
            "only_for": listed.only_for,
            "hides": [],
            "devices": [],
            "device_nodes": [],
        }
    shown = item.shown_devices
    return {
        "name": item.name,
        "interpreter": "" if item.only_programs else item.interpreter,
        "description": item.description,
        "available": item.problem is None and item.pending is None,
        "problem": item.problem or item.pending,
        "source": item.source,
        "program": item.program,
        "timeout_s": item.timeout_s,
        "memory_mb": item.memory_mb,
        "preload": list(item.preload),
        "not_preloaded": not_preloaded(item, services),
        "keeps_state": item.keeps_state,
        "cold_start": services.cold_starts.get(item.name),
        "aliases": list(listed.aliases),
        "only_for": listed.only_for,
        "hides": list(listed.hides),
        "devices": list(item.devices),
        "device_nodes": [] if shown is None else [node.path for node in shown.nodes],
    }


async def env_add(
    call: Call,
    reference: str = "",
    name: str = "",
    *,
    packages: PackageRequest | None = None,
    devices: tuple[str, ...] = (),
    wait: bool = False,
) -> dict[str, Any]:
    """Add an environment, and report the progress of its build."""
    wanted = None
    if packages is not None or devices:
        wanted = WantedPackages(**(packages or PackageRequest())._asdict(), devices=devices)
        building = call.services.builder.add_packages(wanted, name)
    elif reference:
        building = call.services.builder.add(reference, name)
    else:
        raise BadRequestError("Argument 'reference' is required.", hint="It is a text.")
    if wait:
        await _wait_for(call, [building])
    if building.packages != wanted:
        raise BadRequestError(
            f"{building.name!r} is made from other packages now: "
            f"{shown_reference(building.reference)}. Another call has changed them meanwhile.",
            hint="Choose another name, or add it again to have yours.",
        )
    return row_of(building)


async def env_update(
    call: Call, targets: tuple[str, ...] = (), *, wait: bool = False
) -> list[dict[str, Any]]:
    """Build environments again."""
    buildings = call.services.builder.update(list(targets))
    if wait:
        await _wait_for(call, buildings)
    return [row_of(building) for building in buildings]


async def env_list(call: Call) -> list[dict[str, Any]]:
    """List the environments that nsm builds."""
    return [row_of(building) for building in call.services.builder.buildings]


async def env_remove(call: Call, targets: tuple[str, ...]) -> dict[str, Any]:
    """Remove environments, and cancel their builds."""
    removed: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for target in targets:
        try:
            building = await call.services.builder.remove(target)
        except NsmError as error:
            errors.append({"target": target, "error": error.to_wire()})
        else:
            removed.append(
                {"name": building.name, "reference": shown_reference(building.reference)}
            )
    return {"removed": removed, "errors": errors}


async def env_gc(call: Call, *, dry_run: bool = False) -> CollectReport:
    """Remove environments made from packages that nobody uses."""
    collected = await call.services.builder.collect(dry_run=dry_run)
    return CollectReport(tuple(collected.paths), collected.freed_bytes)


async def env_log(call: Call, target: str, *, follow: bool = False) -> dict[str, Any]:
    """Send the log of an environment's last build in pieces; with `follow`, until the
    build ends.
    """
    builder = call.services.builder
    building = builder.find(target)
    attempt = building.attempt if follow else None
    stopped = trio.Event()
    call.on_cancel(stopped.set)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offset = 0
    while True:
        # Ask before reading, so that neither the end nor anything written before it is missed.
        change = building.next_change
        ended = attempt is None or attempt.done.is_set() or stopped.is_set()
        while data := await trio.to_thread.run_sync(read_log, builder.log_path(building), offset):
            offset += len(data)
            await call.emit("log", {"text": decoder.decode(data)})
        if ended:
            return row_of(building)
        async with trio.open_nursery() as nursery:
            for wait in (change.wait, stopped.wait):
                nursery.start_soon(_then_cancel, wait, nursery.cancel_scope)


async def _wait_for(call: Call, buildings: Sequence[Building]) -> None:
    """Report builds until they have ended or the client stops waiting."""
    async with trio.open_nursery() as nursery:
        call.on_cancel(nursery.cancel_scope.cancel)
        for building in buildings:
            nursery.start_soon(_tell, call, building)


async def _tell(call: Call, building: Building) -> None:
    packages = building.packages
    # A build may be under way that was begun for the packages before; the next one is for these.
    while (attempt := building.attempt) is not None and building.packages == packages:
        while not attempt.done.is_set():
            await call.emit("progress", {"environment": row_of(building)})
            if not attempt.done.is_set():
                with trio.move_on_after(TELL_INTERVAL_S):
                    await building.next_change.wait()


async def _then_cancel(wait: Any, scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


def read_log(path: str, offset: int) -> bytes:
    """Read a piece of a log; empty at its end, or if there is none. Blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, LOG_PIECE_BYTES, offset)
    finally:
        os.close(descriptor)


def row_of(building: Building) -> dict[str, Any]:
    """Make the row of an environment that is built."""
    attempt, built, failed = building.attempt, building.built, building.failed
    since_s = None
    if attempt is not None:
        begun_s = attempt.queued_s if attempt.started_s is None else attempt.started_s
        since_s = trio.current_time() - begun_s
    wanted_by = {
        "nsm env add": building.added,
        "config.toml": building.configured,
        "nsm env use": building.agreed,
        "NIX_SANDBOX_ENVS": building.variable,
        "clients": building.clients > 0,
    }
    return {
        "name": building.name,
        "reference": shown_reference(building.reference),
        "state": building.state,
        "wanted_by": [who for who, wants in wanted_by.items() if wants],
        "lock": built.lock if built is not None else "",
        "note": built.note if built is not None else "",
        "path": built.path if built is not None else None,
        "built_at": built.built_s if built is not None else None,
        "since_s": since_s,
        "progress": asdict(attempt.progress) if attempt is not None else None,
        "error": failed.message if failed is not None else None,
        "hint": (failed.hint or f"`nsm env log {building.name}` shows all of its log.")
        if failed is not None
        else None,
        "cause": failed.cause if failed is not None else None,
    }


# Environments in projects, used once a person agrees. This needs the right `manage`, which no model
# and no agent in a box has.


async def env_found(call: Call, project: str) -> list[dict[str, Any]]:
    """List the environments in a project, in use or not."""
    mount = call.services.run_service.check_project(project, None, None)
    rows = await call.services.project_environments.find(mount)
    return [_found_row(call, mount, row) for row in rows]


async def env_use(
    call: Call,
    project: str,
    path: str,
    name: str | None = None,
    *,
    interpreter: str = "",
    allow_builds: bool = False,
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    wait: bool = False,
) -> dict[str, Any]:
    """Agree to use an environment of a project, for all clients of that project; report the
    progress of its build if it is made from a list of packages.
    """
    mount = call.services.run_service.check_project(project, None, None)
    catalog = call.services.run_service.catalog
    row = await call.services.project_environments.use(
        mount,
        _relative(mount, path),
        name or None,
        {*catalog.view(call.as_client()).names, SHELL_NAME},
        ListOptions(
            interpreter=interpreter, allow_builds=allow_builds, extras=extras, groups=groups
        ),
    )
    if wait and (building := _building(call, mount, row)) is not None:
        await _wait_for(call, [building])
    return _found_row(call, mount, row)


async def env_forget(call: Call, project: str, target: str) -> str:
    """Forget that somebody agreed; the project need not be there any more."""
    return await call.services.project_environments.forget(*_target(project, target))


def _relative(project: ProjectMount, path: str) -> str:
    """The path below the project, links in it not followed."""
    absolute = os.path.normpath(os.path.join(project.path, path))
    if absolute == project.path or not is_within(absolute, project.path):
        raise BadRequestError(
            f"{path[:200]!r} is not in the project {project.path}.",
            hint="Name a directory or file in the project; --project names another project.",
        )
    return os.path.relpath(absolute, project.path)


def _target(project: str, target: str) -> tuple[str, str]:
    project, target = os.path.realpath(project), os.path.normpath(target)
    return project, os.path.relpath(target, project) if is_within(target, project) else target


def _building(call: Call, project: ProjectMount, row: ProjectRow) -> Building | None:
    if row.kind != "packages" or row.name is None:
        return None
    return call.services.builder.of_project(project.path, row.name)


def _found_row(call: Call, project: ProjectMount, row: ProjectRow) -> dict[str, Any]:
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
