"""State of the pool and its reasons, for people."""

from __future__ import annotations

from typing import Any

import trio

from nsmd.control.call import Call
from nsmd.pool.kind import Kind
from nsmd.pool.pool import Pool


async def pool(call: Call) -> dict[str, Any]:
    """List the kinds of spares, the one used last first."""
    its = call.services.run_service.session_manager.pool
    now = trio.current_time()
    kinds = [_kind(kind, now) for kind in reversed(its.kinds)]
    return {
        "kinds": kinds,
        "totals": {
            "ready": sum(kind["ready"] for kind in kinds),
            "starting": sum(kind["starting"] for kind in kinds),
            "wanted": sum(kind["wanted"] for kind in kinds),
            "hits": its.hits,
            "misses": its.misses,
        },
        "memory": _memory(its),
    }


def _kind(kind: Kind, now: float) -> dict[str, Any]:
    mount = kind.spec.project
    used_s = max(kind.used_s, kind.expected_s)
    return {
        "env": kind.spec.environment.name,
        "project": mount.path if mount else None,
        "ready": len(kind.ready),
        "starting": len(kind.starting),
        "wanted": kind.plan.wanted,
        "why": kind.plan.why,
        "hits": kind.hits,
        "misses": kind.misses,
        "refill_p50_s": kind.refills.quantile(0.5),
        "refill_p95_s": kind.refills.quantile(0.95),
        "calls_per_s": kind.demand.rate(now),
        "idle_s": now - used_s,
        "memory_bytes": kind.cost_bytes,
        "failures": kind.failures,
    }


def _memory(its: Pool) -> dict[str, Any]:
    seen = its.memory
    costs = [kind.cost_bytes for kind in its.kinds if kind.cost_bytes is not None and kind.spares]
    spares = [kind.spares for kind in its.kinds if kind.cost_bytes is not None and kind.spares]
    return {
        "spares_bytes": sum(cost * count for cost, count in zip(costs, spares, strict=True)),
        "budget_bytes": its.budget_bytes,
        "available_bytes": seen.available_bytes,
        "pressure_percent": seen.pressure_percent,
    }
