"""Files of the environments that are built: garbage-collector roots, logs, and a record.

The record is a small JSON file, which outlives the supervisor. If it cannot be read, `nsm env add`
makes everything again, quickly, since Nix's store still has the builds.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Annotated

import trio

from nsm.dataclass import dataclass
from nsm.wire.decode import Constraint
from nsm.wire.errors import NsmError
from nsmd.environments import saved_records
from nsmd.environments.builds.building import Building, Built, Failed
from nsmd.model.packages import WantedPackages, why_no_reference
from nsmd.model.values import Artifact, Environment

log = logging.getLogger(__name__)

_LOG = re.compile(r"[0-9a-f]+\.log")

_LINK = re.compile(r"([0-9a-f]+)-(\d+)(?:-[A-Za-z0-9_+.-]+)?")
"""Name of a link: key, number, and the output's name if nix has made a link for another output."""

MakeEnvironment = Callable[[Building, str], Environment]
"""Makes a building's environment at a store path. It raises an NsmError if the path has none."""


def _is_file_name(name: str) -> bool:
    return "/" not in name


def _is_key(key: str) -> bool:
    return key != "" and _is_file_name(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBuild:
    """Record of one environment, as it is in the file. Fields not named here are as in `Building`.

    Attributes:
        reference: reference to its flake, as given; or its packages, as text.
        path: path in its store; empty before it was built.
        link: file name of the garbage-collector root.
        built_s: Unix time of the build; 0 before.
        building: a build was running when this was written.
        interruptions: number of supervisors in a row that were killed during a build, if the one
            that has written this is.
        error: why the last build failed; else empty.
        failed_s: Unix time of that.
    """

    key: Annotated[str, Constraint(_is_key, "a file name")]
    reference: str
    added: bool = False
    given_name: str = ""
    name: str = ""
    path: str = ""
    link: Annotated[str, Constraint(_is_file_name, "a file name")] = ""
    built_s: float = 0.0
    building: bool = False
    interruptions: int = 0
    error: str = ""
    failed_s: float = 0.0
    used_s: float = 0.0
    packages: WantedPackages | None = None
    project: str = ""
    preload: tuple[str, ...] | None = None


class BuildFiles:
    """The environments that are known, and their files.

    Each build of Nix has a garbage-collector root: a link in one directory, which keeps it in Nix's
    store. `nix build --out-link` registers a link under its name, so links are never renamed, and
    every build has a link of its own.

    Args:
        directory: absolute path; it is created with access for this user only.

    Attributes:
        known: all environments, by key; the owner says with `mark` when one has changed.
        in_use: function that returns the environments of live sessions.
    """

    def __init__(self, directory: str) -> None:
        self.known: dict[str, Building] = {}
        self.in_use: Callable[[], Iterable[Environment]] = tuple
        self._directory = directory
        self._roots = os.path.join(directory, "roots")
        self._logs = os.path.join(directory, "logs")
        self._file = os.path.join(directory, "environments.json")
        self._older: dict[str, Artifact] = {}
        self._sweeping = trio.Lock()
        self._unsaved = trio.Event()
        self._saving = trio.Lock()
        self._saved = True

    # Roots and logs.

    def link_path(self, link: str) -> str:
        """Return the path of a garbage-collector root by its name."""
        return os.path.join(self._roots, link)

    def fresh_link(self, key: str) -> str:
        """Return a name for a new root of an environment. Blocks."""
        os.makedirs(self._roots, mode=0o700, exist_ok=True)
        numbers = [int(m[2]) for name in _names_in(self._roots) if (m := _link_of(name, key))]
        return f"{key}-{max(numbers, default=0) + 1}"

    def log_path(self, key: str) -> str:
        """Path of the log of an environment's last build; the file may not exist."""
        return os.path.join(self._logs, f"{key}.log")

    def new_log(self, key: str) -> int:
        """Create an empty log file and open it. Blocks.

        Raises:
            OSError: the file cannot be created.
        """
        os.makedirs(self._logs, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.log_path(key), flags, 0o600)

    def tree(self, key: str) -> str:
        """Path of the copy of a local flake while an environment is built from it."""
        return os.path.join(self._directory, "trees", key)

    def keep_older(self, built: Built | None) -> None:
        """Keep the root of a build that was replaced, since sessions may still run in it."""
        if built is not None and built.environment.artifact is not None:
            self._older[built.link] = built.environment.artifact

    async def sweep(self) -> None:
        """Remove roots that nothing uses, and logs of environments that no longer exist."""
        async with self._sweeping:
            # List the files first. A build chooses its link before Nix makes it, and an environment
            # is known before it has a log. So everything that is listed here and in use is known.
            links, logs = await trio.to_thread.run_sync(self._there)
            in_use = {each.artifact.run for each in self.in_use() if each.artifact is not None}
            self._older = {link: a for link, a in self._older.items() if a.run in in_use}
            known = self.known.values()
            links -= {
                *(b.built.link for b in known if b.built is not None),
                *(b.attempt.link for b in known if b.attempt is not None),
                *self._older,
            }
            logs -= {os.path.basename(self.log_path(key)) for key in self.known}
            await trio.to_thread.run_sync(self._remove, links, logs)

    def _there(self) -> tuple[set[str], set[str]]:
        """List the names of all roots and of all logs."""
        links = {name for name in _names_in(self._roots) if _LINK.fullmatch(name)}
        return links, {name for name in _names_in(self._logs) if _LOG.fullmatch(name)}

    def _remove(self, links: Collection[str], logs: Collection[str]) -> None:
        """Remove roots and logs; files of other kinds with a root's name stay."""
        for name in links:
            path = self.link_path(name)
            with suppress(OSError):
                if os.path.islink(path):
                    os.unlink(path)
                    log.info("%s is no longer a garbage-collector root", path)
        for name in logs:
            with suppress(OSError):
                os.unlink(os.path.join(self._logs, name))

    # The record.

    async def load(self, make: MakeEnvironment) -> None:
        """Restore the recorded environments whose references are still allowed."""

        def restored() -> list[Building]:
            return [
                _restored(row, make)
                for row in load_builds(self._file).values()
                if row.packages is not None or why_no_reference(row.reference) is None
            ]

        for building in await trio.to_thread.run_sync(restored):
            self.known[building.key] = building

    def mark(self) -> None:
        """Note that an environment has changed."""
        self._unsaved.set()

    async def keep_saving(self) -> None:
        """Write the record whenever something has changed."""
        while True:
            await self._unsaved.wait()
            await self.save()

    async def save(self, *, at_end: bool = False) -> None:
        """Write the record, if something has changed; `at_end` of a supervisor in any case, since
        it ends in order, and not by the builds that it interrupts.
        """
        async with self._saving:
            if not self._unsaved.is_set() and self._saved and not at_end:
                return
            self._unsaved = trio.Event()
            rows = [_saved(building, at_end=at_end) for building in self.known.values()]
            try:
                await trio.to_thread.run_sync(self._write, rows)
                self._saved = True
            except OSError as error:
                self._saved = False  # tried again with the next change, or at the end
                log.warning("built environments will not be remembered: %s", error)

    def _write(self, rows: Sequence[SavedBuild]) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        saved_records.save(self._file, "environments", rows)


def load_builds(path: str) -> dict[str, SavedBuild]:
    """Read the record by keys; nothing if it is missing or broken. Blocks."""
    rows = saved_records.load(
        path, SavedBuild, "environments", cure="`nsm env add` makes its environments again"
    )
    return {row.key: row for row in rows}


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _link_of(name: str, key: str) -> re.Match[str] | None:
    found = _LINK.fullmatch(name)
    return found if found is not None and found[1] == key else None


def _saved(building: Building, *, at_end: bool) -> SavedBuild:
    """Make the record from which the next supervisor restores an environment."""
    built, runs = building.built, building.attempt is not None
    return SavedBuild(
        key=building.key,
        reference=building.reference,
        added=building.added,
        given_name=building.given_name,
        name=building.name,
        path=built.path if built else "",
        link=built.link if built else "",
        built_s=built.built_s if built else 0.0,
        building=runs,
        interruptions=building.interruptions + (runs and not at_end),
        error=building.failed.cause if building.failed else "",
        failed_s=building.failed.at_s if building.failed else 0.0,
        used_s=building.used_s,
        packages=building.packages,
        project=building.project,
        preload=building.preload,
    )


def _restored(row: SavedBuild, make: MakeEnvironment) -> Building:
    building = Building(
        row.reference,
        row.given_name,
        row.packages,
        row.project,
        last_name=row.name,
        added=row.added,
        used_s=row.used_s,
        preload=row.preload,
        interruptions=row.interruptions,
        outdated=row.building,
    )
    if row.error:
        message = f"The last build failed: {row.error}."
        at_s = row.failed_s or time.time()
        building.failed = Failed(cause=row.error, message=message, at_s=at_s)
    if row.path:
        try:
            environment = make(building, row.path)
        except NsmError as error:
            log.warning("environment %s has to be built again: %s", row.name, error.message)
            building.failed = None
        else:
            building.built = Built(
                environment=environment, path=row.path, link=row.link, built_s=row.built_s
            )
    return building
