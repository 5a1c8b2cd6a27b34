"""One environment that is built: who wants it, its name, and what is said of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Literal

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import BadRequestError, NsmError
from nsmd.environments.nix.program import NixRunError
from nsmd.host.command_monitor import CommandProgress
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.packages import WantedPackages, likely_name, shown_reference, why_no_reference
from nsmd.model.text import duration
from nsmd.model.values import Environment, EnvironmentProblem

MAX_CAUSE_CHARS = 300

State = Literal["queued", "building", "ready", "failed"]


def key_of_packages(name: str, project: str = "") -> str:
    """Key of an environment that is made from packages, which may change. Without a project it is
    everybody's.
    """
    return key_of(f"packages:{project}", name)


def key_of(reference: str, given_name: str) -> str:
    """Name of an environment's files; it stays the same after a restart."""
    return hashlib.sha256(f"{reference}\0{given_name}".encode()).hexdigest()[:16]


@dataclass(eq=False, slots=True, kw_only=True)
class Attempt:
    """One build.

    Attributes:
        refresh: ask the flake's origin for a newer version.
        queued_s, started_s: times on trio's clock; the second is None while it waits for its turn.
        since_s: Unix time since when it may have made or found files.
        progress: progress of Nix, or of the installer of packages.
        link: link that will be the garbage-collector root.
    """

    refresh: bool = False
    queued_s: float = field(default_factory=trio.current_time)
    started_s: float | None = None
    since_s: float = field(default_factory=time.time)
    progress: CommandProgress = field(default_factory=CommandProgress)
    link: str = ""
    log_bytes: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPackages:
    """Packages of an environment that belongs to one project.

    Attributes:
        project: absolute path.
        path: absolute path of the list in the project, for people.
    """

    project: str
    name: str
    path: str
    packages: WantedPackages


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Result of a build.

    Attributes:
        path: path in Nix's store, or in the store of environments from packages.
        link: file name of its garbage-collector root; empty if it needs none.
        lock: path of the lock of packages; empty for none.
        note: a sentence about what did not go as it should; may be empty.
        built_s: Unix time of the build.
    """

    environment: Environment
    path: str
    link: str = ""
    lock: str = ""
    note: str = ""
    built_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Reason why a build failed, and the Unix time of that."""

    cause: str
    message: str
    hint: str = ""
    at_s: float = 0.0


@dataclass(eq=False, slots=True)
class Building:
    """One environment that is built. Only `Builder` changes it.

    Attributes:
        reference: reference to its flake; of one that is made from packages, these as text.
        packages: packages that it is made from; None for a flake.
        given_name: name from the user; empty for its own.
        project: project that it belongs to; empty if it is everybody's.
        added, variable, configured, agreed, clients: who wants it: `nsm env add`, the supervisor's
            own `NIX_SANDBOX_ENVS`, `config.toml`, `nsm env use`, and the number of clients by
            theirs.
        interruptions: number of supervisors in a row that were killed during a build.
        outdated: its packages have changed since its last build began, or that was interrupted.
        tried: this supervisor has begun a build of it.
        used_s: Unix time when somebody last began to want it.
        preload: modules that sessions find imported, in place of those that its flake or its
            packages came with; None for those.
        next_change: set at the next change. Take it before looking, to miss nothing.
    """

    reference: str
    given_name: str = ""
    packages: WantedPackages | None = None
    project: str = ""
    last_name: str = ""
    added: bool = False
    variable: bool = False
    configured: bool = False
    agreed: bool = False
    clients: int = 0
    built: Built | None = None
    failed: Failed | None = None
    attempt: Attempt | None = None
    interruptions: int = 0
    outdated: bool = False
    tried: bool = False
    used_s: float = 0.0
    preload: tuple[str, ...] | None = None
    next_change: trio.Event = field(default_factory=trio.Event)

    def __repr__(self) -> str:
        return f"<Building {self.name} of {self.reference} {self.state}>"

    @property
    def key(self) -> str:
        """Name of its files; it stays the same after a restart."""
        # Packages may change: the environment before serves until the next one is there.
        if self.packages is not None:
            return key_of_packages(self.given_name, self.project)
        return key_of(self.reference, self.given_name)

    @property
    def name(self) -> str:
        """Name of the environment; before the first build, the likely one."""
        if self.given_name:
            return self.given_name
        if self.built is not None:
            return self.built.environment.name
        return self.last_name or likely_name(self.reference)

    def set_preload(self, modules: tuple[str, ...]) -> None:
        """Have its sessions find these modules imported."""
        self.preload = modules
        if self.built is not None:
            environment = replace(self.built.environment, preload=modules)
            self.built = replace(self.built, environment=environment)

    @property
    def state(self) -> State:
        """State of the last build; an earlier build's environment may be usable in any of them."""
        if self.attempt is not None:
            return "queued" if self.attempt.started_s is None else "building"
        return "ready" if self.failed is None and self.built is not None else "failed"

    @property
    def wanted(self) -> bool:
        """True if anybody wants it now."""
        return self.added or self.variable or self.configured or self.agreed or self.clients > 0

    def means(self, target: str) -> bool:
        """Return whether a name or reference of the command line means this environment."""
        return target in (self.name, self.reference)

    def notify(self) -> None:
        """Notify who waits for the next change."""
        changed, self.next_change = self.next_change, trio.Event()
        changed.set()


