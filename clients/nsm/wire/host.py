"""Parts of the host for sessions and boxes: ports, secrets, programs of the bridge, boxes."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from nsm.wire.code import NetworkRequest
from nsm.wire.decode import Constraint, Converted, at_least, at_most, between
from nsm.wire.files import MAX_PATH_CHARS, bytes_of, path_of
from nsm.wire.operation import operation
from nsm.wire.tuples import NamedTuple

PortNumber: TypeAlias = Annotated[int, at_least(0)]

MAX_ADDRESS = 4096 + len("unix:")
"""Characters of an address, at most a path."""


class PortRow(NamedTuple):
    """An open port of a session, or one of the configuration that could not be opened.

    Attributes:
        session: id of the session; `name` and `scope` are the session's, too.
        port: port in the session.
        address: where to connect: ``HOST:PORT`` or ``unix:PATH``.
        client: program that opened it.
        connections: number of open connections; `total`: of all so far.
        refused: connections that were reset because no program listened in the session.
        failed: connections that were reset for other reasons, such as an agent that was stopped.
        sent_bytes: bytes into the session; `received_bytes`: bytes out of it.
        full: True while further connections wait because the session has too many.
        relay_pid: process id of its relay; None if none runs.
        problem: why it does not work at present, for people; else None.
        is_open: False for a port of the configuration that could not be opened.
    """

    session: str
    name: str | None
    scope: str
    port: int
    address: str
    client: str = ""
    connections: int = 0
    total: int = 0
    refused: int = 0
    failed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    full: bool = False
    relay_pid: int | None = None
    problem: str | None = None
    is_open: bool = True


@operation("manage", key="port", recorded=None)
def port_open(
    target: str,
    port: PortNumber,
    *,
    listen: Annotated[str, at_most(MAX_ADDRESS, "characters")] = "",
    public: bool = False,
) -> PortRow:
    """Open a port of a session on the host. `listen` is `HOST:PORT` or `unix:PATH`, absolute;
    else any port of 127.0.0.1. `public` permits addresses that other machines reach.
    """
    ...


@operation("manage", key="ports", recorded=None)
def port_close(target: str, port: PortNumber) -> list[PortRow]:
    """Close a port; open connections go on."""
    ...


@operation("read", key="ports")
def ports(target: str | None = None) -> list[PortRow]:
    """List the ports of one session, or of all, that are open on the host."""
    ...


class SecretRow(NamedTuple):
    """A secret as configured.

    Attributes:
        name: its name.
        source: ``command``, ``file``, ``keyring`` or ``environment``.
        hosts: hosts whose requests get the value, over TLS.
        variables: names of variables that have its placeholder.
        headers: names of headers that nsm adds.
    """

    name: str
    source: str
    hosts: tuple[str, ...]
    variables: tuple[str, ...]
    headers: tuple[str, ...]


class SecretGrantRow(NamedTuple):
    """A secret that a session or box has.

    Attributes:
        owner: id of the session or box; `kind` says which of the two.
        name: name of the session; None for a box, and without one.
        secret: name of the secret.
        uses: number of requests with it, since this supervisor began.
        revoked: its placeholder is worth nothing any more.
        helper_pid: process that has the value; 0 while there is none.
    """

    owner: str
    kind: str
    name: str | None
    secret: str
    uses: int
    revoked: bool
    helper_pid: int


class SecretsReport(NamedTuple):
    """All secrets, and who has them."""

    secrets: tuple[SecretRow, ...]
    grants: tuple[SecretGrantRow, ...]


class BoxSecrets(NamedTuple):
    """Content of a box for its secrets.

    Attributes:
        variables: names of variables, and the placeholders in them.
        certificate: certificate that its programs have to trust, as PEM.
    """

    variables: Mapping[str, str]
    certificate: str


@operation("read")
def secrets() -> SecretsReport:
    """List secrets as configured, and which session or box has which. No answer has a value."""
    ...


@operation("manage", key="stand_in", recorded=("name",))
def secret_test(name: str) -> str:
    """Read a secret as for a session; the answer is a text like the one that code would see."""
    ...


@operation("manage", key="owners", recorded=None)
def secret_revoke(name: str, owner: str | None = None) -> tuple[str, ...]:
    """Make a secret's placeholders worthless, in all sessions and boxes or in one (`owner`)."""
    ...


