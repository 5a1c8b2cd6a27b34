"""State of one environment: wanted, being built, built."""

from __future__ import annotations

import hashlib
import time
from typing import Literal

import trio

from nsm.dataclass import dataclass, field, replace
from nsmd.environments.commands.progress import CommandProgress
from nsmd.model.flakes import likely_name
from nsmd.model.packages import WantedPackages
from nsmd.model.values import Environment

State = Literal["queued", "building", "ready", "failed"]


_PACKAGES = "packages:"


def key_of_packages(name: str, project: str = "") -> str:
    """Key of an environment that is made from packages, which may change.

    Args:
        project: project that it belongs to; empty if it is everybody's.
    """
    return key_of(f"{_PACKAGES}{project}", name)


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
        log_bytes: size of its log file.
        scope: cancel it to stop.
        done: set at its end, successful or not.
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
        name: name of the environment.
        path: absolute path of the list in the project, for people.
    """

    project: str
    name: str
    path: str
    packages: WantedPackages


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBuild:
    """Files of a build.

    Attributes:
        path: path in Nix's store, or in the store of environments from packages.
        link: file name of its garbage-collector root; empty if it needs none.
        lock: path of the lock of packages; empty for none.
        note: a sentence about what did not go as it should; may be empty.
    """

    path: str
    link: str = ""
    lock: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Result of a build.

    Attributes:
        environment: environment to run code in.
        stored: its files.
        built_s: Unix time of the build.
    """

    environment: Environment
    stored: StoredBuild
    built_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Why a build failed.

    Attributes:
        cause: one line.
        message: whole message, several lines.
        hint: what to do.
        at_s: Unix time of the failure.
    """

    cause: str
    message: str
    hint: str = ""
    at_s: float = 0.0


class Building:
    """One environment that is built. Only `Builder` changes it.

    Attributes:
        key: names its files.
        reference: reference to its flake; of one that is made from packages, these as text.
        packages: packages that it is made from; None for a flake.
        given_name: name from the user; empty for its own.
        project: project that it belongs to; empty if it is everybody's.
        added, variable, configured, agreed, clients: who wants it: `nsm env add`, the supervisor's
            own `NIX_SANDBOX_ENVS`, `config.toml`, `nsm env use`, and the number of clients by
            theirs.
        built: build in use now.
        failed: why the last build failed.
        attempt: the build that waits or runs now.
        interruptions: number of supervisors in a row that ended during a build.
        outdated: its packages have changed since its last build began.
        tried: this supervisor has begun a build of it.
        used_s: Unix time when somebody last began to want it.
        preload: modules that sessions find imported, in place of those that its flake or its
            packages came with; None for those.
    """

    def __init__(
        self,
        reference: str,
        given_name: str = "",
        packages: WantedPackages | None = None,
        project: str = "",
    ) -> None:
        # Packages may change: the environment before serves until the next one is there.
        is_flake = packages is None
        self.key = (
            key_of(reference, given_name) if is_flake else key_of_packages(given_name, project)
        )
        self.reference = reference
        self.packages = packages
        self.given_name = given_name
        self.project = project
        self.last_name = ""
        self.added = False
        self.variable = False
        self.configured = False
        self.agreed = False
        self.clients = 0
        self.built: Built | None = None
        self.failed: Failed | None = None
        self.attempt: Attempt | None = None
        self.interruptions = 0
        self.outdated = False
        self.tried = False
        self.used_s = 0.0
        self.preload: tuple[str, ...] | None = None
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Building {self.name} of {self.reference} {self.state}>"

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

    def note(self) -> None:
        """Note a change."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    @property
    def next_change(self) -> trio.Event:
        """Event of the next change. Take it before looking, to miss nothing."""
        return self._changed

    async def changed(self) -> None:
        """Wait until something about it changes."""
        await self._changed.wait()
