"""All environments that nsm has Nix build, a few builds at once.

Everything here is quick: a build is a task, its result an entry in the catalog, and a call never
waits for a build here. A garbage-collector root keeps each build, and a file records it, so that it
is there at once after a restart.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from nsm.wire.errors import (
    BadRequestError,
    InternalError,
    NsmError,
    OverloadedError,
    UnknownEnvironmentError,
)
from nsmd.environments.artifacts.discovery import METADATA_VARIABLE
from nsmd.environments.builds import wording
from nsmd.environments.builds.build_index import BuildIndex, to_remember
from nsmd.environments.builds.build_run import BuildRun
from nsmd.environments.builds.build_state import Attempt, Building, Failed
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank
from nsmd.environments.nix.program import NixFinder
from nsmd.model.flakes import check_reference, shown, sort_out
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Artifact, ClientIdentity, EnvironmentProblem, Sources

log = logging.getLogger(__name__)

CONCURRENT_BUILDS = 2
"""Nix runs many builders for each; more would only share the same processors and memory."""

MAX_QUEUED = 64
"""Largest number of waiting builds; more are refused."""

MAX_ADDED = 256
"""Largest number of environments of `nsm env add`. Each is a line that models read."""

MAX_REFERENCES = 32
"""Largest number of references in one `NIX_SANDBOX_ENVS`."""

MAX_UNWANTED = 32
"""Largest number of environments that are kept although nobody wants them now: an editor that comes
back has them at once. The one that was wanted longest ago is removed first.
"""

LAST_SAVE_S = 2.0
"""Time to write a small file at the end."""

MAX_INTERRUPTIONS = 2
"""After so many in a row, a build does not start by itself again: it may be what ends the
supervisor.
"""


class Builder:
    """All environments that nsm has Nix build, a few at once.

    Args:
        build_run: runs one build.
        index: keeps the builds.
        catalog: gets the results.
        configured: environments of config.toml that name a flake.
        nursery: owns the builds.
    """

    def __init__(
        self,
        build_run: BuildRun,
        index: BuildIndex,
        catalog: Catalog,
        configured: Mapping[str, EnvironmentSettings],
        nursery: trio.Nursery,
    ) -> None:
        self._builder = build_run
        self._index = index
        self._catalog = catalog
        self._configured = configured
        self._nursery = nursery
        self._turns = trio.CapacityLimiter(CONCURRENT_BUILDS)
        self._all: dict[str, Building] = {}
        self._bad: list[str] = []
        self._bad_of_clients: Counter[str] = Counter()
        self._unsaved = trio.Event()
        self._saving = trio.Lock()
        self._saved = True

    def __repr__(self) -> str:
        return f"<Builder of {len(self._all)} environments>"

    @property
    def buildings(self) -> list[Building]:
        """Environments that somebody wants, by name."""
        wanted = (building for building in self._all.values() if building.wanted)
        return sorted(wanted, key=lambda building: (building.name, building.reference))

    def log_path(self, building: Building) -> str:
        """Path of the log of its last build; there may be none."""
        return self._index.log_path(building.key)

    def find(self, target: str) -> Building:
        """Find the environment that a name or a reference means.

        Raises:
            UnknownEnvironmentError: there is none.
            BadRequestError: there are several.
        """
        meant = [building for building in self.buildings if building.means(target)]
        if len(meant) > 1:
            # Also one that failed because its own name was taken, or one that a client named.
            rows = ", ".join(f"{b.name} ({shown(b.reference)}, {b.state})" for b in meant)
            raise BadRequestError(
                f"{target[:200]!r} means several environments: {rows}.",
                hint="Use a name or a reference that only one of them has.",
            )
        if meant:
            return meant[0]
        known = ", ".join(building.name for building in self.buildings)
        raise UnknownEnvironmentError(
            f"No environment {target[:200]!r} is built by nsm.",
            hint=f"There are: {known}." if known else "`nsm env add REF#NAME` adds one.",
        )

    # Wanted environments.

    async def begin(
        self, references: Sequence[str], in_use: Callable[[], Iterable[Artifact]] = tuple
    ) -> None:
        """Load all recorded environments, and build the missing ones.

        Args:
            references: references in the supervisor's own `NIX_SANDBOX_ENVS`.
            in_use: returns the artifacts of live sessions.
        """
        self._index.in_use = in_use
        for building in await trio.to_thread.run_sync(self._index.load, self._builder.look):
            self._all[building.key] = building
        there = self._catalog.view(ClientIdentity(name="", scope="")).names
        for name, entry in self._configured.items():
            # `lib.fromToml` may have built what the same file asks us to build.
            is_there = name in there and there[name].source == METADATA_VARIABLE
            if entry.flake is not None and not is_there:
                self._want(entry.flake, name).configured = True
        good, self._bad = sort_out(references, MAX_REFERENCES)
        for reference in good:
            self._want(reference).variable = True
        for building in self.buildings:
            self._wanted(building)
            # Builds of `nsm env add` that failed last time wait until somebody looks at them.
            lost = building.built is None and building.failed is None
            if lost or building.variable or building.configured:
                self._begin_unless_hopeless(building)
        await self._index.sweep(self._all.values)
        self._publish()

    def add(self, reference: str, name: str = "") -> Building:
        """Add an environment, and build it unless it is there or being built.

        Args:
            reference: reference as typed.
            name: name for it; empty for its own.

        Raises:
            BadRequestError: the reference or the name is invalid.
            OverloadedError: there are too many.
        """
        check_reference(reference)
        self._check_name(reference, name)
        building = self._known(reference, name) or self._want(reference, name)
        if not building.added and sum(b.added for b in self.buildings) >= MAX_ADDED:
            raise OverloadedError(
                f"{MAX_ADDED} environments have been added, which is the limit.",
                hint="Remove some: `nsm env rm NAME`.",
            )
        if building.attempt is None and (building.built is None or building.failed is not None):
            self._check_room()
            self._begin(building)
        building.added = True
        if name:
            self._replace_nameless(building)
        self._wanted(building)
        self._publish()
        return building

    def update(self, targets: Sequence[str]) -> list[Building]:
        """Build environments again, with newer versions of their flakes if there are any.

        Args:
            targets: names or references; none for all.

        Raises:
            UnknownEnvironmentError: nsm does not build one of them.
            BadRequestError: a name means several.
        """
        chosen = [self.find(target) for target in targets] if targets else self.buildings
        for building in chosen:
            if building.attempt is None:
                self._begin(building, refresh=True)
        self._publish()
        return chosen

    async def remove(self, target: str) -> Building:
        """Remove an environment and cancel its build; sessions in it live on.

        Raises:
            UnknownEnvironmentError: there is none.
            BadRequestError: it was not added by `nsm env add`.
        """
        building = self.find(target)
        if not building.added:
            where = "config.toml" if building.configured else "NIX_SANDBOX_ENVS"
            raise BadRequestError(
                f"{building.name!r} was not added by `nsm env add`: {where} names it.",
                hint="Remove it there.",
            )
        building.added = False
        self._publish()
        if not building.wanted:
            await self._forget(building)
        self._unsaved.set()
        return building

    @asynccontextmanager
    async def opened(self, own: Sources | None) -> AsyncGenerator[None]:
        """Keep the flakes of a client's entry wanted while the block lasts."""
        if own is None or not own.flakes:
            yield
            return
        good, bad = sort_out(own.flakes, MAX_REFERENCES)
        buildings = [self._want(reference) for reference in good]
        for building in buildings:
            building.clients += 1
            self._wanted(building)
            if not building.tried:
                try:
                    self._check_room()
                except OverloadedError as error:
                    building.failed = wording.failure(error, time.time())
                else:
                    self._begin_unless_hopeless(building)
        self._bad_of_clients.update(bad)
        self._publish()
        try:
            yield
        finally:
            self._bad_of_clients -= Counter(bad)
            for building in buildings:
                building.clients -= 1
                if not building.clients:
                    self._catalog.drop(_of_clients(building.reference))
            for reference in bad:
                if not self._bad_of_clients[reference]:
                    self._catalog.drop(_of_clients(reference))

    def _want(self, reference: str, name: str = "") -> Building:
        """Return the environment of a reference and a given name, new or known."""
        building = Building(reference, name)
        return self._all.setdefault(building.key, building)

    def _known(self, reference: str, name: str) -> Building | None:
        """Find a wanted environment that would be the same."""
        for building in self.buildings:
            if building.reference == reference and name in ("", building.name):
                return building
        return None

    def _wanted(self, building: Building) -> None:
        building.used_s = time.time()
        unwanted = [b for b in self._all.values() if not b.wanted and b.attempt is None]
        unwanted.sort(key=lambda b: b.used_s)
        for old in unwanted[: max(0, len(unwanted) - MAX_UNWANTED)]:
            self._index.keep_older(old.built)
            del self._all[old.key]
        self._unsaved.set()

    async def _forget(self, building: Building) -> None:
        if building.attempt is not None:
            building.attempt.scope.cancel()
            await building.attempt.done.wait()
        if building.wanted:  # somebody asked for it again meanwhile
            if building.attempt is None and building.built is None:
                self._begin(building)
            return
        self._all.pop(building.key, None)
        self._index.keep_older(building.built)
        await self._index.sweep(self._all.values)

    def _replace_nameless(self, named: Building) -> None:
        """An environment was given a name: drop a failed attempt to build it under its own name,
        which another one may have.
        """
        for other in self.buildings:
            same = other.reference == named.reference and not other.given_name
            if same and other is not named and other.built is None and other.attempt is None:
                other.added = False

    def _check_name(self, reference: str, name: str) -> None:
        """Check that an environment of this reference can have that name. Raises
        BadRequestError.
        """
        if name and not ENVIRONMENT_NAME.fullmatch(name):
            raise BadRequestError(
                f"{name!r:.100} is no name for an environment.",
                hint="Use 1 to 64 of a-z, 0-9 and '-', beginning with a letter or digit.",
            )
        for other in self.buildings:
            if name and other.added and other.name == name and other.reference != reference:
                raise BadRequestError(
                    f"{name!r} is {shown(other.reference)} already.",
                    hint=f"Choose another name, or `nsm env rm {name}` first.",
                )

    # Builds.

    def _begin_unless_hopeless(self, building: Building) -> None:
        if building.attempt is not None:
            return
        if building.interruptions >= MAX_INTERRUPTIONS:
            building.tried = True
            building.failed = wording.interrupted(building, time.time())
            return
        self._begin(building)

    def _check_room(self) -> None:
        """Check that another new build may wait; all known environments may wait at once.

        Raises:
            OverloadedError: too many builds wait.
        """
        waiting = sum(b.state == "queued" for b in self._all.values())
        if waiting >= MAX_QUEUED:
            raise OverloadedError(
                f"{waiting} builds wait already.",
                hint="`nsm env builds` shows them; try again later.",
            )

    def _begin(self, building: Building, *, refresh: bool = False) -> None:
        building.attempt = Attempt(refresh=refresh)
        building.tried = True
        building.note()
        self._unsaved.set()
        self._nursery.start_soon(self._carry_out, building, building.attempt, name=repr(building))

    async def _carry_out(self, building: Building, attempt: Attempt) -> None:
        """Carry out one build, from the queue to its result.

        Cancellation: of the attempt's scope, ends it with that reason; of the whole builder, leaves
        it recorded as running, so that the next supervisor starts it again.
        """
        error: NsmError | OSError | None = None
        with attempt.scope:
            try:
                async with self._turns:
                    attempt.started_s = trio.current_time()
                    building.note()
                    built = await self._builder.build(building, attempt)
                    self._check_own_name(building, built.environment.name)
                    self._index.keep_older(building.built)
                    building.built = built
                    building.last_name = built.environment.name
            except (NsmError, OSError) as caught:
                error = caught
            except Exception:
                # The only catch-all of a build: its errors concern nobody else.
                log.exception("the build of %s failed inside the supervisor", building.name)
                error = InternalError("nsm failed during the build; the supervisor's log says why.")
        if attempt.scope.cancelled_caught:
            building.failed = Failed(cause="it was stopped", message="The build was stopped.")
        elif error is not None:
            log.warning("environment %s is not built: %s", building.name, error)
            building.failed = wording.failure(error, time.time())
        else:
            building.failed = None
        building.interruptions = 0
        building.attempt = None
        self._unsaved.set()
        self._publish()
        await self._index.sweep(self._all.values)
        attempt.done.set()
        building.note()

    def _check_own_name(self, building: Building, name: str) -> None:
        """Check that no other added environment has that name. Raises BadRequestError."""
        for other in self.buildings:
            taken = other.added and other.built is not None and other.name == name
            if taken and building.added and other is not building:
                raise BadRequestError(
                    f"{shown(building.reference)} is called {name!r}, as {shown(other.reference)} "
                    "is.",
                    hint=f"`nsm env add --name ANOTHER {shown(building.reference)}`",
                )

    # Records and messages.

    async def keep_saving(self) -> None:
        """Write the record file whenever something has changed."""
        while True:
            await self._unsaved.wait()
            await self.save()

    async def save(self) -> None:
        """Write the record file, if something has changed."""
        async with self._saving:
            if not self._unsaved.is_set() and self._saved:
                return
            self._unsaved = trio.Event()
            rows = [to_remember(building) for building in self._all.values()]
            try:
                await trio.to_thread.run_sync(self._index.save, rows)
                self._saved = True
            except OSError as error:
                self._saved = False  # tried again with the next change, or at the end
                log.warning("built environments will not be remembered: %s", error)

    def _publish(self) -> None:
        every = list(self._all.values())
        bad = [wording.bad_reference(reference) for reference in self._bad]
        self._put(
            EnvironmentSource(rank=Rank.BUILT), [b for b in every if b.added or b.variable], bad
        )
        self._put(EnvironmentSource(rank=Rank.CONFIGURED), [b for b in every if b.configured])
        for building in every:
            if building.clients:
                self._put(_of_clients(building.reference), [building])
        for reference, clients in self._bad_of_clients.items():
            if clients:
                self._put(_of_clients(reference), [], [wording.bad_reference(reference)])

    def _put(
        self,
        source: EnvironmentSource,
        buildings: Sequence[Building],
        bad: Iterable[EnvironmentProblem] = (),
    ) -> None:
        environments, problems = wording.said(buildings)
        self._catalog.put(source, environments, [*bad, *problems])


