"""The nouns of the supervisor as frozen values: no behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Interpreter = Literal["python", "bash", "node"]
StreamName = Literal["stdout", "stderr"]
NetworkMode = Literal["off", "allow", "full"]
ProjectMode = Literal["readonly", "overlay"]
"""Of a project's directory: seen only, or changed in a copy (copy-on-write)."""

LimitKind = Literal["memory", "processes"]
Enforcer = Literal["cgroup", "watchdog", "rlimit", "none"]
"""What keeps a session to a limit: its control group, the supervisor's watchdog, limits of each
process, or nothing."""

SETUP_TIMEOUT_S = 60.0
"""Of each step of an environment's set-up. A hook that does more than look around takes seconds."""

MAX_CODE_BYTES = 8 * 1024 * 1024
"""Largest piece of code taken from any face (MCP and control socket alike)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyBind:
    """A host path that is visible in the jail, read-only."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Programs that Nix built, each of which makes a jail of its own (docs/reference/artifacts.md).

    Attributes:
        run: absolute path of the program for one execution, code on its standard input.
        session_run: the same of the one that runs the agent; None where there is none.
        template_run: the same of the one that runs a template; None where there is none.
        schema: version of what these programs take; 0 for older ones, which say none.
        stamp: identity of the files, another one after they were replaced in place.
        takes: what more these programs can be handed, see `nsmd.jail.handover`.
    """

    run: str
    session_run: str | None = None
    template_run: str | None = None
    schema: int = 0
    stamp: str = ""
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    """Code that an interpreter runs before any other (agent-protocol.md, `setup`).

    Attributes:
        name: for people, when it fails.
        code: for the interpreter.
    """

    name: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRule:
    """Hosts that code may reach over the network.

    Attributes:
        mode: nothing but its own loopback; hosts that are named, through a proxy of the
            supervisor's; or whatever the host reaches.
        allow: with mode `allow`, patterns of hosts as configured, e.g. ``*.example.com:443``.
    """

    mode: NetworkMode = "off"
    allow: tuple[str, ...] = ()


NO_NETWORK = NetworkRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Something to run code in: an interpreter and what its jail shows.

    Attributes:
        name: what callers ask for (`python`, `node`, `bash`, ...).
        interpreter: which of the agent's interpreters the code goes to.
        description: one line for people and models, e.g. ``Python 3.11.2``.
        agent_python: absolute path, valid in the jail, of the Python that runs the agent;
            empty when unavailable.
        program: absolute path, valid in the jail, of the environment's own interpreter
            (`python3`, `bash`, `node`); empty when unavailable.
        binds: read-only host paths beyond the base system (an interpreter's prefix).
        path: value of PATH in the jail.
        timeout_s: default and upper limit of one execution, seconds.
        memory_mb: memory limit of a session, MiB.
        reserved_mb: MiB that its interpreter sets aside without ever filling them, which a limit of
            one process counts all the same.
        cpu_weight: share of processor time beside other sessions, as of cgroups (100 is usual).
        preload: Python modules that its sessions find imported already.
        problem: why it cannot be used, for people; None when usable.
        source: where it comes from, e.g. ``preset`` or a configuration file's path.
        artifact: makes its jails; then `agent_python`, `binds` and `path` say nothing.
        variables: set in the jail, beyond those that every jail has. They may be secrets of the
            client whose session it is.
        setup: what the interpreter runs before any other code, each time it starts.
        pending: what it still waits for, for people; None once it can be used. Calls wait, too.
        network: what its sessions may reach unless they are told otherwise at their start.
        packages: top-level modules of Python that are installed for it, as far as they are known.
    """

    name: str
    interpreter: Interpreter
    description: str = ""
    agent_python: str = ""
    program: str = ""
    binds: tuple[ReadOnlyBind, ...] = ()
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

    def has_module(self, name: str) -> bool:
        """Tell whether code can import a module of Python, as far as is known."""
        return name in self.packages or any(
            module.partition(".")[0] == name for module in self.preload
        )

    def __hash__(self) -> int:
        # Asked several times for each session; of a few hundred binds it would take 60 us.
        return hash((self.name, self.source, self.variables))

    @property
    def keeps_state(self) -> bool:
        """True if it has sessions; else each execution has a jail of its own."""
        return self.artifact is None or self.artifact.session_run is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProblem:
    """Why an environment, or a place that should have some, cannot be used.

    Attributes:
        name: the environment's, as far as it is known; None for the place as a whole.
        where: what is at fault, e.g. a path.
        why: a sentence without its end, for people and models.
        explain: the same as it is at this moment, where that changes.
    """

    name: str | None
    where: str
    why: str
    explain: Callable[[], str] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a client's own environments come from: what its entry says, as it says it.

    Attributes:
        directory: of artifacts (`NIX_SANDBOX_DIR`).
        metadata: JSON (`NIX_SANDBOX_METADATA`).
        flakes: references to build (`NIX_SANDBOX_ENVS`).
    """

    directory: str | None = None
    metadata: str | None = None
    flakes: tuple[str, ...] = ()

    def has(self, part: Sources) -> bool:
        """Return whether these are all there."""
        return (
            part.directory in (None, self.directory)
            and part.metadata in (None, self.metadata)
            and set(part.flakes) <= set(self.flakes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectMount:
    """A checked project directory and where the jail shows it.

    Attributes:
        path: absolute host path with symlinks resolved.
        mount_point: absolute path in the jail.
        device, inode: identity of the directory when it was checked; a jail is used only while
            the path still has it.
        mode: whether code may change it, in a copy of its session's own.
    """

    path: str
    mount_point: str
    device: int
    inode: int
    mode: ProjectMode = "readonly"

    @property
    def copied(self) -> bool:
        """True if each session has a copy, on write."""
        return self.mode == "overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSizes:
    """Sizes of the jail's private file systems, MiB.

    Attributes:
        overlay_mb: of what code changes in a project that is copied on write.
    """

    workspace_mb: int = 512
    tmp_mb: int = 256
    shm_mb: int = 64
    overlay_mb: int = 512


class Remarks(Protocol):
    """Gives out notes, each once."""

    def __call__(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """All that decides what one jail is; equal specs are interchangeable.

    Attributes:
        network: what its session may reach at its start.
    """

    environment: Environment
    project: ProjectMount | None
    sizes: JailSizes
    network: NetworkRule = NO_NETWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """All that decides what one template is: sessions of equal specs are forks of the same.

    Attributes:
        agent_python, binds, path, preload, artifact: as in `Environment`.
        project: as in `JailSpec`.
        host_network: its sessions have the host's network, not one of their own.
        variables: what modules that are preloaded find set; empty where none are.
    """

    agent_python: str
    binds: tuple[ReadOnlyBind, ...]
    path: str
    preload: tuple[str, ...]
    project: ProjectMount | None
    artifact: Artifact | None = None
    host_network: bool = False
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __hash__(self) -> int:
        # As for `Environment`.
        return hash((self.agent_python, self.path, self.project, self.artifact))


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Client that makes a request, as far as names and projects go.

    Attributes:
        name: the client program, e.g. ``claude-code`` or ``nsm``.
        scope: name space of its session names.
        project: what its sessions see at the mount point.
        idle_timeout_s, max_lifetime_s: its own limits for new sessions; None for the
            configured ones.
        sources: of environments that are for clients with this entry only.
        inherited: variables of its own that its project's development shell is to have.
        network: what its new sessions may reach, in place of what is configured; None for that.
        peer: process and user id of who connected, as the kernel has them; None where unknown.
        bound: what its new sessions may reach at most, whatever is configured; None for that. Such
            a client lives in a box, and writes what others believe of its project.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Mechanism that keeps one session to its limits: as read back, not as requested.

    Attributes:
        memory: of all its processes together; `watchdog` looks while code runs.
        processes: how many there may be.
        cpu: its share beside other sessions.
        why: why that is not a control group, for people; empty where it is.
    """

    memory: Enforcer
    processes: Enforcer
    cpu: Enforcer
    why: str = ""


