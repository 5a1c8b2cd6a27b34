"""Counts of the supervisor, and their reports.

counts        every metric; counters and distributions of durations, fed by events
telemetry     all of these, the latest events, and figures that are read when somebody asks
exposition    metrics in Prometheus's format, and those of the process (imports `prometheus_client`)
import_times  modules that sessions import slowly
"""

from __future__ import annotations

from nsmd.telemetry.telemetry import Ring, RingEvent, Surroundings, Telemetry, Traffic

__all__ = ["Ring", "RingEvent", "Surroundings", "Telemetry", "Traffic"]
