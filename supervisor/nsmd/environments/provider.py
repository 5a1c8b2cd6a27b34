"""All sources of environments behind one interface: the catalog, and searches, builds and
evaluations when a client comes or asks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError
from nsmd.environments.builds.builder import Builder
from nsmd.environments.catalog import Catalog
from nsmd.environments.devshell import NAME as SHELL_NAME
from nsmd.environments.pending import EnvironmentPendingError
from nsmd.model.values import ClientIdentity, Environment, ProjectMount, Sources

if TYPE_CHECKING:
    from nsmd.environments.devices.equipment import DeviceFinder
    from nsmd.environments.devshell.project_shells import DevShells
    from nsmd.environments.host_presets import HostEnvironments
    from nsmd.environments.project.environment_manager import ProjectEnvironmentManager


class EnvironmentDiscovery(Protocol):
    """Search for environments; results go into the catalog."""

    def opened(self, own: Sources | None) -> AbstractAsyncContextManager[None]:
        """Announce a client with these sources while the block lasts."""
        ...

    async def look(self, client: ClientIdentity | None) -> None:
        """Look again for a client's environments, or for all."""


class Provider:
    """All sources of environments.

    Args:
        discovery: searches for environments; None for no search.
        builder: builds environments; None for no builds.
        shells: development shells of projects; None if they are off.
        project_environments: environments in projects that people agreed to use; None for none.
        devices: finds the devices of environments; None if none has any.
        host: environments of the host's interpreters; None if they are not asked again.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        discovery: EnvironmentDiscovery | None = None,
        builder: Builder | None = None,
        shells: DevShells | None = None,
        project_environments: ProjectEnvironmentManager | None = None,
        devices: DeviceFinder | None = None,
        host: HostEnvironments | None = None,
    ) -> None:
        self.catalog = catalog
        self._discovery = discovery
        self._builder = builder
        self._shells = shells
        self._project_environments = project_environments
        self._devices = devices
        self._host = host

    def __repr__(self) -> str:
        return f"<Provider {self.catalog!r}>"

    @property
    def inherit(self) -> Sequence[str]:
        """Names of variables that clients pass on to their project's own shell."""
        return () if self._shells is None else self._shells.inherit

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function when environments change; returns a function that ends this."""
        return self.catalog.subscribe(changed)

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """All environments of a client in display order, unusable ones included."""
        return self.catalog.environments(client)

    def find(self, client: ClientIdentity, name: str) -> Environment:
        """Find the environment that a client means, which must be usable now.

        Raises:
            EnvironmentPendingError: it is being built.
            EnvironmentUnavailableError: it cannot be used; the message says why.
            UnknownEnvironmentError: there is none; the message lists them.
        """
        try:
            environment = self.catalog.find(client, name)
        except UnknownEnvironmentError:
            if self._shells is None or name != SHELL_NAME:
                raise
            raise _no_shell(client.project) from None
        if environment.pending is not None:
            settled = self.catalog.settled(client, name)
            raise EnvironmentPendingError(environment.name, environment.pending, settled)
        return environment

    def preferred(self, client: ClientIdentity, language: str) -> str | None:
        """Name of the environment for a language that a client's project has itself; None if it
        has none.
        """
        name = (
            None
            if self._project_environments is None
            else self._project_environments.preferred(client, language)
        )
        return name if name in self.catalog.of_project(client) else None

    def notes(self, client: ClientIdentity, environment: Environment) -> tuple[str, ...]:
        """Notes for a result of code that a client runs in an environment."""
        return (
            ()
            if self._project_environments is None
            else self._project_environments.notes(client, environment)
        )

    def find_at_hand(self, client: ClientIdentity, name: str) -> Environment | None:
        """The environment for whose sessions spares may be kept for a client; None if there is
        none.
        """
        environment = self.catalog.view(client).names.get(name)
        if environment is None:
            environment = self._own_at_hand(client, name)
        if environment is None or environment.problem is not None or not environment.keeps_state:
            return None
        return environment

    def _own_at_hand(self, client: ClientIdentity, name: str) -> Environment | None:
        """The project's own environment, if it is known that the client's next session has exactly
        that.
        """
        if name == SHELL_NAME and self.inherit and not client.inherited:
            return None  # its values are not known yet
        environment = self.catalog.of_project(client).get(name)
        return None if environment is None or environment.pending is not None else environment

    async def look(self, client: ClientIdentity | None = None) -> None:
        """Look for environments again, because somebody asks for one that is unknown or unusable.

        Args:
            client: client whose sources to look at; None for all.
        """
        if self._host is not None:
            await self._host.look()
        if self._discovery is not None:
            await self._discovery.look(client)
        if self._devices is not None:
            await self._devices.look()

    @asynccontextmanager
    async def opened(self, sources: Sources | None) -> AsyncGenerator[None]:
        """Announce a client while the block lasts.

        Args:
            sources: sources of its own environments; they have been searched when the block begins.
        """
        async with _opened(self._discovery, sources), _opened(self._builder, sources):
            yield

    def expect(self, project: ProjectMount | None) -> None:
        """Note a client whose project may have a shell of its own."""
        if self._shells is not None:
            self._shells.expect(project)


def _no_shell(project: ProjectMount | None) -> EnvironmentUnavailableError:
    why = "there is no project" if project is None else f"{project.path} has no flake.nix"
    return EnvironmentUnavailableError(
        f"Environment {SHELL_NAME!r} is the development shell of the project's flake, and {why}.",
        hint="Use another environment.",
    )


@asynccontextmanager
async def _opened(
    provider: EnvironmentDiscovery | Builder | None, sources: Sources | None
) -> AsyncGenerator[None]:
    if provider is None:
        yield
        return
    async with provider.opened(sources):
        yield
