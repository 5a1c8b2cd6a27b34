"""All probes."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from isolation import (
    probes_agent,
    probes_calls,
    probes_files,
    probes_kernel,
    probes_namespaces,
    probes_network,
    probes_paths,
    probes_policy,
    probes_pretended,
    probes_privileges,
    probes_processes,
    probes_project,
    probes_resources,
)
from isolation.probe import GROUPS, Group, Kind, Probe
from nsm.jail.seccomp import filter_program

ALL = (
    *probes_files.PROBES,
    *probes_paths.PROBES,
    *probes_project.PROBES,
    *probes_processes.PROBES,
    *probes_agent.PROBES,
    *probes_policy.PROBES,
    *probes_privileges.PROBES,
    *probes_network.PROBES,
    *probes_namespaces.PROBES,
    *probes_calls.PROBES,
    *probes_kernel.PROBES,
    *probes_pretended.PROBES,
    *probes_resources.PROBES,
)

PROBES = tuple(
    probe for probe in ALL if not (probe.filtered and filter_program(platform.machine()) is None)
)
"""Probes that can hold on this machine."""


def by_weakness(kind: Kind, probes: Sequence[Probe] = PROBES) -> list[Probe]:
    """In an order in which those that share a weakened jail follow each other.

    It is the same in every process: workers compare it.
    """
    groups: dict[tuple[int, str, bool], list[Probe]] = {}
    for probe in probes:
        key = (id(probe.weakness_of(kind)), probe.place, probe.spoils)
        groups.setdefault(key, []).append(probe)
    return [probe for group in groups.values() for probe in group]


def sharing(kind: Kind, probe: Probe) -> list[Probe]:
    """All probes with the same weakness."""
    return [other for other in PROBES if other.weakness_of(kind) is probe.weakness_of(kind)]


def groups_of(probes: Sequence[Probe] = PROBES) -> list[Group]:
    """Groups that have probes."""
    return [group for group in GROUPS if any(probe.group == group for probe in probes)]