# Names.


def check_given_name(
    buildings: Iterable[Building], reference: str, name: str, *, changes: bool = False
) -> None:
    """Check that an environment of this reference can be given that name.

    Args:
        name: empty for its own.
        changes: it is made from packages: it has no name of its own, and one that is there may get
            others.
    """
    if (name or changes) and not ENVIRONMENT_NAME.fullmatch(name):
        raise BadRequestError(
            f"{name!r:.100} is not a name for an environment.",
            hint="Use 1 to 64 of a-z, 0-9 and '-', beginning with a letter or digit.",
        )
    for other in buildings:
        differs = other.reference != reference and not (changes and other.packages is not None)
        if name and other.added and other.name == name and differs:
            raise BadRequestError(
                f"{name!r} is {shown_reference(other.reference)} already.",
                hint=f"Choose another name, or `nsm env rm {name}` first.",
            )


def check_own_name(buildings: Iterable[Building], building: Building, name: str) -> None:
    """Check that no other added environment has the name that a build has found, or raise a
    `BadRequestError`.
    """
    for other in buildings:
        taken = other.added and other.built is not None and other.name == name
        if taken and building.added and other is not building:
            raise BadRequestError(
                f"{shown_reference(building.reference)} is called {name!r}, as "
                f"{shown_reference(other.reference)} is.",
                hint=f"`nsm env add --name ANOTHER {shown_reference(building.reference)}`",
            )


def drop_nameless(buildings: Iterable[Building], named: Building) -> None:
    """Drop a failed attempt to build an environment under its own name, which another one may
    have; it was given a name now.
    """
    for other in buildings:
        same = other.reference == named.reference and not other.given_name
        if same and other is not named and other.built is None and other.attempt is None:
            other.added = False


# Sentences, for people and models.


def failure(error: NsmError | OSError, at_s: float) -> Failed:
    """Make the record of an error, which happened at a Unix time."""
    if not isinstance(error, NsmError):
        where = f" ({error.filename})" if error.filename else ""
        cause = f"nsm's state directory cannot be used: {error.strerror}{where}"
        hint = "`nsm doctor` says where it is."
        return Failed(cause=cause, message=f"{cause}.", hint=hint, at_s=at_s)
    cause = error.cause if isinstance(error, NixRunError) else ""
    cause = (cause or error.message.partition("\n")[0]).rstrip(".")
    return Failed(cause=cause[:MAX_CAUSE_CHARS], message=error.message, hint=error.hint, at_s=at_s)


def interrupted(building: Building, at_s: float) -> Failed:
    """Make the record of a build during which the supervisor was killed too often."""
    cause = f"the supervisor was killed during it {building.interruptions} times in a row"
    return Failed(
        cause=cause,
        message=f"The build is not begun again: {cause}.",
        hint=f"`nsm env update {building.name}` tries again.",
        at_s=at_s,
    )


def problem(building: Building) -> EnvironmentProblem | None:
    """Return why an environment cannot be used, or is out of date; None if all is well."""
    where, log = shown_reference(building.reference), f"`nsm env log {building.name}`"
    if building.attempt is not None:
        if building.built is not None:
            return None
        attempt = building.attempt
        return EnvironmentProblem(
            name=building.name,
            where=where,
            why=f"it is being built; {log} shows how",
            explain=lambda: f"{so_far(attempt)}; {log} shows how",
        )
    if building.failed is None:
        return None
    cause = building.failed.cause
    if building.built is None:
        why = f"its build failed: {cause}; {log} has more, `nsm env update` tries again"
    else:
        # Without a time, which would make it a new problem each time that it is reported.
        why = f"its update failed: {cause}; the one built before is used; {log} has more"
    return EnvironmentProblem(name=building.name, where=where, why=why)


def bad_reference(reference: str) -> EnvironmentProblem:
    """Make the problem for a reference in `NIX_SANDBOX_ENVS` that nsm does not pass to nix."""
    why = why_no_reference(reference) or "there are too many"
    where = f"NIX_SANDBOX_ENVS: {shown_reference(reference)!r:.200}"
    return EnvironmentProblem(name=None, where=where, why=why)


def so_far(attempt: Attempt) -> str:
    """Describe the progress of a build."""
    now_s = trio.current_time()
    if attempt.started_s is None:
        return f"it waits for other builds, for {duration(now_s - attempt.queued_s)} so far"
    progress = attempt.progress
    done = f", {progress.built} of {progress.to_build} built" if progress.to_build else ""
    if megabytes := progress.downloaded_bytes // 1_000_000:
        done += f", {megabytes} MB received"
    doing = progress.activity or progress.phase
    return f"it is being built, for {duration(now_s - attempt.started_s)} so far{done} ({doing})"