EACH_PROCESS = Enforcement(memory="rlimit", processes="rlimit", cpu="none")
"""Where nothing keeps a session as a whole: memory is limited for each process alone (setrlimit(2),
RLIMIT_DATA), their number in the session's own user namespace (RLIMIT_NPROC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits that hold for every session of this supervisor.

    Attributes:
        grace_s: seconds between an interrupt and the kill.
        max_queued: executions that may wait in one session.
        processes, descriptors: per session and per process.
        enforcement: what keeps sessions to theirs on this host.
    """

    grace_s: float = 2.0
    max_queued: int = 64
    processes: int = 256
    descriptors: int = 1024
    enforcement: Enforcement = EACH_PROCESS

    def of_interpreters(self, environment: Environment) -> dict[str, int]:
        """The limits that the agent sets for its interpreters (agent-protocol.md, `limits`)."""
        return {
            "processes": self.processes,
            "descriptors": self.descriptors,
            "data_bytes": (environment.memory_mb + environment.reserved_mb) << 20,
        }

    def setup_of(self, environment: Environment) -> dict[str, Any] | None:
        """Return the set-up of an environment for the agent; None if there is none."""
        if not environment.setup:
            return None
        return {
            "interpreter": environment.interpreter,
            "steps": [{"name": step.name, "code": step.code} for step in environment.setup],
            "timeout_s": SETUP_TIMEOUT_S,
            "grace_s": self.grace_s,
        }

    def longest_setup_s(self, environment: Environment) -> float:
        """Within that time an environment is set up, however often its interpreter has to begin
        anew because of a step."""
        steps = len(environment.setup)
        return steps * (steps + 1) / 2 * (SETUP_TIMEOUT_S + self.grace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Owner of a session. A spare of the pool has none.

    Attributes:
        name: None for a one-shot.
        scope, client: as in `Client`.
        idle_timeout_s, max_lifetime_s: seconds.
        own: where its environment comes from, if that is its client's own; None if everybody's.
    """

    name: str | None
    scope: str
    client: str
    idle_timeout_s: float
    max_lifetime_s: float
    own: Sources | None = None

    def is_for(self, client: Client) -> bool:
        """Return whether a client of its scope may run code in it: one that has its environment."""
        own = self.own
        return own is None or (client.sources is not None and client.sources.has(own))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One piece of code to run.

    Attributes:
        env: empty where the caller leaves it open: that of the live session it names, else what is
            configured for `language`, else the environment called like that.
        language: what the code seems to be written in (`python`, `bash`, `node`), where `env` is
            empty; empty where nothing says.
        session: a session's name in the client's scope, ``"new"`` for a fresh name, or None
            for a fresh jail that is thrown away.
        timeout_s: seconds; None for the environment's limit, larger values are clamped.
        execution_id: chosen by the caller so that it can be asked for later; None to have one
            made.
        reply_bytes: what the caller has room for, for each stream; of a longer one it gets head
            and tail, and a file in the session has the whole. None for the agent's own bound.
        project_mode: that the session has to have; None where nobody asked for one.
        project_chosen: the session has to have the client's project, since its user named it.
        again: it was sent before, under the same id, over a connection that was lost: it is run
            only if it is known not to have been, and else its result is the answer.
    """

    client: Client
    env: str
    code: str
    session: str | None = None
    timeout_s: float | None = None
    execution_id: str | None = None
    reply_bytes: int | None = None
    project_mode: ProjectMode | None = None
    project_chosen: bool = False
    again: bool = False
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvent:
    """A limit that ended or refused something while an execution ran: counted, never guessed.

    Attributes:
        limit: bytes of memory, or a number of processes.
        peak_bytes: the most memory that the session has had; None where nobody counts.
        what: what came of it, for people: ``python (pid 12) was killed``.
        times: how often.
    """

    kind: LimitKind
    limit: int
    enforced_by: Enforcer
    what: str
    peak_bytes: int | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Amount that a reply leaves out of one stream."""

    omitted_bytes: int
    file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an execution as the agent reports it (`docs/contributing/agent-protocol.md`)."""

    stdout: str
    stderr: str
    exit_code: int
    duration_s: float = 0.0
    displays: tuple[Mapping[str, Any], ...] = ()
    truncated: Mapping[str, Truncation] = field(default_factory=dict[str, Truncation])
    timed_out: bool = False
    interrupted: bool = False
    interpreter_restarted: bool = False
    restart_reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """An outcome and the circumstances that only the supervisor knows.

    Attributes:
        execution_id: the caller's or a made one.
        session_id, session_name: where it ran; the name is None for a one-shot.
        created: this call made the session.
        replaced: why and how long ago an earlier session of this name ended, for people, e.g.
            ``ended 12 min ago (idle timeout)``; None when there was none.
        waited_s: seconds spent waiting for other executions of the session.
        timeout_s: the limit that held, seconds.
        clamped_from_s: the limit that was asked for when it was larger; else None.
        limit_events: limits of the session that were reached meanwhile.
        denials: which rules of the jail stopped the code, for models and people; mostly none.
        longest_s: the longest limit that can be asked for, seconds; None where it is not known.
        background: the interpreter, where its session could do longer work in the background.
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
    background: Interpreter | None = None

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
"""Takes output as it comes. It must not block: it stores, merges or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One row of `nsm ps`; see `nsm.wire.live.SessionRow`."""

    id: str
    name: str | None
    env: str
    client: str
    scope: str
    project: str | None
    state: str
    age_s: float
    idle_s: float
    executions: int
    memory_bytes: int | None
    cpu_s: float | None
    pid: int
    limited_by: Enforcer | None = None
    processes: int | None = None
    running_s: float | None = None
    queued: int = 0
    taken_up: int = 0
    outdated: bool = False
