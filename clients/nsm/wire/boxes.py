"""Boxes that the supervisor serves sockets for, as they go over the wire."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple


class BoxRow(NamedTuple):
    """One box.

    Attributes:
        id: 8 hex digits.
        pid: host process id of its first process.
        profile: name of what it was made by.
        directory: the agent's working directory.
        scope: scope of the sessions in which its programs run code.
        project: directory that these sessions see; None if none, for `project_problem`.
        age_s: seconds since it was opened.
        network: its network: ``off``, ``allow`` or ``full``.
        allow: with ``allow``, patterns of hosts.
        network_problem: why its proxy does not work; None if it does.
        connections: through the proxy, at this moment.
        counters: number of decisions about its requests by verdict, and bytes.
        programs: names of the bridge's programs that it may start on the host.
    """

    id: str
    pid: int
    profile: str
    directory: str
    scope: str
    project: str | None
    project_problem: str | None
    age_s: float
    network: Annotated[str, "network.mode"]
    allow: Annotated[tuple[str, ...], "network.allow"]
    network_problem: Annotated[str | None, "network.problem"]
    connections: Annotated[int, "network.connections"]
    counters: Annotated[Mapping[str, Any], "network.counters"]
    programs: tuple[str, ...] = ()


class BoxPlace(NamedTuple):
    """Resources that the supervisor gave to a box.

    Attributes:
        sockets: directory on the host, to be shown in the box: `control.sock`, and `proxy.sock`
            where its network is a list.
    """

    box: Annotated[BoxRow, ""]
    sockets: str
