"""Operation `envs`: the environments that there are."""

from __future__ import annotations

from typing import Any

from nsmd.control import arguments
from nsmd.control.call import Call, Services
from nsmd.control.ops import preloading
from nsmd.environments.catalog import CatalogEntry
from nsmd.model.values import Environment, EnvironmentProblem


async def envs(call: Call) -> dict[str, Any]:
    """List the environments, after a look for changes in their sources."""
    run_service, services = call.services.run_service, call.services
    if call.confined:
        mine = run_service.environments(call.as_client())
        return {"environments": [_listed(CatalogEntry(item=each), services) for each in mine]}
    await run_service.look()
    await services.project_environments.ready()
    listed = list(run_service.provider.catalog.listed())
    if arguments.flag(call.args, "preload"):
        await preloading.try_preloading([each.item for each in listed], services)
    memory = await preloading.memory_of_templates(services)
    rows: list[dict[str, Any]] = []
    for each in listed:
        row = _listed(each, services)
        if isinstance(each.item, Environment):
            row |= preloading.facts_of(each.item, services, memory)
        rows.append(row)
    return {"environments": rows}


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
        "not_preloaded": preloading.not_preloaded(item, services),
        "keeps_state": item.keeps_state,
        "cold_start": services.cold_starts.get(item.name),
        "aliases": list(listed.aliases),
        "only_for": listed.only_for,
        "hides": list(listed.hides),
        "devices": list(item.devices),
        "device_nodes": [] if shown is None else [node.path for node in shown.nodes],
    }
