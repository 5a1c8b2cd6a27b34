"""Environments that nsm builds, as the operations `env_...` answer. Few programs ask."""

from typing import Annotated, NamedTuple, TypeAlias

from nsm.wire.decode import Constraint
from nsm.wire.errors import ErrorField
from nsm.wire.operation import operation


class BuildProgress(NamedTuple):
    """How far a build has come.

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
    """Packages of an environment; `nsm.client.builds.Builds.add_packages` describes them."""

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
) -> BuiltRow: ...
@operation("manage", key="environments", recorded=("targets", "name"))
def env_update(targets: tuple[str, ...] = (), *, wait: bool = False) -> list[BuiltRow]: ...
@operation("manage", key="environments", recorded=None)
def env_list() -> list[BuiltRow]: ...
@operation("manage", recorded=("targets", "name", "reference"))
def env_remove(targets: Names) -> RemoveReport: ...
@operation("manage", key="environment", recorded=None)
def env_log(target: str, *, follow: bool = False) -> BuiltRow: ...
@operation("manage")
def env_gc(*, dry_run: bool = False) -> CollectReport: ...
@operation("manage", recorded=("target", "modules", "remove"))
def env_preload(target: str, modules: Names, *, remove: bool = False) -> PreloadReport: ...
