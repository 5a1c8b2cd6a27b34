"""Values of the supervisor, frozen: no behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from nsm.dataclass import dataclass, field
from nsm.wire.code import Truncation
from nsm.wire.inspection import is_request_rule
from nsm.wire.tuples import NamedTuple
from nsmd.host.descriptors import PER_GRANT, PER_OVERLAY, PER_PROXY, PER_SESSION

LimitKind = Literal["memory", "processes"]
Enforcer = Literal["cgroup", "watchdog", "rlimit", "none"]
"""Mechanism of a limit: a control group, the watchdog, limits of each process, or nothing."""


class Enforcement(NamedTuple):
    """Mechanism that enforces a session's limits: as read back, not as requested.

    Attributes:
        memory: for the memory of all its processes; `watchdog` looks while code runs.
        cpu: for its share beside other sessions.
        why: why it is not a control group, for people; else empty.
    """

    memory: Enforcer
    processes: Enforcer
    cpu: Enforcer
    why: str = ""


EACH_PROCESS = Enforcement(memory="rlimit", processes="rlimit", cpu="none")
"""Nothing limits a session as a whole: memory is limited for each process (setrlimit(2),
RLIMIT_DATA), the number of processes in the session's own user namespace (RLIMIT_NPROC).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvent:
    """A limit that ended or refused something while an execution ran: counted, never guessed.

    Attributes:
        limit: bytes of memory, or a number of processes.
        peak_bytes: the most memory that the session had; None if nothing counts it.
        what: consequence, for people: ``python (pid 12) was killed``.
    """

    kind: LimitKind
    limit: int
    enforced_by: Enforcer
    what: str
    peak_bytes: int | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDirectory:
    """A checked host directory, and its path in the jail.

    Attributes:
        device, inode: identity of the directory at the check; a jail is used only while the path
            still has it.
    """

    path: str
    mount_point: str
    device: int
    inode: int

    @property
    def copied(self) -> bool:
        """True if each session has an overlay of it."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    """Code that an interpreter runs before any other (agent-protocol.md, `setup`).

    Attributes:
        preloads: it imports modules that the interpreter may have already, as a fork.
    """

    name: str
    code: str
    preloads: bool = False


Interpreter = Literal["python", "bash", "node"]
StreamName = Literal["stdout", "stderr"]
NetworkMode = Literal["off", "allow", "full"]
ProjectMode = Literal["readonly", "overlay"]
"""Mode of a project's directory: read-only, or an overlay that code may change."""

