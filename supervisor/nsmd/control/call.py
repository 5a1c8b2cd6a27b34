"""A request that is being carried out, and the services that operations use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from nsm.dataclass import dataclass, field
from nsm.wire.errors import BadProjectError
from nsm.wire.operation import Right
from nsmd.boxes import BoxManager
from nsmd.bridge.bridge import BridgeService
from nsmd.config.reload import Reconfiguration
from nsmd.control.outgoing import Room
from nsmd.environments.builds.builder import Builder
from nsmd.environments.project.environment_manager import ProjectEnvironmentManager
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.fdstore.store import DescriptorStore, NoStore, Refill
from nsmd.jail.templates import TemplateLauncher
from nsmd.manager.run_service import RunService
from nsmd.manager.session_index import Here
from nsmd.model import names
from nsmd.model.events import Events
from nsmd.model.lifecycle import Shutdown
from nsmd.model.limits import ClientLimits
from nsmd.model.values import ClientIdentity, ProjectMount
from nsmd.network.secrets.service import SecretService
from nsmd.ports.port_manager import PortManager
from nsmd.restart.drain import Draining
from nsmd.sessions.files import OpenFiles, OpenWatches
from nsmd.sessions.fresh import ClientPrograms
from nsmd.sessions.session import Session
from nsmd.telemetry import Telemetry
from nsmd.telemetry.import_times import ImportTimes

if TYPE_CHECKING:
    from nsmd.sessions.changes import Review

ALL_RIGHTS: frozenset[Right] = frozenset(("read", "run", "manage", "bridge"))


def _review() -> Review:
    from nsmd.sessions.changes import Review  # noqa: PLC0415  # few supervisors need it

    return Review()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Parts of the supervisor that operations use; the daemon makes one.

    Attributes:
        jail, limits: how jails are made and sessions' limits enforced here, for people.
        forking: launcher of sessions that are forks of templates; None if none are.
        entries: what an earlier supervisor has left, and this version of nsm cannot read.
        everything_kept: yields what the store should have.
        silent: holders that do not answer, and may have sessions, too; None if there is none.
        successor: the command that this process becomes at a reload.
        started_s: on trio's clock.
    """

    run_service: RunService
    builder: Builder
    project_environments: ProjectEnvironmentManager
    socket_path: str
    pid: int
    jail: Mapping[str, Any]
    started_s: float
    save_all: Callable[[], Awaitable[None]]
    clients: Callable[[], int]
    draining: Draining
    configuration: Reconfiguration
    boxes: BoxManager
    ports: PortManager
    secrets: SecretService
    bridge: BridgeService
    max_file_bytes: int
    review: Callable[[], Review] = field(default_factory=lambda: cache(_review))
    ending: Shutdown = field(default_factory=Shutdown)
    events: Events = field(default_factory=Events)
    telemetry: Telemetry
    limits: Mapping[str, str]
    store: DescriptorStore = field(default_factory=NoStore)
    entries: KeptEntries = field(default_factory=lambda: KeptEntries(NoStore()))
    everything_kept: Refill = tuple
    silent: SilentHolders | None = None
    successor: Sequence[str] = ()
    audit: Callable[[], Mapping[str, Any]] = dict[str, Any]
    http: Callable[[], Mapping[str, Any]] = dict[str, Any]
    forking: TemplateLauncher | None = None
    import_times: ImportTimes

    @property
    def cold_starts(self) -> Mapping[str, str]:
        """Return why sessions of an environment are no forks, by its name."""
        return {} if self.forking is None else self.forking.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that is being carried out.

    Attributes:
        args: as they came, for the audit.
        scope: from the hello, or fixed by the socket.
        project: directory of the client; its names mean sessions of this project first. Empty for
            none.
        client_limits: None if the client chooses.
        peer: process and user id of the peer, from the kernel.
        confined: the connection may know and reach nothing beyond its scope.
        manages: it has the right `manage`, and may know what sessions ran.
        emit: sends an event that belongs to the request; waits for a slow client.
        attach: sends a descriptor with the answer, and closes it.
    """

    services: Services
    args: Mapping[str, Any]
    client: str
    scope: str
    project: str = ""
    client_limits: ClientLimits | None = None
    peer: tuple[int, int]
    confined: bool
    resumes: bool = False
    manages: bool
    bridges: bool
    files: OpenFiles
    watches: OpenWatches
    programs: dict[int, ClientPrograms] = field(default_factory=dict[int, ClientPrograms])
    own_sessions: set[Session] = field(default_factory=set[Session])
    room: Room
    emit: Callable[[str, dict[str, Any]], Awaitable[None]]
    on_cancel: Callable[[Callable[[], None]], None]
    afterwards: Callable[[Callable[[], None]], None]
    attach: Callable[[int], None]

    def as_client(self, **more: Any) -> ClientIdentity:
        """Client of the request, without its project; `more` has further facts, or a scope."""
        bound = self.client_limits.network if self.client_limits is not None else None
        facts: dict[str, Any] = {"scope": self.scope, **more}
        return ClientIdentity(
            name=self.client, peer=self.peer, bound=bound, resumes=self.resumes, **facts
        )

    @property
    def by_project(self) -> bool:
        """True if each project has its own names for this client's sessions."""
        return self.scope == names.COMMAND_LINE and self.client_limits is None and not self.confined

    def names_in(self, project: ProjectMount | None) -> str:
        """Scope of the names that the client gives sessions in a project."""
        if not self.by_project:
            return self.scope
        return names.command_line_scope(None if project is None else project.path)

    def here(self) -> Here | None:
        """Scope and project of the caller; None if names do not depend on the project."""
        if not self.by_project:
            return None
        project = None
        if self.project:
            # If it must not be shown, code runs without it.
            with suppress(BadProjectError):
                project = self.services.run_service.check_project(self.project, None, None)
        return Here(self.names_in(project), None if project is None else project.path)

    def find(self, target: str) -> Session:
        """Find the live session that a text means to this client.

        Raises:
            UnknownSessionError, AmbiguousSessionError: none, or several.
        """
        scope = self.scope if self.confined else None
        return self.services.run_service.find(target, scope, self.here())
