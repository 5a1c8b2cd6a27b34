"""Environments: those that there are, those that nsm builds, and those that lie in a project."""

from typing import Annotated, TypeAlias

from nsm.wire.decode import Constraint
from nsm.wire.errors import ErrorField
from nsm.wire.operation import operation
from nsm.wire.tuples import NamedTuple


class SlowImport(NamedTuple):
    """A module that sessions often wait for: worth preloading, as they say themselves.

    Attributes:
        seconds: median of the times that its import took.
        sessions: number of sessions that imported it, among the last `of`.
    """

    module: str
    seconds: float
    sessions: int
    of: int


class TemplateRow(NamedTuple):
    """A template: a process of which sessions are forks.

    Attributes:
        pid: process id on the host.
        project: project that its sessions see; None for none.
        memory_bytes: its proportional share of memory (PSS), since sessions share its pages; None
            if unknown.
        imported: modules that it has preloaded, and the seconds that each import took.
        sessions: number of sessions forked so far.
    """

    pid: int
    project: str | None
    memory_bytes: int | None
    imported: dict[str, float]
    sessions: int


class EnvironmentRow(NamedTuple):
    """One environment, or a reason why one is missing.

    Attributes:
        name: empty where something is the matter with all of a source.
        interpreter: empty where it is not known.
        problem: why it cannot be used, for people; None when `available`.
        source: where it comes from, e.g. ``preset``.
        program: the interpreter's path in the jail; empty when unavailable.
        timeout_s: default and upper limit of one run, seconds.
        memory_mb: memory limit of a session, MiB.
        preload: Python modules that its sessions find imported already.
        not_preloaded: those that could not be imported, each with the reason.
        keeps_state: it has sessions.
        cold_start: why its last session was not forked from a template; None if it was.
        aliases: other names that it answers to.
        only_for: for whom it is, for people; None if for everyone.
        hides: where others of that name come from, which it stands in place of.
        slow_imports: modules that are worth preloading, the slowest first.
        templates: its templates that run now; environments that show the same share them.
        devices: devices that its user gave it, as configured; `device_nodes`: paths of those that
            its sessions see.
    """

    name: str
    interpreter: str
    description: str
    available: bool
    problem: str | None
    source: str
    program: str
    timeout_s: float
    memory_mb: int
    preload: tuple[str, ...]
    keeps_state: bool
    cold_start: str | None
    aliases: tuple[str, ...]
    only_for: str | None
    hides: tuple[str, ...]
    not_preloaded: tuple[str, ...] = ()
    slow_imports: tuple[SlowImport, ...] = ()
    templates: tuple[TemplateRow, ...] = ()
    devices: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()


@operation("read", own=True, key="environments")
def envs(*, preload: bool = False) -> list[EnvironmentRow]:
    """List what there is to run code in. nsm first looks for changes in the sources of
    environments. With `preload` it also tries to import the modules to preload, which may take
    20 s.
    """
    ...


class BuildProgress(NamedTuple):
    """Progress of a build.

    Attributes:
        phase: of Nix ``evaluating``, ``fetching``, ``downloading`` or ``building``; of packages
            ``resolving``, ``installing``, ``compiling`` or ``publishing``.
        activity: present activity, for people; may be empty.
        built, to_build: derivations; the second grows while nix finds out.
        copied, to_copy: store paths that come from elsewhere.
        downloaded_bytes, to_download_bytes: as far as known.
    """

    phase: str
    activity: str
    built: int
    to_build: int
    copied: int
    to_copy: int
    downloaded_bytes: int
    to_download_bytes: int


class BuiltRow(NamedTuple):
    """One environment that nsm builds.

    Attributes:
        name: to run code in; before its first build, what it is likely to be called.
        reference: to its flake; or its packages, as text.
        state: state of its last build: ``queued``, ``building``, ``ready`` or ``failed``.
        wanted_by: sources that name it: ``nsm env add``, ``config.toml``, ``nsm env use``,
            ``NIX_SANDBOX_ENVS`` of the supervisor, or ``clients`` by theirs.
        path: in its store, of what can be used now; None where nothing can.
        built_at: when that was built, Unix time.
        since_s: seconds that a build has waited or run; None where none does.
        progress: progress of a build that waits or runs.
        cause, error, hint: why the last build failed: a line, all of it, and what to do.
        lock: path of the lock of its packages; empty for none.
        note: a sentence about what did not go as it should; may be empty.
    """

    name: str
    reference: str
    state: str
    wanted_by: tuple[str, ...]
    path: str | None
    built_at: float | None
    since_s: float | None
    progress: BuildProgress | None
    cause: str | None
    error: str | None
    hint: str | None
    lock: str = ""
    note: str = ""

    @property
    def going_on(self) -> bool:
        """True while a build waits or runs."""
        return self.progress is not None


