"""All probes."""

from __future__ import annotations

from isolation import probes_calls, probes_files, probes_privileges, probes_processes
from isolation.harness import Probe

PROBES = (
    *probes_files.PROBES,
    *probes_processes.PROBES,
    *probes_privileges.PROBES,
    *probes_calls.PROBES,
)


def named(probe: Probe) -> str:
    """How tests are called."""
    return probe.name