@asynccontextmanager
async def open_builder(
    finder: NixFinder,
    catalog: Catalog,
    directory: str,
    *,
    defaults: Defaults,
    configured: Mapping[str, EnvironmentSettings],
    owners: Collection[int],
    timeout_s: float,
) -> AsyncGenerator[Builder]:
    """Open a builder; leaving the block stops its builds.

    Args:
        finder: finds Nix.
        catalog: gets the results.
        directory: absolute directory for builds; made for this user alone.
        defaults: limits of environments that set none.
        configured: environments of config.toml; those that name a flake are built.
        owners: users whose programs may be run.
        timeout_s: time limit of one build, seconds.
    """
    index = BuildIndex(directory)
    build_run = BuildRun(
        finder,
        index,
        defaults=defaults,
        configured=configured,
        owners=owners,
        timeout_s=timeout_s,
    )
    async with trio.open_nursery() as nursery:
        builder = Builder(build_run, index, catalog, configured, nursery)
        nursery.start_soon(builder.keep_saving)
        try:
            yield builder
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(LAST_SAVE_S):
                await builder.save()
            nursery.cancel_scope.cancel()


def _of_clients(reference: str) -> EnvironmentSource:
    return EnvironmentSource(rank=Rank.CLIENT_BUILT, of=reference)
