"""Boxes that the supervisor serves sockets for, as they go over the wire."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from nsm.wire.changes import bytes_of, path_of
from nsm.wire.decode import Constraint, Made, between
from nsm.wire.files import MAX_PATH_CHARS
from nsm.wire.operation import operation
from nsm.wire.run import NetworkRequest
from nsm.wire.secrets import BoxSecrets

MAX_WRITABLE = 256
MAX_MEGABYTES = 1024 * 1024


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


class RequestedBoxLimits(NamedTuple):
    """Limits of all processes of a box together; `files_mb` is for files in memory."""

    memory_mb: Annotated[int, between(1, MAX_MEGABYTES)]
    files_mb: Annotated[int, between(1, 4 * MAX_MEGABYTES)]
    processes: Annotated[int, between(1, 32768)]
    cpu_weight: Annotated[int, between(1, 10_000)]


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


def _paths_of(given: list[bytes]) -> tuple[str, ...]:
    return tuple(map(path_of, given))


def _paths_back(paths: tuple[str, ...]) -> list[bytes]:
    return list(map(bytes_of, paths))


def _are_absolute(paths: tuple[str, ...]) -> bool:
    return len(paths) <= MAX_WRITABLE and all(
        path.startswith("/") and "\0" not in path and len(path) <= MAX_PATH_CHARS for path in paths
    )


def _is_short(text: str) -> bool:
    return 1 <= len(text) <= 64 and text.isprintable()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


@operation("manage", recorded=None)
def box_open(
    directory: str,
    profile: Annotated[str, Constraint(_is_short, "1 to 64 printable characters")],
    digest: Annotated[str, Constraint(_is_digest, "64 hex digits")],
    network: NetworkRequest,
    *,
    shows_project: bool = False,
    programs: tuple[str, ...] = (),
    secrets: tuple[str, ...] = (),
    writable: Annotated[
        tuple[str, ...],
        Made(list[bytes], _paths_of, _paths_back),
        Constraint(_are_absolute, f"at most {MAX_WRITABLE} absolute paths, each as bytes"),
    ] = (),
    limits: RequestedBoxLimits | None = None,
) -> BoxPlace: ...
@operation("read", key="boxes")
def boxes() -> list[BoxRow]: ...
