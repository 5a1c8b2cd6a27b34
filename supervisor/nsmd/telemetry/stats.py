"""Percentiles of measured durations, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsmd.telemetry.counts import Counts
from nsmd.telemetry.histogram import Histogram, together
from nsmd.telemetry.telemetry import Telemetry


def report(telemetry: Telemetry) -> dict[str, Any]:
    """Make the answer to `stats`: durations in seconds, since the supervisor started."""
    counts = telemetry.counts
    pool = {"hits": 0, "misses": 0}
    for (_, result), count in counts.counted["nsm_pool_takes"].items():
        pool["hits" if result == "hit" else "misses"] += count
    return {
        "uptime_s": telemetry.uptime_s,
        "environments": [_environment(counts, env) for env in _environments(counts)],
        "starts": [
            {"env": env, "kind": kind, "times": _times(histogram)}
            for (env, kind), histogram in sorted(counts.timed["nsm_session_start_seconds"].items())
        ],
        "pool": pool,
        "event_loop": _times(telemetry.lag.busy),
    }


def _environments(counts: Counts) -> Iterable[str]:
    return sorted({env for env, _ in counts.timed["nsm_execution_latency_seconds"]})


def _environment(counts: Counts, env: str) -> dict[str, Any]:
    latency = counts.timed["nsm_execution_latency_seconds"]
    mine = {outcome: each for (of, outcome), each in latency.items() if of == env}
    return {
        "env": env,
        "outcomes": {outcome: histogram.count for outcome, histogram in sorted(mine.items())},
        "latency": _times(together(mine.values())),
        "wait": _times(counts.timed["nsm_execution_wait_seconds"].get((env,), Histogram())),
    }


def _times(histogram: Histogram) -> dict[str, Any]:
    count = histogram.count
    return {
        "total": count,
        "mean_s": histogram.sum_s / count if count else None,
        "p50_s": histogram.quantile(0.5),
        "p90_s": histogram.quantile(0.9),
        "p99_s": histogram.quantile(0.99),
        "max_s": histogram.max_s if count else None,
    }
