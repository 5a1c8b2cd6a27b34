"""All environments that nsm builds, with Nix or from packages, a few builds at once.

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

from nsm.wire.errors import BadRequestError, OverloadedError, UnknownEnvironmentError
from nsmd.environments.artifacts.discovery import METADATA_VARIABLE
from nsmd.environments.builds import names, wording
from nsmd.environments.builds.build_directory import BuildDirectory, BuildRecord
from nsmd.environments.builds.build_queue import BuildQueue
from nsmd.environments.builds.build_run import BuildRun
from nsmd.environments.builds.build_state import Building, ProjectPackages, key_of_packages
from nsmd.environments.builds.nix_builds import NixBuilds
from nsmd.environments.builds.package_builds import PackageBuilds
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank
from nsmd.environments.nix.program import NixFinder
from nsmd.environments.packages.installer_run import InstallerRun
from nsmd.environments.packages.store import CollectedEnvironments
from nsmd.model.flakes import check_reference, shown, sort_out
from nsmd.model.packages import WantedPackages, check_packages
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import ClientIdentity, Environment, EnvironmentProblem, Sources

log = logging.getLogger(__name__)

MAX_ADDED = 256
"""Largest number of environments of `nsm env add`. Each is a line that models read."""

MAX_REFERENCES = 32
"""Largest number of references in one `NIX_SANDBOX_ENVS`."""

MAX_UNWANTED = 32
"""Largest number of environments that are kept although nobody wants them now: an editor that comes
back has them at once. The one that was wanted longest ago is removed first."""

LAST_SAVE_S = 2.0
"""Time to write a small file at the end."""


class Builder:
    """All environments that nsm builds, a few at once.

    Args:
        build_run: runs one build.
        directory: keeps the builds.
        catalog: gets the results.
        configured: environments of config.toml.
        nursery: owns the builds.
    """

    def __init__(
        self,
        build_run: BuildRun,
        directory: BuildDirectory,
        catalog: Catalog,
        configured: Mapping[str, EnvironmentSettings],
        nursery: trio.Nursery,
    ) -> None:
        self._build_run = build_run
        self._directory = directory
        self._catalog = catalog
        self._configured = configured
        self._all: dict[str, Building] = {}
        self._bad: list[str] = []
        self._bad_of_clients: Counter[str] = Counter()
        self._subscribers: list[Callable[[], None]] = []
        self._record = BuildRecord(directory, self._all.values)
        self._queue = BuildQueue(
            build_run,
            directory,
            self._record,
            nursery,
            every=self._all.values,
            changed=self._publish,
        )

    def __repr__(self) -> str:
        return f"<Builder of {len(self._all)} environments>"

    @property
    def buildings(self) -> list[Building]:
        """Environments that somebody wants, by name."""
        wanted = (building for building in self._all.values() if building.wanted)
        return sorted(wanted, key=lambda building: (building.name, building.reference))

    def log_path(self, building: Building) -> str:
        """Path of the log of its last build; there may be none."""
        return self._directory.log_path(building.key)

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

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call a function whenever a build begins or ends."""
        self._subscribers.append(changed)

    async def keep_saving(self) -> None:
        """Write the record file whenever something has changed."""
        await self._record.keep_saving()

    async def save(self) -> None:
        """Write the record file, if something has changed."""
        await self._record.save()

    # Wanted environments.

    async def begin(
        self,
        references: Sequence[str],
        in_use: Callable[[], Iterable[Environment]] = tuple,
        agreed: Sequence[ProjectPackages] = (),
    ) -> None:
        """Load all recorded environments, and build the missing ones.

        Args:
            references: references in the supervisor's own `NIX_SANDBOX_ENVS`.
            in_use: returns the environments of live sessions.
            agreed: environments of projects.
        """
        self._directory.in_use = in_use
        for building in await trio.to_thread.run_sync(self._directory.load, self._build_run.look):
            self._all[building.key] = building
        there = self._catalog.view(ClientIdentity(name="", scope="")).names
        for name, entry in self._configured.items():
            # `lib.fromToml` may have built what the same file asks us to build.
            is_there = name in there and there[name].source == METADATA_VARIABLE
            if entry.flake is not None and not is_there:
                self._want(entry.flake, name).configured = True
            if entry.packages is not None:
                self._want_packages(entry.packages, name).configured = True
        for each in agreed:
            self._want_of_project(each).agreed = True
        good, self._bad = sort_out(references, MAX_REFERENCES)
        for reference in good:
            self._want(reference).variable = True
        for building in self.buildings:
            self._wanted(building)
            self._queue.schedule_forgetting(building)  # else it waits until somebody looks at it
            lost = building.built is None and building.failed is None
            if lost or building.outdated or building.variable or building.configured:
                self._queue.begin_unless_hopeless(building)
        await self._directory.sweep(self._all.values)
        self._publish()

    def configure(self, configured: Mapping[str, EnvironmentSettings]) -> None:
        """Apply changed environments of config.toml that are made from packages."""
        self._configured = self._build_run.configured = configured
        for building in self._all.values():
            entry = configured.get(building.given_name)
            if building.packages is not None and (entry is None or entry.packages is None):
                building.configured = False
                if building.attempt is not None and not building.wanted:
                    building.attempt.scope.cancel()
        for name, entry in configured.items():
            if entry.packages is not None:
                building = self._want_packages(entry.packages, name)
                building.configured = True
                self._wanted(building)
        self._publish()

    def keep_for_projects(self, agreed: Sequence[ProjectPackages]) -> None:
        """Keep exactly these environments of projects, and build those that are new or changed."""
        kept = [self._want_of_project(each) for each in agreed]
        for building in self._all.values():
            if building.project:
                building.agreed = building in kept
                if building.attempt is not None and not building.wanted:
                    building.attempt.scope.cancel()
        for building in kept:
            self._wanted(building)
            if building.outdated or (building.built is None and building.failed is None):
                self._queue.begin_unless_hopeless(building)
        self._publish()

    def of_project(self, project: str, name: str) -> Building | None:
        """Return the environment of a project by its name."""
        return self._all.get(key_of_packages(name, project))

    def look_again(self) -> None:
        """Look whether packages or locks in the user's files have changed, and build if so."""
        for building in self.buildings:
            if building.packages is not None and building.attempt is None:
                self._queue.begin_unless_hopeless(building)
        self._publish()

    async def collect(self, *, dry_run: bool) -> CollectedEnvironments:
        """Remove environments made from packages that nobody uses.

        Args:
            dry_run: only say which.
        """
        staying = [b for b in self._all.values() if b.wanted or b.attempt is not None]
        for building in [b for b in self._all.values() if b not in staying]:
            if building.packages is not None and not dry_run:
                del self._all[building.key]
        in_use = self._directory.in_use()
        return await self._build_run.packages.collect(staying, in_use, dry_run=dry_run)

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
        names.check_given(self.buildings, reference, name)
        building = self._known(reference, name) or self._want(reference, name)
        self._add(building)
        if name:
            names.drop_nameless(self.buildings, building)
            self._publish()
        return building

    def _add(self, building: Building) -> None:
        """Keep an environment, and build it unless it is there or being built.

        Raises:
            OverloadedError: there are too many.
        """
        if not building.added and sum(b.added for b in self.buildings) >= MAX_ADDED:
            raise OverloadedError(
                f"{MAX_ADDED} environments have been added, which is the limit.",
                hint="Remove some: `nsm env rm NAME`.",
            )
        self.build_if_missing(building)
        building.added = True
        self._wanted(building)
        self._publish()

    def build_if_missing(self, building: Building) -> None:
        """Build an environment unless it is there or being built; again if it failed.

        Raises:
            OverloadedError: too many builds wait.
        """
        missing = building.built is None or building.failed is not None or building.outdated
        if building.attempt is None and missing:
            self._queue.check_room()
            self._queue.begin(building)

    def add_packages(self, packages: WantedPackages, name: str) -> Building:
        """Add an environment made from packages, or change its packages, and build it.

        Args:
            name: its name.

        Raises:
            BadRequestError: the packages or the name are invalid.
            OverloadedError: there are too many.
        """
        check_packages(packages)
        names.check_given(self.buildings, packages.text, name, changes=True)
        entry = self._configured.get(name)
        if entry is not None and entry.packages is not None:
            raise BadRequestError(
                f"{name!r} is an environment of config.toml.",
                hint="Change its packages there, then `nsm reload --config`.",
            )
        building = self._want_packages(packages, name)
        if packages.preload:
            building.set_preload(packages.preload)
        self._add(building)
        return building

    def preload(self, building: Building, modules: tuple[str, ...]) -> None:
        """Have sessions of an environment find these modules imported."""
        building.set_preload(modules)
        self._record.mark()
        self._publish()

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
                self._queue.begin(building, refresh=True)
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
            if building.agreed:
                raise BadRequestError(
                    f"{building.name!r} belongs to the project {building.project}.",
                    hint=f"`nsm env use --forget {building.name}` there takes it away.",
                )
            where = "config.toml" if building.configured else "NIX_SANDBOX_ENVS"
            raise BadRequestError(
                f"{building.name!r} was not added by `nsm env add`: {where} names it.",
                hint="Remove it there.",
            )
        building.added = False
        self._publish()
        if not building.wanted:
            await self._forget(building)
        self._record.mark()
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
                    self._queue.check_room()
                except OverloadedError as error:
                    building.failed = wording.failure(error, time.time())
                else:
                    self._queue.begin_unless_hopeless(building)
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

    def _want_packages(self, packages: WantedPackages, name: str) -> Building:
        """Return the environment of that name made from packages, with these from now on."""
        return self._with_packages(Building(packages.text, name, packages), packages)

    def _want_of_project(self, agreed: ProjectPackages) -> Building:
        """Return an environment of a project, with these packages from now on."""
        building = Building(agreed.path, agreed.name, agreed.packages, agreed.project)
        return self._with_packages(building, agreed.packages)

    def _with_packages(self, new: Building, packages: WantedPackages) -> Building:
        building = self._all.setdefault(new.key, new)
        building.reference = new.reference
        if building.packages != packages:
            building.packages, building.outdated = packages, True
        return building

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
            self._directory.keep_older(old.built)
            del self._all[old.key]
        self._record.mark()

    async def _forget(self, building: Building) -> None:
        if building.attempt is not None:
            building.attempt.scope.cancel()
            await building.attempt.done.wait()
        if building.wanted:  # somebody asked for it again meanwhile
            if building.attempt is None and building.built is None:
                self._queue.begin(building)
            return
        self._all.pop(building.key, None)
        self._directory.keep_older(building.built)
        await self._directory.sweep(self._all.values)

    # Messages.

    def _publish(self) -> None:
        every = [building for building in self._all.values() if not building.project]
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
        for changed in self._subscribers:
            changed()

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
    installation: InstallerRun,
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
        installation: makes environments from packages.
        catalog: gets the results.
        directory: absolute directory for builds; made for this user alone.
        defaults: limits of environments that set none.
        configured: environments of config.toml; those that name a flake or packages are built.
        owners: users whose programs may be run.
        timeout_s: time limit of one build by Nix, seconds.
    """
    files = BuildDirectory(directory)
    nix = NixBuilds(finder, files, defaults=defaults, owners=owners, timeout_s=timeout_s)
    packages = PackageBuilds(installation, defaults=defaults)
    build_run = BuildRun(nix, packages, files, configured)
    async with trio.open_nursery() as nursery:
        builder = Builder(build_run, files, catalog, configured, nursery)
        nursery.start_soon(builder.keep_saving)
        try:
            yield builder
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(LAST_SAVE_S):
                await builder.save()
            nursery.cancel_scope.cancel()


def _of_clients(reference: str) -> EnvironmentSource:
    return EnvironmentSource(rank=Rank.CLIENT_BUILT, of=reference)
