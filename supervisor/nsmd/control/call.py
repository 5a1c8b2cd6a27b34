"""A request being carried out, and what operations work on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from nsm.wire.errors import BadProjectError
from nsmd.boxes import Boxes
from nsmd.bridge.bridge import Bridge
from nsmd.config.reload import Reconfiguration
from nsmd.control import arguments
from nsmd.control.output_stream import Room
from nsmd.environments.builds.builder import Builder
from nsmd.fdstore.store import DescriptorStore, NoStore
from nsmd.manager.run_service import RunService
from nsmd.manager.session_index import Here
from nsmd.model import names
from nsmd.model.client_limits import ClientLimits
from nsmd.model.events import Events
from nsmd.model.shutdown import Shutdown
from nsmd.model.values import Client, Environment, ProjectMount
from nsmd.restart.drain import Draining
from nsmd.sessions.changes import Review
from nsmd.sessions.files import OpenFiles
from nsmd.sessions.session import Session
from nsmd.telemetry import Telemetry

Right = Literal["read", "run", "manage", "bridge"]
"""To see what all clients have, to run code in one's own sessions, to change anything, to start
programs of the bridge."""

ALL_RIGHTS: frozenset[Right] = frozenset(("read", "run", "manage", "bridge"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Parts of the supervisor that operations use; the daemon makes one.

    Attributes:
        jail: facts for people: how jails are made here.
        limits: the same: what keeps sessions to theirs.
        cold_starts: why sessions of an environment are no forks, by the environment's name.
        unloaded: modules that an environment could not preload, by its name.
        try_preloading: finds that out for an environment that has not been used yet.
        shutdown: asks the daemon to end, and to end all sessions.
        ending: the same, in other ways.
        configuration: reads the file again.
        draining: has nothing new begun before that.
        boxes: of agents that have sockets of their own.
        bridge: programs of the host that clients may start.
        events: what happens here.
        store: keeps sessions' descriptors, whatever becomes of this process.
        successor: the command that this process becomes at a reload.
        telemetry: what was counted of it.
        clients: how many connections there are.
        started_s: on trio's clock.
        max_file_bytes: limit of one file that is transferred.
        audit: facts about the audit's file.
        http: facts about clients over HTTP.
        review: of what sessions have changed in projects.
    """

    run_service: RunService
    builder: Builder
    socket_path: str
    pid: int
    jail: Mapping[str, Any]
    cold_starts: Mapping[str, str]
    started_s: float
    shutdown: Callable[[], None]
    clients: Callable[[], int]
    draining: Draining
    configuration: Reconfiguration
    boxes: Boxes
    bridge: Bridge
    max_file_bytes: int
    review: Review = field(default_factory=Review)
    ending: Shutdown = field(default_factory=Shutdown)
    events: Events = field(default_factory=Events)
    telemetry: Telemetry
    limits: Mapping[str, str]
    store: DescriptorStore = field(default_factory=NoStore)
    successor: Sequence[str] = ()
    audit: Callable[[], Mapping[str, Any]] = dict[str, Any]
    http: Callable[[], Mapping[str, Any]] = dict[str, Any]
    unloaded: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    try_preloading: Callable[[Environment], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request being carried out.

    Attributes:
        client: from the connection's hello.
        scope: likewise, or as the socket says.
        project: directory of the client, whose sessions its names mean first; empty for none.
        client_limits: what the socket keeps its connections to; None where it lets them say.
        peer: process and user id of who connected, as the kernel has them.
        confined: the connection may know and reach nothing beyond its scope.
        manages: it has the right `manage`: what sessions have run is for it to know.
        bridges: it has the right `bridge`.
        files: that the connection has open.
        room: for output that waits for the client.
        emit: sends an event that belongs to the request; waits for a slow client.
        on_cancel: says what to do when the client cancels.
        afterwards: says what to do once the answer has been sent.
    """

    services: Services
    args: arguments.Arguments
    client: str
    scope: str
    project: str = ""
    client_limits: ClientLimits | None = None
    peer: tuple[int, int]
    confined: bool
    manages: bool
    bridges: bool
    files: OpenFiles
    room: Room
    emit: Callable[[str, dict[str, Any]], Awaitable[None]]
    on_cancel: Callable[[Callable[[], None]], None]
    afterwards: Callable[[Callable[[], None]], None]

    def as_client(self) -> Client:
        """Make the client that asks, without its project."""
        bound = self.client_limits.network if self.client_limits is not None else None
        return Client(name=self.client, scope=self.scope, peer=self.peer, bound=bound)

    @property
    def by_project(self) -> bool:
        """True if each project has its own names for this client's sessions."""
        return self.scope == names.COMMAND_LINE and self.client_limits is None and not self.confined

    def names_in(self, project: ProjectMount | None) -> str:
        """The scope of the names that it gives sessions in a project."""
        if not self.by_project:
            return self.scope
        return names.command_line_scope(None if project is None else project.path)

    def here(self) -> Here | None:
        """Scope and project of the caller; None if names do not depend on the project."""
        if not self.by_project:
            return None
        project = None
        if self.project:
            # Where it must not be shown, code is run without it.
            with suppress(BadProjectError):
                project = self.services.run_service.check_project(self.project, None, None)
        return Here(self.names_in(project), None if project is None else project.path)

    def target(self) -> Session:
        """The live session that the argument `target` means.

        Raises:
            UnknownSessionError, AmbiguousSessionError: none, or several.
        """
        return self.find(arguments.text(self.args, "target"))

    def find(self, target: str) -> Session:
        """The live session that a text means to this client; raises as `target` does."""
        scope = self.scope if self.confined else None
        return self.services.run_service.find(target, scope, self.here())


Operation = Callable[[Call], Awaitable[dict[str, Any]]]
