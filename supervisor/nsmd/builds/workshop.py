"""All environments that nsm has Nix build: who wants which, a few builds at once.

Everything here is quick: a build is a task, its result an entry in the catalog, and a call never
waits for one. What was built is kept by a garbage-collector root and remembered in a file, so that
it is there again at once after a restart.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import trio

from nsm.wire.errors import (
    BadRequestError,
    NsmError,
    OverloadedError,
    UnknownEnvironmentError,
)
from nsmd.builds import words
from nsmd.builds.building import Attempt, Building, Built, Failed
from nsmd.builds.output import NoSandboxError, built_path, sandbox
from nsmd.builds.references import MAX_REFERENCES, check_reference, shown, why_no_reference
from nsmd.builds.remembered import Remembered, load, save
from nsmd.builds.roots import Roots
from nsmd.catalog import Catalog, Rank, Source
from nsmd.names import ENVIRONMENT_NAME
from nsmd.nix.program import NixFinder
from nsmd.nix.progress import Progress
from nsmd.settings import Defaults, EnvironmentSettings
from nsmd.values import Artifact, Environment, EnvironmentProblem, Sources

log = logging.getLogger(__name__)

CONCURRENT_BUILDS = 2
"""Nix runs many builders for each; more would only share the same processors and memory."""

MAX_QUEUED = 64
"""Builds that wait; more are refused."""

MAX_ADDED = 256
"""Environments of `nsm env add`. Each is a line of what models read."""

MAX_UNWANTED = 32
"""Environments that are kept although nobody wants them now: an editor that comes back has them at
once. The one that was wanted longest ago goes first."""

MAX_INTERRUPTIONS = 2
"""After so many in a row a build is not begun again by itself: it may be what ends us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a workshop keeps things, below one directory."""

    directory: str

    @property
    def file(self) -> str:
        """What is remembered."""
        return os.path.join(self.directory, "environments.json")

    @property
    def roots(self) -> str:
        """Garbage-collector roots."""
        return os.path.join(self.directory, "roots")

    def log(self, key: str) -> str:
        """The log of the last build of an environment."""
        return os.path.join(self.directory, "logs", f"{key}.log")


class Workshop:
    """See the module; made by `open_workshop`.

    Args:
        finder: of nix.
        catalog: takes what was built.
        directory: absolute; is made, for the user alone.
        defaults: limits of environments that set none.
        owners: whose programs are run.
        timeout_s: of one build, seconds.
        in_use: artifacts of sessions that live now.
        nursery: owns the builds.
    """

    def __init__(
        self,
        finder: NixFinder,
        catalog: Catalog,
        directory: str,
        *,
        defaults: Defaults,
        owners: Collection[int],
        timeout_s: float,
        in_use: Callable[[], Iterable[Artifact]],
        nursery: trio.Nursery,
    ) -> None:
        self._finder = finder
        self._catalog = catalog
        self._place = Place(directory=directory)
        self._roots = Roots(self._place.roots)
        self._defaults = defaults
        self._owners = owners
        self._timeout_s = timeout_s
        self._in_use = in_use
        self._nursery = nursery
        self._turns = trio.CapacityLimiter(CONCURRENT_BUILDS)
        self._buildings: dict[str, Building] = {}
        self._configured: dict[str, EnvironmentSettings] = {}
        self._bad_variable: tuple[str, ...] = ()
        self._older: dict[str, Artifact] = {}
        self._unsaved = trio.Event()

    def __repr__(self) -> str:
        return f"<Workshop of {len(self._buildings)} environments>"

    @property
    def buildings(self) -> list[Building]:
        """Those that somebody wants, by name."""
        wanted = (building for building in self._buildings.values() if building.wanted)
        return sorted(wanted, key=lambda building: (building.name, building.reference))

    def log_path(self, building: Building) -> str:
        """The file with the log of its last build; may be missing."""
        return self._place.log(building.key)

    def find(self, target: str) -> Building:
        """The environment that a name or a reference means.

        Raises:
            UnknownEnvironmentError: none does.
        """
        for building in self.buildings:
            if building.means(target):
                return building
        known = ", ".join(building.name for building in self.buildings)
        raise UnknownEnvironmentError(
            f"No environment {target[:200]!r} is built by nsm.",
            hint=f"There are: {known}." if known else "`nsm env add REF#NAME` adds one.",
        )

    # What is wanted.

    async def begin(
        self, references: Sequence[str], configured: dict[str, EnvironmentSettings]
    ) -> None:
        """Have everything there that was there before, and build what is missing.

        Args:
            references: of the supervisor's own `NIX_SANDBOX_ENVS`.
            configured: environments of config.toml that name a flake.
        """
        rows = await trio.to_thread.run_sync(load, self._place.file)
        restored = await trio.to_thread.run_sync(self._restore, rows)
        self._buildings |= {building.key: building for building in restored}
        self._configured = configured
        for name, entry in configured.items():
            assert entry.flake is not None, "those that name one"
            self._want(entry.flake, name).configured = True
        good, self._bad_variable = _sorted_out(references)
        for reference in good:
            self._want(reference).variable = True
        for building in self.buildings:
            if building.built is None or building.variable or building.configured:
                self._begin_unless_hopeless(building)
        await trio.to_thread.run_sync(self._roots.keep_only, self._links())
        self._publish()

    def add(self, reference: str, name: str = "") -> Building:
        """Want an environment from now on, and build it where it is not there or not being built.

        Args:
            reference: as somebody typed it.
            name: for it; empty for its own.

        Raises:
            BadRequestError: the reference or the name cannot be meant.
            OverloadedError: there are too many.
        """
        check_reference(reference)
        if name and not ENVIRONMENT_NAME.fullmatch(name):
            raise BadRequestError(
                f"{name!r:.100} is no name for an environment.",
                hint="Use 1 to 64 of a-z, 0-9 and '-', beginning with a letter or digit.",
            )
        for other in self.buildings:
            if name and other.name == name and other.reference != reference and other.added:
                raise BadRequestError(
                    f"{name!r} is {shown(other.reference)} already.",
                    hint=f"Choose another name, or `nsm env rm {name}` first.",
                )
        building = self._known(reference, name) or self._want(reference, name)
        if not building.added and sum(b.added for b in self.buildings) >= MAX_ADDED:
            raise OverloadedError(
                f"{MAX_ADDED} environments have been added, which is the limit.",
                hint="Remove some: `nsm env rm NAME`.",
            )
        if building.attempt is None and (building.built is None or building.failed is not None):
            self._begin(building)
        building.added = True
        self._wanted(building)
        self._publish()
        return building

    def update(self, targets: Sequence[str]) -> list[Building]:
        """Build environments again, after asking where their flakes come from for newer ones.

        Args:
            targets: names or references; none for all.

        Raises:
            UnknownEnvironmentError: one is not built by us.
            OverloadedError: too many builds wait.
        """
        chosen = [self.find(target) for target in targets] if targets else self.buildings
        for building in chosen:
            if building.attempt is None:
                self._begin(building, refresh=True)
        self._publish()
        return chosen

    async def remove(self, target: str) -> Building:
        """Want an environment no more. A build of it is stopped; sessions that run in it live on.

        Raises:
            UnknownEnvironmentError: there is none.
            BadRequestError: it comes from elsewhere than `nsm env add`.
        """
        building = self.find(target)
        if not building.added:
            where = "config.toml" if building.configured else "NIX_SANDBOX_ENVS"
            raise BadRequestError(
                f"{building.name!r} was not added by `nsm env add`: {where} names it.",
                hint="Remove it there.",
            )
        building.added = False
        if not building.wanted:
            await self._forget(building)
        self._publish()
        return building

    @asynccontextmanager
    async def opened(self, own: Sources | None) -> AsyncGenerator[None]:
        """While the block lasts, somebody is there whose client entry names flakes."""
        good, bad = _sorted_out(own.flakes if own is not None else ())
        buildings = [self._want(reference) for reference in good]
        for building in buildings:
            building.clients += 1
            self._wanted(building)
            if not building.tried and building.attempt is None:
                self._begin_unless_hopeless(building)
        for reference in bad:
            self._catalog.put(
                Source(rank=Rank.CLIENT_BUILT, of=reference), (), [_bad_reference(reference)]
            )
        self._publish()
        try:
            yield
        finally:
            for building in buildings:
                building.clients -= 1
                if not building.clients:
                    source = Source(rank=Rank.CLIENT_BUILT, of=building.reference)
                    self._catalog.drop(source)

    def _want(self, reference: str, name: str = "") -> Building:
        """The environment of a reference and a given name."""
        building = Building(reference, name)
        return self._buildings.setdefault(building.key, building)

    def _known(self, reference: str, name: str) -> Building | None:
        """One that is wanted already and would be the same."""
        for building in self.buildings:
            if building.reference == reference and name in ("", building.name):
                return building
        return None

    def _wanted(self, building: Building) -> None:
        building.used_s = time.time()
        unwanted = [b for b in self._buildings.values() if not b.wanted and b.attempt is None]
        unwanted.sort(key=lambda b: b.used_s)
        for old in unwanted[: max(0, len(unwanted) - MAX_UNWANTED)]:
            del self._buildings[old.key]
        self._unsaved.set()

    async def _forget(self, building: Building) -> None:
        if building.attempt is not None:
            building.attempt.scope.cancel()
            await building.attempt.done.wait()
        self._keep_older(building.built)
        self._buildings.pop(building.key, None)
        self._unsaved.set()
        await trio.to_thread.run_sync(_remove_file, self._place.log(building.key))
        await self._sweep_roots()

    # Builds.

    def _begin_unless_hopeless(self, building: Building) -> None:
        if building.interruptions >= MAX_INTERRUPTIONS:
            cause = f"the supervisor ended during it {building.interruptions} times in a row"
            building.failed = Failed(
                cause=cause,
                message=f"The build is not begun again: {cause}.",
                hint=f"`nsm env update {building.name}` tries again.",
                at_s=time.time(),
            )
            return
        try:
            self._begin(building)
        except OverloadedError as error:
            building.failed = words.failure(error, time.time())

    def _begin(self, building: Building, *, refresh: bool = False) -> None:
        waiting = sum(b.state == "queued" for b in self._buildings.values())
        if waiting >= MAX_QUEUED:
            raise OverloadedError(
                f"{waiting} builds wait already.", hint="`nsm env ls` shows them; try again later."
            )
        building.attempt = Attempt(refresh=refresh)
        building.tried = True
        building.note()
        self._unsaved.set()
        self._nursery.start_soon(self._attempt, building, building.attempt, name=repr(building))

    async def _attempt(self, building: Building, attempt: Attempt) -> None:
        """One build from its place in the queue to its result.

        Cancellation: of the attempt's scope ends it with that as the reason; of all of us leaves
            it remembered as going on, so that the next supervisor begins it again.
        """
        error: NsmError | OSError | None = None
        with attempt.scope:
            try:
                async with self._turns:
                    attempt.started_s = trio.current_time()
                    building.note()
                    built = await self._build(building, attempt)
                    self._keep_older(building.built)
                    building.built = built
                    building.last_name = built.environment.name
            except (NsmError, OSError) as caught:
                error = caught
        if attempt.scope.cancelled_caught:
            building.failed = Failed(cause="it was stopped", message="The build was stopped.")
        elif error is not None:
            log.warning("environment %s is not built: %s", building.name, error)
            building.failed = words.failure(error, time.time())
        else:
            building.failed = None
        building.interruptions = 0
        building.attempt = None
        attempt.done.set()
        building.note()
        self._unsaved.set()
        self._publish()
        await self._sweep_roots()

    async def _build(self, building: Building, attempt: Attempt) -> Built:
        """Raises NsmError, OSError: it gave nothing."""

        def on_progress(progress: Progress, log_bytes: int) -> None:
            attempt.progress, attempt.log_bytes = progress, log_bytes
            building.note()

        nix = await self._finder.find()
        attempt.link = await trio.to_thread.run_sync(self._roots.fresh, building.key)
        log_fd = await trio.to_thread.run_sync(_open_log, self._place.log(building.key))
        try:
            arguments = ["build", "--json", "--out-link", self._roots.path(attempt.link)]
            # Nobody expects files of his own to be written by something in the background.
            arguments.append("--no-write-lock-file")
            if attempt.refresh:
                arguments.append("--refresh")
            try:
                stdout = await nix.run(
                    [*arguments, "--", building.reference],
                    timeout_s=self._timeout_s,
                    on_progress=on_progress,
                    log_fd=log_fd,
                )
                path = built_path(stdout, building.reference)
                environment = await trio.to_thread.run_sync(
                    self._look, path, building.reference, building.given_name
                )
                self._check_name(building, environment)
            except NsmError as error:
                _append(log_fd, f"nsm: {error.message}\n")
                raise
        finally:
            os.close(log_fd)
        return Built(
            environment=environment, path=path, link=attempt.link, built_s=time.time()
        )

    def _look(self, path: str, reference: str, name: str) -> Environment:
        environment = sandbox(path, reference, self._defaults, self._owners, name=name)
        entry = self._configured.get(name)
        return environment if entry is None else _tuned(environment, entry)

    def _check_name(self, building: Building, environment: Environment) -> None:
        """Raises BadRequestError: an environment that was added has that name."""
        for other in self.buildings:
            taken = other.name == environment.name and other.built is not None and other.added
            if taken and other is not building and building.added:
                raise BadRequestError(
                    f"{shown(building.reference)} is called {environment.name!r}, as "
                    f"{shown(other.reference)} is.",
                    hint=f"`nsm env add --name ANOTHER {building.reference}`",
                )

    # What is kept.

    def _keep_older(self, built: Built | None) -> None:
        """Its sessions may live on."""
        if built is not None and built.environment.artifact is not None:
            self._older[built.link] = built.environment.artifact

    async def _sweep_roots(self) -> None:
        """Remove roots of what nothing uses any more."""
        in_use = {artifact.run for artifact in self._in_use()}
        self._older = {link: a for link, a in self._older.items() if a.run in in_use}
        await trio.to_thread.run_sync(self._roots.keep_only, self._links())

    def _links(self) -> set[str]:
        buildings = self._buildings.values()
        return {
            *(building.built.link for building in buildings if building.built is not None),
            *(building.attempt.link for building in buildings if building.attempt is not None),
            *self._older,
        }

    def _restore(self, rows: Sequence[Remembered]) -> list[Building]:
        """What was remembered, as far as it is still there. Blocks."""
        return [self._restored(row) for row in rows if why_no_reference(row.reference) is None]

    def _restored(self, row: Remembered) -> Building:
        building = Building(row.reference, row.given_name)
        building.last_name = row.name
        building.added = row.added
        building.used_s = row.used_s
        building.interruptions = row.interruptions + 1 if row.building else 0
        if row.error:
            building.failed = Failed(cause=row.error, message=f"The build failed: {row.error}.")
        if row.path:
            try:
                environment = self._look(row.path, row.reference, row.given_name)
            except NoSandboxError as error:
                log.warning("environment %s has to be built again: %s", row.name, error)
            else:
                building.built = Built(
                    environment=environment, path=row.path, link=row.link, built_s=row.built_s
                )
        return building

    async def keep_saving(self) -> None:
        """Write what is to be remembered whenever it has changed."""
        while True:
            await self._unsaved.wait()
            self._unsaved = trio.Event()
            rows = [_to_remember(building) for building in self._buildings.values()]
            try:
                await trio.to_thread.run_sync(self._save, rows)
            except OSError as error:
                log.warning("%s cannot be written: %s", self._place.file, error)

    def _save(self, rows: Sequence[Remembered]) -> None:
        os.makedirs(self._place.directory, mode=0o700, exist_ok=True)
        save(self._place.file, rows)

    # What the catalog says.

    def _publish(self) -> None:
        every = list(self._buildings.values())
        bad = [_bad_reference(reference) for reference in self._bad_variable]
        self._put(Source(rank=Rank.BUILT), [b for b in every if b.added or b.variable], bad)
        self._put(Source(rank=Rank.CONFIGURED), [b for b in every if b.configured])
        for building in every:
            if building.clients:
                self._put(Source(rank=Rank.CLIENT_BUILT, of=building.reference), [building])

    def _put(
        self, source: Source, buildings: Sequence[Building], bad: Iterable[EnvironmentProblem] = ()
    ) -> None:
        found: dict[str, Environment] = {}
        problems = list(bad)
        now_s = time.time()
        for building in buildings:
            if building.built is not None:
                environment = building.built.environment
                first = found.setdefault(environment.name, environment)
                if first is not environment:
                    why = f"it is called {first.name!r}, as {first.source} is, which comes first"
                    problems.append(
                        EnvironmentProblem(
                            name=first.name, where=shown(building.reference), why=why
                        )
                    )
            if (problem := words.problem(building, now_s)) is not None:
                problems.append(problem)
        self._catalog.put(source, tuple(found.values()), tuple(problems))


@asynccontextmanager
async def open_workshop(
    finder: NixFinder,
    catalog: Catalog,
    directory: str,
    *,
    defaults: Defaults,
    owners: Collection[int],
    timeout_s: float,
    in_use: Callable[[], Iterable[Artifact]],
) -> AsyncGenerator[Workshop]:
    """A workshop; leaving the block stops its builds. Arguments as for `Workshop`."""
    async with trio.open_nursery() as nursery:
        workshop = Workshop(
            finder,
            catalog,
            directory,
            defaults=defaults,
            owners=owners,
            timeout_s=timeout_s,
            in_use=in_use,
            nursery=nursery,
        )
        nursery.start_soon(workshop.keep_saving)
        yield workshop
        nursery.cancel_scope.cancel()


def _to_remember(building: Building) -> Remembered:
    built = building.built
    return Remembered(
        key=building.key,
        reference=building.reference,
        added=building.added,
        given_name=building.given_name,
        name=building.name,
        path=built.path if built else "",
        link=built.link if built else "",
        built_s=built.built_s if built else 0.0,
        building=building.attempt is not None,
        interruptions=building.interruptions,
        error=building.failed.cause if building.failed else "",
        used_s=building.used_s,
    )


def _sorted_out(references: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Those that nix may be asked for, and the others."""
    good = [reference for reference in references if why_no_reference(reference) is None]
    bad = [reference for reference in references if why_no_reference(reference) is not None]
    return good[:MAX_REFERENCES], tuple([*bad, *good[MAX_REFERENCES:]])


def _bad_reference(reference: str) -> EnvironmentProblem:
    why = why_no_reference(reference) or f"there are more than {MAX_REFERENCES}"
    return EnvironmentProblem(
        name=None, where=f"NIX_SANDBOX_ENVS: {shown(reference)!r:.200}", why=why
    )


def _tuned(environment: Environment, entry: EnvironmentSettings) -> Environment:
    """An environment with what config.toml says about it."""
    return replace(
        environment,
        description=entry.description or environment.description,
        timeout_s=entry.timeout_seconds or environment.timeout_s,
        memory_mb=entry.memory_mb or environment.memory_mb,
        preload=entry.preload or environment.preload,
    )


def _open_log(path: str) -> int:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _append(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode(errors="replace"))
    except OSError as error:
        log.debug("the log of a build is not complete: %s", error)


def _remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.debug("%s: %s", path, error)
