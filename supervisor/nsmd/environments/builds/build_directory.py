"""Directory of built environments: garbage-collector roots, logs, and the record file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import trio

from nsm.wire.errors import NsmError
from nsmd.environments.builds.build_state import Building, Built, Failed, StoredBuild
from nsmd.environments.builds.saved_builds import SavedBuild, load, log, save
from nsmd.model.flakes import why_no_reference
from nsmd.model.values import Artifact, Environment

_LOG = re.compile(r"[0-9a-f]+\.log")

Look = Callable[[Building, str], Environment]
"""Function that reads a building's environment at a store path.

It raises an NsmError if the path has none.
"""


_LINK = re.compile(r"([0-9a-f]+)-(\d+)(?:-[A-Za-z0-9_+.-]+)?")
"""Name of a link: key, number, and the output's name if nix has made a link for another output."""


class BuildDirectory:
    """Files of built environments: garbage-collector roots, logs, and the record.

    Args:
        directory: absolute path; it is created with access for this user only.

    Attributes:
        in_use: function that returns the environments of live sessions.
    """

    def __init__(self, directory: str) -> None:
        self.roots = Roots(os.path.join(directory, "roots"))
        self._directory = directory
        self._logs = os.path.join(directory, "logs")
        self._file = os.path.join(directory, "environments.json")
        self.in_use: Callable[[], Iterable[Environment]] = tuple
        self._older: dict[str, Artifact] = {}
        self._sweeping = trio.Lock()

    # Roots.

    def keep_older(self, built: Built | None) -> None:
        """Keep the root of a build that was replaced, since sessions may still run in it."""
        if built is not None and built.environment.artifact is not None:
            self._older[built.stored.link] = built.environment.artifact

    async def sweep(self, buildings: Callable[[], Collection[Building]]) -> None:
        """Remove roots that nothing uses, and logs of environments that no longer exist.

        Args:
            buildings: function that returns all environments to keep.
        """
        async with self._sweeping:
            # List the files first. A build chooses its link before Nix makes it, and an environment
            # is known before it has a log. So everything that is listed here and in use is known.
            there, logs = await trio.to_thread.run_sync(self._there)
            in_use = {each.artifact.run for each in self.in_use() if each.artifact is not None}
            self._older = {link: a for link, a in self._older.items() if a.run in in_use}
            links = {
                *(b.built.stored.link for b in buildings() if b.built is not None),
                *(b.attempt.link for b in buildings() if b.attempt is not None),
                *self._older,
            }
            unread = set(logs) - {self._log_name(b.key) for b in buildings()}
            await trio.to_thread.run_sync(self._remove, set(there) - links, unread)

    def _there(self) -> tuple[list[str], list[str]]:
        """List the names of all links and of all logs."""
        try:
            logs = os.listdir(self._logs)
        except OSError:
            logs = []
        return self.roots.names(), [name for name in logs if _LOG.fullmatch(name)]

    def _remove(self, links: Collection[str], logs: Collection[str]) -> None:
        self.roots.remove(links)
        for name in logs:
            with suppress(OSError):
                os.unlink(os.path.join(self._logs, name))

    # Logs.

    def log_path(self, key: str) -> str:
        """Path of the log of an environment's last build; the file may not exist."""
        return os.path.join(self._logs, self._log_name(key))

    def new_log(self, key: str) -> int:
        """Create an empty log file and open it. Blocks.

        Raises:
            OSError: the file cannot be created.
        """
        path = self.log_path(key)
        os.makedirs(self._logs, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def tree(self, key: str) -> str:
        """Path of the copy of a local flake while an environment is built from it."""
        return os.path.join(self._directory, "trees", key)

    @staticmethod
    def _log_name(key: str) -> str:
        return f"{key}.log"

    # The record file.

    def load(self, look: Look) -> list[Building]:
        """Load the recorded environments whose references are still allowed. Blocks."""
        return [
            _restored(row, look)
            for row in load(self._file)
            if row.packages is not None or why_no_reference(row.reference) is None
        ]

    def save(self, rows: Sequence[SavedBuild]) -> None:
        """Replace the record file. Blocks.

        Raises:
            OSError: the file cannot be written.
        """
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        save(self._file, rows)


class BuildRecord:
    """Keeper of the record file.

    Args:
        directory: has the file.
        buildings: function that returns all environments.
    """

    def __init__(
        self, directory: BuildDirectory, buildings: Callable[[], Iterable[Building]]
    ) -> None:
        self._directory = directory
        self._buildings = buildings
        self._unsaved = trio.Event()
        self._saving = trio.Lock()
        self._saved = True

    def mark(self) -> None:
        """Note that something has changed."""
        self._unsaved.set()

    async def keep_saving(self) -> None:
        """Write the file whenever something has changed."""
        while True:
            await self._unsaved.wait()
            await self.save()

    async def save(self) -> None:
        """Write the file, if something has changed."""
        async with self._saving:
            if not self._unsaved.is_set() and self._saved:
                return
            self._unsaved = trio.Event()
            rows = [_saved(building) for building in self._buildings()]
            try:
                await trio.to_thread.run_sync(self._directory.save, rows)
                self._saved = True
            except OSError as error:
                self._saved = False  # tried again with the next change, or at the end
                log.warning("built environments will not be remembered: %s", error)


def _saved(building: Building) -> SavedBuild:
    """Make the record from which the next supervisor restores an environment."""
    built = building.built
    return SavedBuild(
        key=building.key,
        reference=building.reference,
        added=building.added,
        given_name=building.given_name,
        name=building.name,
        path=built.stored.path if built else "",
        link=built.stored.link if built else "",
        built_s=built.built_s if built else 0.0,
        building=building.attempt is not None,
        interruptions=building.interruptions,
        error=building.failed.cause if building.failed else "",
        failed_s=building.failed.at_s if building.failed else 0.0,
        used_s=building.used_s,
        packages=building.packages,
        project=building.project,
        preload=building.preload,
    )


def _restored(row: SavedBuild, look: Look) -> Building:
    building = Building(row.reference, row.given_name, row.packages, row.project)
    building.last_name = row.name
    building.added = row.added
    building.used_s = row.used_s
    building.preload = row.preload
    building.interruptions = row.interruptions + 1 if row.building else 0
    if row.error:
        message = f"The last build failed: {row.error}."
        at_s = row.failed_s or time.time()
        building.failed = Failed(cause=row.error, message=message, at_s=at_s)
    if row.path:
        try:
            environment = look(building, row.path)
        except NsmError as error:
            log.warning("environment %s has to be built again: %s", row.name, error.message)
            building.failed = None
        else:
            stored = StoredBuild(path=row.path, link=row.link)
            building.built = Built(environment=environment, stored=stored, built_s=row.built_s)
    return building


class Roots:
    """Garbage-collector roots: links in one directory, which keep builds in Nix's store.

    `nix build --out-link` registers a link under its name, so links are never renamed: every build
    has a link of its own. The methods block for a moment.

    Args:
        directory: absolute path; it is created if it does not exist.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path(self, link: str) -> str:
        """Return the path of a link."""
        return os.path.join(self._directory, link)

    def fresh(self, key: str) -> str:
        """Return a name for a new link of an environment."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        numbers = [
            int(m[2]) for name in self._listed() if (m := _LINK.fullmatch(name)) and m[1] == key
        ]
        return f"{key}-{max(numbers, default=0) + 1}"

    def names(self) -> list[str]:
        """List the names of all links."""
        return [name for name in self._listed() if _LINK.fullmatch(name)]

    def remove(self, links: Collection[str]) -> None:
        """Remove links. Files of other kinds with these names stay."""
        for name in links:
            path = self.path(name)
            with suppress(OSError):
                if os.path.islink(path):
                    os.unlink(path)
                    log.info("%s is no longer a garbage-collector root", path)

    def _listed(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except OSError:
            return []
