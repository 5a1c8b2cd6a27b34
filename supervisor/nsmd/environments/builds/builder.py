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

from nsm.wire.errors import (
    BadRequestError,
    InternalError,
    NsmError,
    OverloadedError,
    UnknownEnvironmentError,
)
from nsmd.environments.artifacts.discovery import METADATA_VARIABLE
from nsmd.environments.builds.build_files import BuildFiles
from nsmd.environments.builds.build_run import BuildRun
from nsmd.environments.builds.building import (
    Attempt,
    Building,
    Failed,
    ProjectPackages,
    bad_reference,
    check_given_name,
    check_own_name,
    drop_nameless,
    failure,
    interrupted,
    key_of_packages,
    problem,
)
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank, each_name_once
from nsmd.environments.nix.program import NixFinder
from nsmd.host.command_monitor import CommandProgress
from nsmd.model.packages import (
    WantedPackages,
    check_packages,
    check_reference,
    shown_reference,
    split_valid,
)
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import ClientIdentity, Environment, EnvironmentProblem, Sources
from nsmd.packages.package_builds import PackageEnvironments
from nsmd.packages.store import CollectedEnvironments

log = logging.getLogger(__name__)

MAX_ADDED = 256
"""Largest number of environments of `nsm env add`. Each is a line that models read."""

MAX_REFERENCES = 32
"""Largest number of references in one `NIX_SANDBOX_ENVS`."""

MAX_UNWANTED = 32
"""Largest number of environments that are kept although nobody wants them now: an editor that comes
back has them at once. The one that was wanted longest ago is removed first."""

CONCURRENT_BUILDS = 2
"""Nix runs many builders for each; more would only share the same processors and memory."""

MAX_QUEUED = 64
"""Largest number of waiting builds; more are refused."""

MAX_INTERRUPTIONS = 2
"""After so many in a row, a build does not start by itself again: it may be what ends the
supervisor.
"""

FAILED_KEPT_S = 24 * 3600.0
"""Time for which `nsm env` shows an environment that was never built: most are typos."""

LAST_SAVE_S = 2.0
"""Time to write a small file at the end."""


