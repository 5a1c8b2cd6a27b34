"""Counts of the supervisor, and how it reports them.

histogram   how often something took how long
families    every metric: its name, labels and meaning
counts      counters, fed by events
lag         how long the event loop is busy while something waits
ring        the latest events, for people who watch
process     what the system says of the supervisor's own process
telemetry   all of these, and what is read when somebody asks
stats       percentiles, for people
exposition  the text that Prometheus reads (imports `prometheus_client`)
page        the documentation page of the metrics
"""

from __future__ import annotations

from nsmd.telemetry.ring import Ring, Told
from nsmd.telemetry.telemetry import Surroundings, Telemetry, Traffic

__all__ = ["Ring", "Surroundings", "Telemetry", "Told", "Traffic"]