class ProgramRow(NamedTuple):
    """One program that may be started.

    Attributes:
        timeout_s: seconds until it is stopped.
        max_args: how many arguments it takes at most; None if only their size is limited.
        allow_options: arguments may begin with a hyphen.
        command: absolute path of it; None, as the rest, for a client that may only start it.
        cwd: absolute directory that it works in; None for HOME.
        env: names of the variables of the supervisor that it has.
        source: absolute path of the file that describes it.
        unset: those of `env` that the supervisor does not have.
    """

    name: str
    description: str
    timeout_s: float
    max_args: int | None
    allow_options: bool
    command: str | None
    cwd: str | None
    env: tuple[str, ...] = ()
    source: str | None = None
    unset: tuple[str, ...] = ()


class ProgramProblem(NamedTuple):
    """Reason why a definition file describes no program.

    Attributes:
        source: absolute path of the file.
        line: in it, from 1; None where no line is at fault.
        reason: what was found, and what was expected.
        name: name of the program that is missing because of it, if known.
    """

    source: str
    line: int | None
    reason: str
    name: str | None


class ProgramsReport(NamedTuple):
    """Programs that a client may start.

    Attributes:
        enabled: the bridge is on (``[bridge] enabled``).
        programs: sorted by name.
        problems: files with mistakes; empty for a client that may only start programs.
    """

    enabled: bool
    programs: tuple[ProgramRow, ...]
    problems: tuple[ProgramProblem, ...]


class ProgramHelp(NamedTuple):
    """A program's documentation.

    Attributes:
        documentation: the body of its definition file, Markdown.
    """

    program: ProgramRow
    documentation: str


class ProgramResult(NamedTuple):
    """Outcome of a program that was started. Times in seconds.

    Attributes:
        call_id: id of the call, also in `nsm bridge audit`.
        exit_code: None where a signal ended it.
        signal: number of that; None where none did.
        why_stopped: ``timeout``, ``cancelled`` or ``shutdown`` where nsm stopped it; None where it
            ended by itself.
        stdout, stderr: all that it wrote, or head and tail of that.
        stdout_omitted, stderr_omitted: bytes that these leave out.
        timeout_s: the limit that held.
        left: processes that it left behind, which go on.
    """

    call_id: str
    program: str
    exit_code: int | None
    signal: int | None
    why_stopped: str | None
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    duration_s: float
    timeout_s: float
    left: int

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.why_stopped is None


@operation("bridge")
def bridge_programs() -> ProgramsReport:
    """List programs; in a box only those that it was given, without facts about the host."""
    ...


@operation("bridge")
def bridge_help(program: object = None) -> ProgramHelp:
    """Print the documentation of a program."""
    ...


@operation("bridge")
def bridge_run(
    program: object = None,
    arguments: object = None,
    *,
    call_id: object = None,
    again: object = None,
    stream: object = None,
) -> ProgramResult:
    """Start a program of the host. With `stream`, events `output {stream, text, skipped?}` come
    before the answer, one for each line.
    """
    ...


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
        Converted(list[bytes], _paths_of, _paths_back),
        Constraint(_are_absolute, f"at most {MAX_WRITABLE} absolute paths, each as bytes"),
    ] = (),
    limits: RequestedBoxLimits | None = None,
) -> BoxPlace:
    """Become a box: a row as of `boxes`, `sockets`, a directory with sockets, and
    `given_secrets: {variables, certificate}` if it has some. Nothing in `writable` is started for
    it; `limits` are for the asking process and all that it starts. The sockets end with it.
    """
    ...


@operation("read", key="boxes")
def boxes() -> list[BoxRow]:
    """List agents in boxes."""
    ...