MAX_CODE_BYTES = 8 * 1024 * 1024
"""Largest piece of code from any front end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyBind:
    """A host path that is visible in the jail, read-only."""

    source: str
    target: str


Links = tuple[tuple[str, str], ...]
"""Symbolic links in a jail: path and target of each."""


IMAGE_PLACE = "/.nsm-image"
"""Place of the files of an image in a template whose sessions may change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """Files of a container image, in place of the host's, as the root directory of a jail.

    Attributes:
        python: command that starts the host's Python in such a jail, for the agent: its own loader
            with its options, and the program.
        writable: code may change these files, in an overlay of its session. Jails then show them
            at `IMAGE_PLACE`, until a fork makes them its root.
    """

    directory: str
    python: tuple[str, ...]
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device that a jail shows.

    Attributes:
        source: its path on the host.
        number: major and minor number; a driver that is loaded again may have others.
    """

    source: str
    path: str
    number: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDevices:
    """Devices in the jails of an environment.

    Attributes:
        driver: version of the driver and state of its libraries; differs after an upgrade, so that
            no session is forked from a template that has the older ones.
    """

    nodes: tuple[DeviceNode, ...]
    driver: str = ""


def has_nvidia(shown: ShownDevices | None) -> bool:
    """Return whether there are GPUs among these devices whose use NVIDIA's library can tell."""
    return shown is not None and any(node.path.startswith("/dev/nvidia") for node in shown.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Programs that Nix built, each of which makes a jail of its own (docs/reference/formats.md).

    Attributes:
        run: absolute path of the program for one execution, which gets code on standard input.
        schema: version of these programs' interface; 0 for older ones, which have none.
        stamp: identity of the files, which changes when they are replaced in place.
        takes: further descriptors that these programs take (`nsmd.jail.starting`).
        session_run: path of the program that runs the agent; None if there is none.
    """

    run: str
    session_run: str | None = None
    template_run: str | None = None
    schema: int = 0
    stamp: str = ""
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRule:
    """Hosts that code may reach over the network.

    Attributes:
        mode: only its own loopback; named hosts through the supervisor's proxy; or all that the
            host reaches.
        allow: with mode `allow`, patterns of hosts as configured, e.g. ``*.example.com:443``.
    """

    mode: NetworkMode = "off"
    allow: tuple[str, ...] = ()

    @property
    def reads_requests(self) -> bool:
        """True if nsm reads the requests to some of these hosts."""
        return any(map(is_request_rule, self.allow))


NO_NETWORK = NetworkRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment to run code in: an interpreter, and the content of its jail.

    Attributes:
        agent_python: absolute path, valid in the jail, of the Python that runs the agent; empty
            when unavailable.
        program: absolute path, valid in the jail, of the environment's own interpreter (`python3`,
            `bash`, `node`); empty when unavailable.
        links: symbolic links in the jail: path and target of each. A path that the jail has anyway
            stays as it is.
        timeout_s: default and upper limit of one execution, seconds.
        reserved_mb: MiB that its interpreter reserves and never fills; a process's limit has them.
        cpu_weight: share of processor time beside other sessions, as of cgroups (100 is usual).
        source: origin, e.g. ``preset`` or a configuration file's path.
        artifact: makes its jails; then `agent_python`, `binds` and `path` have no meaning.
        variables: variables in the jail, in addition to those of every jail. They may be secrets of
            the session's client.
        setup: steps that the interpreter runs before any other code, each time it starts.
        pending: what it waits for, for people; None once it can be used. Calls wait, too.
        packages: installed top-level modules of Python, or packages of Node, as far as known.
        main_packages: those among them that somebody asked for by name.
        image: its jails' root directory; None for the base system of the host. With an image,
            `binds` and `links` are all that jails show of it, and `agent_python` is a path on the
            host.
        shown_devices: these devices as its jails show them; None without any.
        problem: why it cannot be used, for people; None when usable.
        directory: directory in which programs start; empty for the session's own.
    """

    name: str
    interpreter: Interpreter
    description: str = ""
    agent_python: str = ""
    program: str = ""
    binds: tuple[ReadOnlyBind, ...] = ()
    links: Links = ()
    path: str = "/usr/bin:/bin"
    timeout_s: float = 30.0
    memory_mb: int = 512
    reserved_mb: int = 0
    cpu_weight: int = 100
    preload: tuple[str, ...] = ()
    problem: str | None = None
    source: str = "preset"
    artifact: Artifact | None = None
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    setup: tuple[SetupStep, ...] = field(default=(), repr=False)
    pending: str | None = None
    network: NetworkRule = NO_NETWORK
    packages: tuple[str, ...] = field(default=(), repr=False, compare=False)
    main_packages: tuple[str, ...] = field(default=(), repr=False, compare=False)
    image: ImageRoot | None = None
    directory: str = ""
    devices: tuple[str, ...] = ()
    shown_devices: ShownDevices | None = None
    secrets: tuple[str, ...] = ()

    @property
    def only_programs(self) -> bool:
        """True if it is an image without an interpreter: sessions start programs, and run no
        code.
        """
        return self.image is not None and not self.program

    def has_module(self, name: str) -> bool:
        """Return whether code can import a Python module, as far as known."""
        # A list of modules to preload may be older than the packages.
        known = self.packages or [module.partition(".")[0] for module in self.preload]
        return name in known

    def __hash__(self) -> int:
        # Asked several times for each session; with a few hundred binds it would take 60 us.
        return hash((self.name, self.source, self.variables))

    @property
    def keeps_state(self) -> bool:
        """True if it has sessions; else each execution has a jail of its own."""
        return self.artifact is None or self.artifact.session_run is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProblem:
    """Reason why an environment, or a source of environments, cannot be used.

    Attributes:
        why: a sentence without its final dot, for people and models.
        explain: returns the present reason, if it changes.
        name: name of the environment; None for the whole source.
    """

    name: str | None
    where: str
    why: str
    explain: Callable[[], str] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of a client's own environments, as given in its entry: `NIX_SANDBOX_DIR`,
    `NIX_SANDBOX_METADATA`, and references to build, `NIX_SANDBOX_ENVS`.
    """

    directory: str | None = None
    metadata: str | None = None
    flakes: tuple[str, ...] = ()

    def has(self, part: Sources) -> bool:
        """Return whether this includes all sources of another value."""
        return (
            part.directory in (None, self.directory)
            and part.metadata in (None, self.metadata)
            and set(part.flakes) <= set(self.flakes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectMount(CheckedDirectory):
    """A checked project directory.

    Attributes:
        git: the git directory that it shares with its repository if it is a linked worktree; None
            for all others.
    """

    mode: ProjectMode = "readonly"
    git: CheckedDirectory | None = None

    @property
    def copied(self) -> bool:
        return self.mode == "overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSizes:
    """Sizes of the jail's private file systems, MiB."""

    workspace_mb: int = 512
    tmp_mb: int = 256
    shm_mb: int = 64
    overlay_mb: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """Complete specification of a jail; jails of equal specifications are interchangeable.

    Attributes:
        rehearsed: its interpreter runs something before it is ready, so that the first execution is
            faster; False where somebody waits for the session.
    """

    environment: Environment
    project: ProjectMount | None
    sizes: JailSizes
    network: NetworkRule = NO_NETWORK
    secrets: tuple[str, ...] = ()
    rehearsed: bool = field(default=True, compare=False)

    @property
    def descriptors(self) -> int:
        """Number of the supervisor's descriptors that its session holds."""
        copied = self.project is not None and self.project.copied
        found = PER_SESSION + PER_OVERLAY * copied + PER_PROXY * (self.network.mode == "allow")
        return found + PER_GRANT * (bool(self.secrets) or self.network.reads_requests)

    def __hash__(self) -> int:  # as for `Environment`
        return hash((self.environment.name, self.project and self.project.path))


Labels = tuple[tuple[str, str], ...]
"""Labels of a session: names and values, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """Client of a request, with what decides about names and projects.

    Attributes:
        sources: sources of environments that are only for clients with this entry.
        secrets: names of secrets of its new sessions, in place of the configured ones; None for
            those.
        network: network of its new sessions, in place of the configured one; None for that.
        peer: process and user id of the peer, from the kernel; None if unknown.
        bound: upper bound of its new sessions' network, in any configuration; None for none. A
            client with a bound lives in a box, and can write the project that others trust.
        resumes: after a lost connection, it asks again for what was under way.
        idle_timeout_s, max_lifetime_s: limits of its new sessions; None for the configured ones.
    """

    name: str
    scope: str
    project: ProjectMount | None = None
    sources: Sources | None = None
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    inherited: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    network: NetworkRule | None = None
    peer: tuple[int, int] | None = field(default=None, compare=False)
    bound: NetworkRule | None = None
    labels: Labels = ()
    made_by: str = ""
    resumes: bool = field(default=False, compare=False)
    secrets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits that hold for every session of this supervisor.

    Attributes:
        grace_s: seconds between an interrupt and the kill.
        max_queued: executions that may wait in one session.
    """

    grace_s: float = 2.0
    max_queued: int = 64
    processes: int = 256
    descriptors: int = 1024
    undo: int = 0
    undo_mb: int = 256
    enforcement: Enforcement = EACH_PROCESS

    def of_interpreters(self, environment: Environment) -> dict[str, int]:
        """The limits that the agent sets for its interpreters (agent-protocol.md, `limits`)."""
        limits = {
            "processes": self.processes,
            "descriptors": self.descriptors,
            "data_bytes": (environment.memory_mb + environment.reserved_mb) << 20,
        }
        undo = {"undo": self.undo, "undo_bytes": self.undo_mb << 20} if self.undo else {}
        return limits | undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Owner of a session. A spare of the pool has none.

    Attributes:
        name: name of the session; None for a one-shot.
        made_by: id of the call that made it, by which the client may ask for it again.
        own: sources of its environment, if only its client has it; None if everybody has it.
    """

    name: str | None
    scope: str
    client: str
    idle_timeout_s: float
    max_lifetime_s: float
    own: Sources | None = None
    labels: Labels = ()
    made_by: str = ""

    def is_for(self, client: ClientIdentity) -> bool:
        """Return whether a client of its scope may run code in it: it must have its environment."""
        own = self.own
        return own is None or (client.sources is not None and client.sources.has(own))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One piece of code to run.

    Attributes:
        env: environment. If empty, it is that of the named live session, else the one configured
            for `language`, else the one with that name.
        session: a session's name in the client's scope, ``"new"`` for a fresh name, or None for a
            one-shot.
        execution_id: id chosen by the caller for later questions; None to have one made.
        reply_chars: characters for which the caller has room, of each stream. Of a longer one it
            gets head and tail, and a file in the session has the whole. None for the agent's own
            bound.
        project_mode: mode that the session must have; None if nobody asked for one.
        project_chosen: the session must have the client's project, since its user named it.
        sent_to: instance of the only supervisor that it was sent to before; else empty.
        again: it was sent before with the same id, over a lost connection. It runs only if it is
            known that it never ran; else its result is the answer.
        reset: a fresh interpreter of the session runs it.
        undo: how many of the session's last calls to undo, in place of running code.
        argv: path of the script's file on the host, and its arguments; empty for other code.
        timeout_s: None for the environment's limit; larger values are clamped.
        language: language of the code if `env` is empty; empty if unknown.
    """

    client: ClientIdentity
    env: str
    code: str
    session: str | None = None
    timeout_s: float | None = None
    execution_id: str | None = None
    reply_chars: int | None = None
    project_mode: ProjectMode | None = None
    project_chosen: bool = False
    again: bool = False
    sent_to: str = ""
    language: str = ""
    reset: bool = False
    must_exist: bool = False
    stdin: bool = False
    undo: int = 0
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an execution as the agent reports it (`docs/contributing/agent-protocol.md`)."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int
    duration_s: float = 0.0
    displays: tuple[Mapping[str, Any], ...] = ()
    truncated: Mapping[str, Truncation] = field(default_factory=dict[str, Truncation])
    timed_out: bool = False
    interrupted: bool = False
    interpreter_restarted: bool = False
    restart_reason: str = ""
    notes: tuple[str, ...] = ()
    imports: Mapping[str, float] = field(default_factory=dict[str, float])
    checkpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """An outcome, with facts that only the supervisor knows.

    Attributes:
        replaced: why and how long ago an earlier session of this name ended, for people, e.g.
            ``ended 12 min ago (idle timeout)``; None when there was none.
        clamped_from_s: requested limit, if that was larger; else None.
        keeps_state: its environment has sessions, which could do longer work as a job.
        session_name: None for a one-shot.
        longest_s: longest possible time limit; None if unknown.
    """

    outcome: Outcome
    execution_id: str
    env: str
    session_id: str
    session_name: str | None
    created: bool
    replaced: str | None
    waited_s: float
    timeout_s: float
    clamped_from_s: float | None
    limit_events: tuple[LimitEvent, ...] = ()
    denials: tuple[str, ...] = ()
    longest_s: float | None = None
    keeps_state: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the result shows: the interpreter's own, then the denials."""
        return (*self.outcome.notes, *self.denials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A piece of output of a running execution."""

    stream: StreamName
    text: str


OutputSink = Callable[[Output], None]
"""Receives output while code runs. It must not block: it stores, merges or drops."""
