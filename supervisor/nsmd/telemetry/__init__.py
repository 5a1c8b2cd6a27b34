"""Counts of the supervisor, and their reports.

histogram   distribution of durations
families    every metric: its name, labels and meaning
counts      counters, fed by events
lag         how long the event loop is busy while something waits
ring        the latest events, for people who watch
telemetry   all of these, and figures that are read when somebody asks
stats       percentiles, for people
exposition  metrics in Prometheus's format, and those of the process (imports `prometheus_client`)
import_times  modules that sessions import slowly
"""

from __future__ import annotations

from nsmd.telemetry.ring import Ring, RingEvent
from nsmd.telemetry.telemetry import Surroundings, Telemetry, Traffic

__all__ = ["Ring", "RingEvent", "Surroundings", "Telemetry", "Traffic"]
