"""Methods of both clients about the supervisor, and what else it has than sessions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.client import events
from nsm.client.steps import Calls, SyncOrAsync, ask, handle_property, method
from nsm.wire.errors import DisconnectedError

if TYPE_CHECKING:
    from nsm.client.environments import (
        AsyncBuilds,
        AsyncProjectEnvironments,
        Builds,
        ProjectEnvironments,
    )
    from nsm.client.host import (
        AsyncBoxes,
        AsyncBridge,
        AsyncPorts,
        AsyncSecrets,
        Boxes,
        Bridge,
        Ports,
        Secrets,
    )
    from nsm.client.places import Project
    from nsm.client.steps import Steps
    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.status import DrainReport, OnDrain, OnReload, Status
    from nsm.wire.telemetry import PoolReport


class SupervisorMethods(Calls):
    """Part of `nsm.client.api.ClientMethods`."""

    _project: Project

    @handle_property
    def boxes(self) -> SyncOrAsync[Boxes, AsyncBoxes]:
        """Agents in boxes."""
        from nsm.client.host import AsyncBoxes, Boxes

        return self._choose(Boxes, AsyncBoxes)(self)

    @handle_property
    def ports(self) -> SyncOrAsync[Ports, AsyncPorts]:
        """Ports of sessions that are open on the host."""
        from nsm.client.host import AsyncPorts, Ports

        return self._choose(Ports, AsyncPorts)(self)

    @handle_property
    def secrets(self) -> SyncOrAsync[Secrets, AsyncSecrets]:
        """Secrets that sessions and boxes use without seeing them."""
        from nsm.client.host import AsyncSecrets, Secrets

        return self._choose(Secrets, AsyncSecrets)(self)

    @handle_property
    def bridge(self) -> SyncOrAsync[Bridge, AsyncBridge]:
        """Programs of the host that nsm starts for its clients."""
        from nsm.client.host import AsyncBridge, Bridge

        return self._choose(Bridge, AsyncBridge)(self)

    @handle_property
    def builds(self) -> SyncOrAsync[Builds, AsyncBuilds]:
        """Environments that nsm builds, with Nix or from packages."""
        from nsm.client.environments import AsyncBuilds, Builds

        return self._choose(Builds, AsyncBuilds)(self)

    @handle_property
    def project_environments(
        self,
    ) -> SyncOrAsync[ProjectEnvironments, AsyncProjectEnvironments]:
        """Environments that belong to the client's project, such as its `.venv`."""
        from nsm.client import environments as found

        chosen = self._choose(found.ProjectEnvironments, found.AsyncProjectEnvironments)
        return chosen(self, self._project.path)

    @method
    def envs(self, *, preload: bool = False) -> Steps[list[EnvironmentRow]]:
        """The environments, those that cannot be used included.

        Args:
            preload: first find out which modules cannot be preloaded, which may take seconds.
        """
        from nsm.wire.environments import envs

        return (yield from ask(envs(preload=preload)))

    @method
    def pool(self) -> Steps[PoolReport]:
        """The sessions that are kept ready, how many there should be, and why."""
        from nsm.wire.telemetry import pool

        return (yield from ask(pool()))

    @method
    def status(self) -> Steps[Status]:
        """The supervisor's version, uptime, counts."""
        from nsm.wire.status import read_status, status

        return read_status((yield from ask(status())))

    @method
    def ping(self) -> Steps[None]:
        """Return when the supervisor has answered."""
        yield "ping", {}, None, False, None

    @method
    def drain(
        self, *, timeout_s: float | None = None, on_progress: OnDrain | None = None
    ) -> Steps[DrainReport]:
        """Have nothing new begun, and return when nothing runs any more; sessions stay.

        Ctrl-C ends the waiting, and not the drain.

        Args:
            timeout_s: until what still runs is interrupted; None for no such time.
            on_progress: called every second or so.
        """
        from nsm.wire.status import DrainProgress, drain

        hear = events.data_to(on_progress, DrainProgress)
        return (yield from ask(drain(timeout_s=timeout_s), hear, interruptible=True))

    @method
    def undrain(self) -> Steps[DrainReport]:
        """Take back a drain: new work is taken again."""
        from nsm.wire.status import drain

        return (yield from ask(drain(cancel=True)))

    @method
    def reload(self, on_wait: OnReload | None = None, *, force: bool = False) -> Steps[None]:
        """Have the supervisor become the program that is installed now, with all sessions.

        `nsm.Client` returns when it answers again, and is connected to it. `nsm.AsyncClient`
        returns when this connection is closed; the next call makes another.

        Args:
            on_wait: is told, where programs of the bridge run, which ones the supervisor waits for
                first, and how long.
            force: end the sessions that the program cannot take over.

        Raises:
            StartFailedError: that program would not start, or cannot take over some sessions; the
                supervisor goes on as it is.
        """
        from nsm.wire.status import reload

        report = yield from ask(reload(force=force))
        if on_wait is not None and report.waits_for:
            on_wait(report)
        yield self._follow_reload

    @method
    def shutdown(self) -> Steps[None]:
        """End the supervisor and all sessions; returns when it has closed this connection."""
        with suppress(DisconnectedError, ConnectionError):  # it was ending already
            yield "shutdown", {}, None, False, None
        yield self._follow_end

    def _follow_reload(self) -> object:
        """Wait until the supervisor has become another program; each client says how."""
        raise NotImplementedError

    def _follow_end(self) -> object:
        """Wait until the supervisor has ended, and close; each client says how."""
        raise NotImplementedError