class Builder:
    """All environments that nsm builds, a few at once.

    Args:
        nursery: owns the builds.
    """

    def __init__(
        self,
        build_run: BuildRun,
        catalog: Catalog,
        configured: Mapping[str, EnvironmentSettings],
        nursery: trio.Nursery,
    ) -> None:
        self._build_run = build_run
        self._files = build_run.files
        self._all = build_run.files.known
        self._catalog = catalog
        self._configured = configured
        self._nursery = nursery
        self._turns = trio.CapacityLimiter(CONCURRENT_BUILDS)
        self._bad: list[str] = []
        self._bad_of_clients: Counter[str] = Counter()
        self._subscribers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Builder of {len(self._all)} environments>"

    @property
    def buildings(self) -> list[Building]:
        """Environments that somebody wants, by name."""
        wanted = (building for building in self._all.values() if building.wanted)
        return sorted(wanted, key=lambda building: (building.name, building.reference))

    def log_path(self, building: Building) -> str:
        """Path of the log of its last build; there may be none."""
        return self._files.log_path(building.key)

    def find(self, target: str) -> Building:
        """Find the environment that a name or a reference means.

        Raises:
            UnknownEnvironmentError: there is none.
            BadRequestError: there are several.
        """
        meant = [building for building in self.buildings if building.means(target)]
        if len(meant) > 1:
            # Also one that failed because its own name was taken, or one that a client named.
            rows = ", ".join(f"{b.name} ({shown_reference(b.reference)}, {b.state})" for b in meant)
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

    # Wanted environments.

    async def begin(
        self,
        references: Sequence[str],
        in_use: Callable[[], Iterable[Environment]] = tuple,
        agreed: Sequence[ProjectPackages] = (),
    ) -> None:
        """Load all recorded environments, and build the missing ones."""
        self._files.in_use = in_use
        await self._files.load(
            lambda building, path: self._build_run.environment_at(building, path, self._configured)
        )
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
        good, self._bad = split_valid(references, MAX_REFERENCES)
        for reference in good:
            self._want(reference).variable = True
        for building in self.buildings:
            self._wanted(building)
            self._schedule_forgetting(building)  # else it waits until somebody looks at it
            lost = building.built is None and building.failed is None
            if lost or building.outdated or building.variable or building.configured:
                self._begin_unless_hopeless(building)
        await self._files.sweep()
        self._publish()

    def configure(self, configured: Mapping[str, EnvironmentSettings]) -> None:
        """Apply changed environments of config.toml that are made from packages."""
        self._configured = configured
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
                self._begin_unless_hopeless(building)
        self._publish()

    def of_project(self, project: str, name: str) -> Building | None:
        """Return the environment of a project by its name."""
        return self._all.get(key_of_packages(name, project))

    def look_again(self) -> None:
        """Look whether packages or locks in the user's files have changed, and build if so."""
        for building in self.buildings:
            if building.packages is not None and building.attempt is None:
                self._begin_unless_hopeless(building)
        self._publish()

    async def collect(self, *, dry_run: bool) -> CollectedEnvironments:
        """Remove environments made from packages that nobody uses, or only say which."""
        staying = [b for b in self._all.values() if b.wanted or b.attempt is not None]
        for building in [b for b in self._all.values() if b not in staying]:
            if building.packages is not None and not dry_run:
                del self._all[building.key]
        return await self._build_run.collect(staying, dry_run=dry_run)

    def add(self, reference: str, name: str = "") -> Building:
        """Add an environment, and build it unless it is there or being built.

        Args:
            name: name for it; empty for its own.
        """
        check_reference(reference)
        check_given_name(self.buildings, reference, name)
        building = self._known(reference, name) or self._want(reference, name)
        self._add(building)
        if name:
            drop_nameless(self.buildings, building)
            self._publish()
        return building

    def _add(self, building: Building) -> None:
        """Keep an environment, and build it unless it is there or being built."""
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
        """Build an environment unless it is there or being built; again if it failed. An
        `OverloadedError` says that too many builds wait.
        """
        missing = building.built is None or building.failed is not None or building.outdated
        if building.attempt is None and missing:
            self._check_room()
            self._begin(building)

    def add_packages(self, packages: WantedPackages, name: str) -> Building:
        """Add an environment made from packages, or change its packages, and build it."""
        check_packages(packages)
        check_given_name(self.buildings, packages.text, name, changes=True)
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
        self._files.mark()
        self._publish()

    def update(self, targets: Sequence[str]) -> list[Building]:
        """Build environments again, with newer versions of their flakes if there are any.

        Args:
            targets: names or references; none for all.
        """
        chosen = [self.find(target) for target in targets] if targets else self.buildings
        for building in chosen:
            if building.attempt is None:
                self._begin(building, refresh=True)
        self._publish()
        return chosen

    async def remove(self, target: str) -> Building:
        """Remove an environment and cancel its build; sessions in it live on. A `BadRequestError`
        says that `nsm env add` did not add it.
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
        self._files.mark()
        return building

    @asynccontextmanager
    async def opened(self, own: Sources | None) -> AsyncGenerator[None]:
        """Keep the flakes of a client's entry wanted while the block lasts."""
        if own is None or not own.flakes:
            yield
            return
        good, bad = split_valid(own.flakes, MAX_REFERENCES)
        buildings = [self._want(reference) for reference in good]
        for building in buildings:
            building.clients += 1
            self._wanted(building)
            if not building.tried:
                try:
                    self._check_room()
                except OverloadedError as error:
                    building.failed = failure(error, time.time())
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
            self._files.keep_older(old.built)
            del self._all[old.key]
        self._files.mark()

    async def _forget(self, building: Building) -> None:
        if building.attempt is not None:
            building.attempt.scope.cancel()
            await building.attempt.done.wait()
        if building.wanted:  # somebody asked for it again meanwhile
            if building.attempt is None and building.built is None:
                self._begin(building)
            return
        self._all.pop(building.key, None)
        self._files.keep_older(building.built)
        await self._files.sweep()

    # Builds that wait and run.

    def _begin_unless_hopeless(self, building: Building) -> None:
        """Begin a build, unless one is under way, or it may be what ends supervisors."""
        if building.attempt is not None:
            return
        if building.interruptions >= MAX_INTERRUPTIONS:
            building.tried = True
            building.failed = interrupted(building, time.time())
            return
        self._begin(building)

    def _check_room(self) -> None:
        """Check that another new build may wait; all known environments may wait at once."""
        waiting = sum(b.state == "queued" for b in self._all.values())
        if waiting >= MAX_QUEUED:
            raise OverloadedError(
                f"{waiting} builds wait already.",
                hint="`nsm env builds` shows them; try again later.",
            )

    def _begin(self, building: Building, *, refresh: bool = False) -> None:
        """Begin a build, which waits for its turn; `refresh` looks for newer versions."""
        phase = "evaluating" if building.packages is None else "resolving"
        building.attempt = Attempt(refresh=refresh, progress=CommandProgress(phase=phase))
        building.tried = True
        building.outdated = False
        building.notify()
        self._files.mark()
        self._nursery.start_soon(self._carry_out, building, building.attempt, name=repr(building))

    def _schedule_forgetting(self, building: Building) -> None:
        """Forget an environment that `nsm env add` could not make, but only `FAILED_KEPT_S` after
        that, and if nobody has tried again.
        """
        if building.failed is not None and building.built is None:
            self._nursery.start_soon(self._forget_later, building, building.failed)

    async def _forget_later(self, building: Building, failed: Failed) -> None:
        # Clocks jump: it is never kept for longer than from now on.
        left_s = min(failed.at_s + FAILED_KEPT_S - time.time(), FAILED_KEPT_S)
        await trio.sleep(max(0.0, left_s))
        if building.failed is failed and building.attempt is None and building.added:
            log.info("%s is forgotten, since it could not be built", building.name)
            building.added = False
            self._files.mark()
            self._publish()
            building.notify()

    async def _carry_out(self, building: Building, attempt: Attempt) -> None:
        """Carry out one build, from the queue to its result.

        Cancelling the attempt's scope ends it with that reason; cancelling the whole builder leaves
        it recorded as running, so that the next supervisor starts it again.
        """
        error: NsmError | OSError | None = None
        try:
            with attempt.scope:
                async with self._turns:
                    attempt.started_s = trio.current_time()
                    building.notify()
                    built = await self._build_run.build(building, attempt, self._configured)
                    check_own_name(self.buildings, building, built.environment.name)
                    self._files.keep_older(building.built)
                    building.built = built
                    building.last_name = built.environment.name
        except (NsmError, OSError) as caught:
            error = caught
        except Exception:
            # The only catch-all of a build: its errors concern nobody else. Around the scope, since
            # one that is stopped may fail, too.
            log.exception("the build of %s failed inside the supervisor", building.name)
            error = InternalError("nsm failed during the build; the supervisor's log says why.")
        if attempt.scope.cancelled_caught:
            building.failed = Failed(
                cause="it was stopped", message="The build was stopped.", at_s=time.time()
            )
        elif error is not None:
            log.warning("environment %s is not built: %s", building.name, error)
            building.failed = failure(error, time.time())
        else:
            building.failed = None
        building.interruptions = 0
        building.attempt = None
        self._schedule_forgetting(building)
        self._files.mark()
        self._publish()
        await self._files.sweep()
        attempt.done.set()
        building.notify()
        if building.outdated and building.wanted and building.attempt is None:
            self._begin(building)

    # Messages.

    def _publish(self) -> None:
        every = [building for building in self._all.values() if not building.project]
        bad = [bad_reference(reference) for reference in self._bad]
        self._put(
            EnvironmentSource(rank=Rank.BUILT), [b for b in every if b.added or b.variable], bad
        )
        self._put(EnvironmentSource(rank=Rank.CONFIGURED), [b for b in every if b.configured])
        for building in every:
            if building.clients:
                self._put(_of_clients(building.reference), [building])
        for reference, clients in self._bad_of_clients.items():
            if clients:
                self._put(_of_clients(reference), [], [bad_reference(reference)])
        for changed in self._subscribers:
            changed()

    def _put(
        self,
        source: EnvironmentSource,
        buildings: Sequence[Building],
        bad: Iterable[EnvironmentProblem] = (),
    ) -> None:
        built = (building.built for building in buildings)
        environments, hidden = each_name_once(each.environment for each in built if each)
        problems = (problem(building) for building in buildings)
        self._catalog.put(source, environments, [*bad, *hidden, *filter(None, problems)])


@asynccontextmanager
async def open_builder(
    finder: NixFinder,
    installation: PackageEnvironments,
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
        directory: absolute directory for builds; made for this user alone.
        defaults: limits of environments that set none.
        configured: environments of config.toml; those that name a flake or packages are built.
        timeout_s: time limit of one build by Nix, seconds.
    """
    files = BuildFiles(directory)
    build_run = BuildRun(
        finder=finder,
        installation=installation,
        files=files,
        defaults=defaults,
        owners=owners,
        timeout_s=timeout_s,
    )
    async with trio.open_nursery() as nursery:
        builder = Builder(build_run, catalog, configured, nursery)
        nursery.start_soon(files.keep_saving)
        try:
            yield builder
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(LAST_SAVE_S):
                await files.save(at_end=True)
            nursery.cancel_scope.cancel()


def _of_clients(reference: str) -> EnvironmentSource:
    return EnvironmentSource(rank=Rank.CLIENT_BUILT, of=reference)
