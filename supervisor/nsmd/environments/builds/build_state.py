"""State of one environment: wanted, being built, built."""

from __future__ import annotations

import hashlib
from typing import Literal

import trio

from nsm.dataclass import dataclass, field
from nsmd.environments.nix.progress import NixProgress
from nsmd.model.flakes import likely_name
from nsmd.model.values import Environment

State = Literal["queued", "building", "ready", "failed"]


def key_of(reference: str, given_name: str) -> str:
    """Name of an environment's files; it stays the same after a restart."""
    return hashlib.sha256(f"{reference}\0{given_name}".encode()).hexdigest()[:16]


@dataclass(eq=False, slots=True, kw_only=True)
class Attempt:
    """One build.

    Attributes:
        refresh: ask the flake's origin for a newer version.
        queued_s, started_s: times on trio's clock; the second is None while it waits for its turn.
        progress: progress of Nix.
        link: link that will be the garbage-collector root.
        log_bytes: size of its log file.
        scope: cancel it to stop.
        done: set at its end, successful or not.
    """

    refresh: bool = False
    queued_s: float = field(default_factory=trio.current_time)
    started_s: float | None = None
    progress: NixProgress = field(default_factory=NixProgress)
    link: str = ""
    log_bytes: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Result of a build.

    Attributes:
        environment: environment to run code in.
        path: path in Nix's store.
        link: file name of its garbage-collector root.
        built_s: Unix time of the build.
    """

    environment: Environment
    path: str
    link: str
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
    """One environment that Nix builds. Only `Builder` changes it.

    Attributes:
        key: names its files.
        reference: reference to its flake.
        given_name: name from the user; empty for its own.
        added, variable, configured, clients: who wants it: `nsm env add`, the supervisor's own
            `NIX_SANDBOX_ENVS`, `config.toml`, and the number of clients by theirs.
        built: build in use now.
        failed: why the last build failed.
        attempt: the build that waits or runs now.
        interruptions: number of supervisors in a row that ended during a build.
        tried: this supervisor has begun a build of it.
        used_s: Unix time when somebody last began to want it.
    """

    def __init__(self, reference: str, given_name: str = "") -> None:
        self.key = key_of(reference, given_name)
        self.reference = reference
        self.given_name = given_name
        self.last_name = ""
        self.added = False
        self.variable = False
        self.configured = False
        self.clients = 0
        self.built: Built | None = None
        self.failed: Failed | None = None
        self.attempt: Attempt | None = None
        self.interruptions = 0
        self.tried = False
        self.used_s = 0.0
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

    @property
    def state(self) -> State:
        """State of the last build; an earlier build's environment may be usable in any of them."""
        if self.attempt is not None:
            return "queued" if self.attempt.started_s is None else "building"
        return "ready" if self.failed is None and self.built is not None else "failed"

    @property
    def wanted(self) -> bool:
        """True if anybody wants it now."""
        return self.added or self.variable or self.configured or self.clients > 0

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