class PreloadReport(NamedTuple):
    """Modules that an environment preloads after a change.

    Attributes:
        preload: modules that its sessions find imported.
        imported: seconds that each import took in a trial; empty without one.
        failed: modules that were left out, and why.
        memory_bytes: memory of a template with them; None if unknown.
    """

    name: str
    preload: tuple[str, ...]
    imported: dict[str, float]
    failed: dict[str, str]
    memory_bytes: int | None


class RemovedEnvironment(NamedTuple):
    """Environment that was removed."""

    name: str
    reference: str


class CollectReport(NamedTuple):
    """Environments made from packages that nobody uses.

    Attributes:
        removed: their directories, and that of what was fetched for builds.
        freed_bytes: size of files that nothing else shares.
    """

    removed: tuple[str, ...]
    freed_bytes: int


class RemoveError(NamedTuple):
    """A name that was not removed, and why."""

    target: str
    error: ErrorField


class RemoveReport(NamedTuple):
    """Outcome for each name in `env_remove`."""

    removed: tuple[RemovedEnvironment, ...]
    errors: tuple[RemoveError, ...]


class PackageRequest(NamedTuple):
    """Packages of an environment; `nsm.client.environments.Builds.add_packages` describes them."""

    pip: tuple[str, ...] = ()
    requirements: str = ""
    project: str = ""
    npm: tuple[str, ...] = ()
    package_lock: str = ""
    image: str = ""
    language: str = ""
    root: str = ""
    interpreter: str = ""
    allow_builds: bool = False
    preload: tuple[str, ...] = ()


Names: TypeAlias = Annotated[tuple[str, ...], Constraint(bool, "one name or more")]


@operation("manage", key="environment", recorded=("reference", "name", "devices"))
def env_add(
    reference: str = "",
    name: str = "",
    *,
    packages: PackageRequest | None = None,
    devices: tuple[str, ...] = (),
    wait: bool = False,
) -> BuiltRow:
    """Make an environment, of a flake (`reference`) or of `name` and `packages`. With `wait`,
    events `progress {environment}` come before the answer, until the build has ended.
    """
    ...


@operation("manage", key="environments", recorded=("targets", "name"))
def env_update(targets: tuple[str, ...] = (), *, wait: bool = False) -> list[BuiltRow]:
    """Build environments again; `wait` as of `env_add`."""
    ...


@operation("manage", key="environments", recorded=None)
def env_list() -> list[BuiltRow]:
    """List environments that nsm builds."""
    ...


@operation("manage", recorded=("targets", "name", "reference"))
def env_remove(targets: Names) -> RemoveReport:
    """Remove environments."""
    ...


@operation("manage", key="environment", recorded=None)
def env_log(target: str, *, follow: bool = False) -> BuiltRow:
    """Show the log of a build in events `log {text}`."""
    ...


@operation("manage")
def env_gc(*, dry_run: bool = False) -> CollectReport:
    """Remove what no environment uses."""
    ...


@operation("manage", recorded=("target", "modules", "remove"))
def env_preload(target: str, modules: Names, *, remove: bool = False) -> PreloadReport:
    """Choose modules that sessions of an environment find imported."""
    ...


class FoundPackage(NamedTuple):
    """A package that is installed.

    Attributes:
        version: empty if unknown.
        chosen: somebody asked for it by name; other packages need it if this is false.
    """

    name: str
    version: str
    chosen: bool


class FoundRow(NamedTuple):
    """One environment that lies in a project.

    Attributes:
        path: of its directory, relative to the project; of a list of packages, its file.
        kind: ``venv``, ``node_modules``, or ``packages`` for a list of packages.
        version: of its Python; empty if unknown.
        packages: those that somebody asked for first, at most 256.
        package_count: number of all packages; 0 if unknown.
        name: to run code in it; None if nobody has agreed to use it.
        changed: its packages have changed since somebody agreed. If it was made from a list of
            packages, it goes on as it was then.
        problem: why it cannot be used, for people; None if it can, as far as known.
        build: of a list in use: how far its environment is; else None.
    """

    path: str
    kind: str
    version: str
    packages: tuple[FoundPackage, ...]
    package_count: int
    name: str | None
    changed: bool
    problem: str | None
    build: BuiltRow | None = None


@operation("manage", key="found", recorded=None)
def env_found(project: str) -> list[FoundRow]:
    """List environments and lists of packages that lie in a directory."""
    ...


@operation("manage", key="found", recorded=("project", "path", "name"))
def env_use(
    project: str,
    path: str,
    name: str | None = None,
    *,
    interpreter: str = "",
    allow_builds: bool = False,
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    wait: bool = False,
) -> FoundRow:
    """Let all clients of a project use an environment that lies in it; `wait` as of `env_add`."""
    ...


@operation("manage", key="name", recorded=("project", "target"))
def env_forget(project: str, target: str) -> str:
    """Take the agreement of `env_use` back; `target` is a path or a name."""
    ...
