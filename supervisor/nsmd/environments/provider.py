"""Everything that environments come from, behind one door: what there is now, and what is looked
for, built or evaluated when a client comes or asks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError
from nsmd.environments.builds.builder import Builder
from nsmd.environments.catalog import Catalog
from nsmd.environments.devshell.project_shells import NAME as SHELL_NAME
from nsmd.environments.devshell.project_shells import DevShells
from nsmd.environments.pending import EnvironmentPendingError
from nsmd.model.values import Client, Environment, ProjectMount, Sources


class Discovery(Protocol):
    """Looks for environments and puts them into the catalog."""

    def opened(self, own: Sources | None) -> AbstractAsyncContextManager[None]:
        """While the block lasts, a client with these sources is there."""
        ...

    async def look(self, client: Client | None) -> None:
        """Look again for a client's, or for all."""


class Provider:
    """All sources of environments.

    Args:
        catalog: what there is now.
        discovery: looks for environments; None finds no others.
        builder: builds some; None builds none.
        shells: of projects; None where they are not used.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        discovery: Discovery | None = None,
        builder: Builder | None = None,
        shells: DevShells | None = None,
    ) -> None:
        self.catalog = catalog
        self._discovery = discovery
        self._builder = builder
        self._shells = shells

    def __repr__(self) -> str:
        return f"<Provision {self.catalog!r}>"

    @property
    def inherit(self) -> Sequence[str]:
        """Names of variables that clients hand on to their project's own shell."""
        return () if self._shells is None else self._shells.inherit

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called when environments change; returns what ends that."""
        return self.catalog.subscribe(changed)

    def environments(self, client: Client) -> Sequence[Environment]:
        """A client's, unusable ones included, in the order in which they are shown."""
        return self.catalog.environments(client)

    def find(self, client: Client, name: str) -> Environment:
        """The environment that a client means, which can be used now.

        Raises:
            EnvironmentPendingError: it is being made.
            EnvironmentUnavailableError: it cannot be used; the message says why.
            UnknownEnvironmentError: there is none; the message says which there are.
        """
        try:
            environment = self.catalog.find(client, name)
        except UnknownEnvironmentError:
            if self._shells is None or name != SHELL_NAME:
                raise
            raise _no_shell(client.project) from None
        if environment.pending is not None:
            settled = None if self._shells is None else self._shells.settled(client.project)
            raise EnvironmentPendingError(environment.name, environment.pending, settled)
        return environment

    def find_at_hand(self, client: Client, name: str) -> Environment | None:
        """The environment whose sessions may be kept ready for a client; None if there is none."""
        environment = self.catalog.view(client).names.get(name)
        if environment is None:
            environment = self._shell_at_hand(client, name)
        if environment is None or environment.problem is not None or not environment.keeps_state:
            return None
        return environment

    def _shell_at_hand(self, client: Client, name: str) -> Environment | None:
        """The project's shell, if the client's next session of it is known to be like that."""
        if self._shells is None or name != SHELL_NAME:
            return None
        if self._shells.inherit and not client.inherited:
            return None  # its values are not known yet
        environment = self._shells.environment(client)
        return None if environment is None or environment.pending is not None else environment

    async def look(self, client: Client | None = None) -> None:
        """Look for environments again: somebody asks for what is not known.

        Args:
            client: whose; None for all there are.
        """
        if self._discovery is not None:
            await self._discovery.look(client)

    @asynccontextmanager
    async def opened(self, sources: Sources | None) -> AsyncGenerator[None]:
        """While the block lasts, a client is there.

        Args:
            sources: of its own environments, which have been looked for when the block begins.
        """
        async with _opened(self._discovery, sources), _opened(self._builder, sources):
            yield

    def expect(self, project: ProjectMount | None) -> None:
        """A client is there whose project may have a shell of its own."""
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
    provider: Discovery | Builder | None, sources: Sources | None
) -> AsyncGenerator[None]:
    if provider is None:
        yield
        return
    async with provider.opened(sources):
        yield
