"""Sources named by variables: directories of artifacts and metadata, for everyone or for one
client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

from nsmd.environments.artifacts.discovery import (
    METADATA_VARIABLE,
    Scan,
    scan_directory,
    scan_metadata,
)
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank, own_sources
from nsmd.host.paths import NoWay, printable
from nsmd.host.source_watcher import SourceWatcher
from nsmd.model.settings import Defaults
from nsmd.model.values import ClientIdentity, EnvironmentProblem, Sources

DIRECTORY_VARIABLE = "NIX_SANDBOX_DIR"
FLAKES_VARIABLE = "NIX_SANDBOX_ENVS"

MAX_FLAKES = 64
"""Largest number of flakes to read from one variable. Fewer are built
(`nsmd.environments.builds.builder`); for the others, a problem says that they are too many.
"""


def sources_of(variables: Mapping[str, str]) -> Sources | None:
    """Sources that variables name; None if they name none."""
    given = variables.get(FLAKES_VARIABLE, "").split(",")
    sources = Sources(
        directory=variables.get(DIRECTORY_VARIABLE) or None,
        metadata=variables.get(METADATA_VARIABLE) or None,
        flakes=tuple(dict.fromkeys(f.strip() for f in given if f.strip()))[:MAX_FLAKES],
    )
    return None if sources == Sources() else sources


class ArtifactDiscovery:
    """Keep a catalog up to date with directories and metadata.

    Args:
        defaults: limits of environments that set none.
        no_way: returns why the jails' user cannot reach a file; None if it can.
    """

    def __init__(
        self,
        watcher: SourceWatcher,
        catalog: Catalog,
        defaults: Defaults,
        *,
        owners: Collection[int],
        home: str,
        no_way: NoWay = lambda _: None,
    ) -> None:
        self._watcher = watcher
        self._catalog = catalog
        self._defaults = defaults
        self._owners = owners
        self._home = home
        self._no_way = no_way
        self._everyones = (
            EnvironmentSource(rank=Rank.METADATA),
            EnvironmentSource(rank=Rank.DIRECTORY),
        )
        self._holders: dict[EnvironmentSource, int] = {}

    async def begin(self, named: Sources, usual: str) -> None:
        """Find the environments that are for everyone."""
        directory = EnvironmentSource(rank=Rank.DIRECTORY)
        if named.directory is None:
            self._keep_directory(directory, usual, expected=False)
        else:
            self._keep_directory(directory, named.directory, expected=True)
        if named.metadata is not None:
            self._keep_metadata(EnvironmentSource(rank=Rank.METADATA), named.metadata)
        await self._watcher.first_look(*self._everyones)

    @asynccontextmanager
    async def opened(self, own: Sources | None) -> AsyncGenerator[None]:
        """Watch these sources while a client has them. They have been read when the block begins,
        unless that takes long.
        """
        sources = [s for s in own_sources(own) if s.rank is not Rank.CLIENT_BUILT] if own else []
        new = [source for source in sources if source not in self._holders]
        for source in sources:
            self._holders[source] = self._holders.get(source, 0) + 1
        try:
            for source in new:
                if source.rank is Rank.CLIENT_DIRECTORY:
                    self._keep_directory(source, source.of, expected=True)
                else:
                    self._keep_metadata(source, source.of)
            await self._watcher.first_look(*sources)
            yield
        finally:
            for source in sources:
                self._holders[source] -= 1
                if not self._holders[source]:
                    del self._holders[source]
                    self._watcher.end(source)
                    self._catalog.drop(source)

    async def search_again(self, client: ClientIdentity | None) -> None:
        """Read sources again, because somebody asks for an unknown environment.

        Args:
            client: client whose sources to read; None for all.
        """
        if client is None:
            await self._watcher.look(*self._everyones, *self._holders)
        else:
            own = own_sources(client.sources) if client.sources else []
            await self._watcher.look(*self._everyones, *own)

    def _keep_directory(self, source: EnvironmentSource, named: str, *, expected: bool) -> None:
        path = self._home + named[1:] if named == "~" or named.startswith("~/") else named
        if not os.path.isabs(path):
            why = "it is no absolute path, so nothing is looked for"
            where = f"{DIRECTORY_VARIABLE}={printable(named)}"
            self._catalog.put(source, (), [EnvironmentProblem(name=None, where=where, why=why)])
            return
        scan = partial(
            scan_directory,
            path,
            self._defaults,
            self._owners,
            expected=expected,
            no_way=self._no_way,
        )
        self._keep(source, printable(path), scan)

    def _keep_metadata(self, source: EnvironmentSource, text: str) -> None:
        scan = partial(scan_metadata, text, self._defaults, self._owners, no_way=self._no_way)
        self._keep(source, METADATA_VARIABLE, scan)

    def _keep(self, source: EnvironmentSource, where: str, scan: Callable[[], Scan]) -> None:
        def report(found: Scan, unwatched: str | None) -> None:
            problems = found.problems
            if unwatched is not None:
                problems = (*problems, _unwatched(where, unwatched))
            self._catalog.put(source, found.environments, problems)

        self._watcher.keep(source, where, scan, report, partial(_failed, where))


def _unwatched(where: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        name=None,
        where=where,
        why=f"{why}; it is looked at when somebody runs `nsm env`, or asks for an environment "
        "that is not known",
    )


def _failed(where: str) -> Scan:
    why = "nsm failed to look at it; the supervisor's log has the details"
    return Scan(problems=(EnvironmentProblem(name=None, where=where, why=why),))
