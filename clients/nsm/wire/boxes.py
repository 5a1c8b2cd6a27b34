"""Boxes that the supervisor serves sockets for, as they go over the wire."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from nsm.wire.secrets import BoxSecrets


class BoxUse(NamedTuple):
    """Limits of a box's processes, and what they use.

    Attributes:
        memory_by: what enforces the limit of memory: ``cgroup`` or ``watchdog``.
        why: why that is no control group; None if it is one.
        memory_limit_bytes: memory that they may have together.
        memory_bytes: memory that they have; None if nobody has looked yet. With a control group,
            files in memory count, too.
        process_limit: largest number of processes.
        processes: their number, with bubblewrap's own; None if nobody has looked yet.
        killed: number of processes that were ended because there was no memory left.
    """

    memory_by: str
    why: str | None
    memory_limit_bytes: int
    memory_bytes: int | None
    process_limit: int
    processes: int | None
    killed: int


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
        limits: limits of its processes; None if it has none.
        secrets: names of the secrets that it has.
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
    limits: BoxUse | None = None
    secrets: tuple[str, ...] = ()


class BoxPlace(NamedTuple):
    """Resources that the supervisor gave to a box.

    Attributes:
        sockets: directory on the host, to be shown in the box: `control.sock`, and `proxy.sock`
            where its network is a list.
        secrets: what its secrets bring into the box; None if it has none.
    """

    box: Annotated[BoxRow, ""]
    sockets: str
    secrets: Annotated[BoxSecrets | None, "given_secrets"] = None
