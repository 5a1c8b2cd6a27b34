"""What the supervisor counts and tells of itself. A map, from the ground up:

histogram    how often something took how long
families     every metric: its name, labels and meaning
counts       counters, fed by what happens
lag          how long the event loop is kept from what is waiting
ring         the latest of what happened, for people who watch
telemetry    all of these, and what is looked up when somebody asks
process      what the system says of the supervisor's process
stats        percentiles, for people
exposition   the text that Prometheus reads. HEAVY: imports `prometheus_client`
scraping     the same over HTTP
page         `docs/metrics.md`
"""

from __future__ import annotations

from nsmd.telemetry.ring import Ring, Told
from nsmd.telemetry.telemetry import Surroundings, Telemetry, Traffic

__all__ = ["Ring", "Surroundings", "Telemetry", "Told", "Traffic"]
