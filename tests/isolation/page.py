"""The page of all probes, by group."""

from __future__ import annotations

from collections.abc import Iterator

from isolation.probe import GROUPS, Group, Probe
from isolation.probes import ALL

TITLES: dict[Group, str] = {
    "files": "Files of the host",
    "project": "The project's write protection",
    "names": "Names and paths",
    "processes": "Processes",
    "agent": "The agent",
    "environment": "Environment and command lines",
    "descriptors": "Descriptors",
    "supervisor": "The policy file and the supervisor's directories",
    "network": "Network",
    "namespaces": "Namespaces and mounts",
    "privileges": "Privileges",
    "kernel": "Parts of the kernel",
    "devices": "Devices and terminals",
    "resources": "Resources",
}

_HEAD = """\
# Probes

These are the attacks that the tests try, by group.
[Security](../explanation/security.md#how-it-works) says what stops them. The
tests run each probe in every kind of session, where it must fail. They also run it in a throw-away
session from which they removed one measure, where it must succeed.
"""


def page() -> str:
    """The whole page."""
    return "".join([_HEAD, *(_section(group) for group in GROUPS)])


def _section(group: Group) -> str:
    probes = [probe for probe in ALL if probe.group == group]
    if not probes:
        return ""
    rows = "".join(_rows(probes))
    return f"\n## {TITLES[group]}\n\n| probe | in | source |\n| --- | --- | --- |\n{rows}"


def _rows(probes: list[Probe]) -> Iterator[str]:
    for probe in sorted(probes, key=lambda probe: probe.name):
        place = f"{probe.language}, as PID 1" if probe.place == "agent" else probe.language
        source = probe.source.replace("|", "\\|")
        yield f"| `{probe.name}` | {place} | {source} |\n"
