"""The installer: it makes one environment from packages.

It runs none of their code, and none of what reads indexes: uv, npm or py-rattler runs in a jail.
All that blocks here runs in threads: calls go on in the same process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from nsm.dataclass import replace
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import missing_bwrap
from nsmd.model.host_rules import AllowList
from nsmd.packages import locks
from nsmd.packages.build_jail import BuildJail, JailOutcome, no_answer, why_failed
from nsmd.packages.build_network import BuildNetwork, BuildSettings, proxy_variables
from nsmd.packages.conda_packages import CondaPackages
from nsmd.packages.index_reading import read_indexes
from nsmd.packages.language_packages import LanguagePackages, PackageLock
from nsmd.packages.locks import LockError
from nsmd.packages.node_packages import NodePackages
from nsmd.packages.package_builds import (
    BuildReport,
    Installed,
    InstallError,
    InstallRequest,
    entered,
    in_thread,
)
from nsmd.packages.python_packages import PythonPackages
from nsmd.packages.store import (
    EnvironmentStore,
    Staging,
    hash_of,
)

TELL_INTERVAL_S = 0.5


class Installer:
    """Maker of one environment."""

    def __init__(
        self, request: InstallRequest, launcher: BwrapLauncher, report: BuildReport
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._report = report
        self._store = EnvironmentStore(request.store)
        self._network: BuildNetwork | None = None

    async def make(self) -> Installed:
        """Make the environment, unless it is there. Raises InstallError, OSError or NsmError."""
        if self._request.wanted.image:
            from nsmd.packages.images.image_install import (  # noqa: PLC0415  # rarely needed
                ImageInstaller,
            )

            return await ImageInstaller(self._request, self._launcher, self._report).make()
        packages = await in_thread(self._packages)
        own = await in_thread(packages.own_lock)
        lock, where, note = own or (*await in_thread(self._known_lock, packages), "")
        path = None if lock is None else await in_thread(self._there, packages, lock)
        if path is None:
            path, lock = await self._build(packages, lock)
            if own is None:
                where, note = await in_thread(self._keep_lock, packages, lock)
        return Installed(path=path, lock=where, note=note)

    def _packages(self) -> LanguagePackages:
        wanted = self._request.wanted
        of = PythonPackages if wanted.preset == "python" else NodePackages
        return (CondaPackages if wanted.conda else of)(
            self._request, self._launcher.user.why_unreadable
        )

    def _known_lock(self, packages: LanguagePackages) -> tuple[PackageLock | None, str]:
        """Find a lock for what is wanted, and its path; none if newer versions are wanted."""
        if self._request.refresh:
            return None, ""
        for directory in self._request.lock_directories:
            path = os.path.join(directory, packages.lock_file)
            try:
                lock = packages.read_lock(path)
            except LockError as error:
                hint = f"Fix it, or replace it: `nsm env update {self._request.name}`"
                raise InstallError(f"The lock {path} cannot be used: {error}", hint) from error
            if lock is not None and lock.wanted_hash in ("", packages.wanted_hash):
                return lock, path
        return None, ""

    def _path(self, packages: LanguagePackages, lock: PackageLock) -> str:
        """Path of the environment of a lock."""
        builds = "builds" if self._request.wanted.allow_builds else "wheels"
        return self._store.path(hash_of(lock.digest, *packages.facts, os.uname().machine, builds))

    def _there(self, packages: LanguagePackages, lock: PackageLock) -> str | None:
        """Path of the environment of a lock; None if there is none yet."""
        path = self._path(packages, lock)
        return path if self._store.claim(path) else None

    async def _build(
        self, packages: LanguagePackages, lock: PackageLock | None
    ) -> tuple[str, PackageLock]:
        """Build the environment of a lock, or of what is wanted; returns its path, and the lock."""
        builds = self._request.wanted.allow_builds
        if (bwrap := self._launcher.bwrap_path) is None:
            raise missing_bwrap()
        await in_thread(self._read_indexes, packages)
        tool = await in_thread(packages.find_tool)
        settings = await in_thread(packages.settings, AllowList.of(self._request.hosts))
        network = BuildNetwork(self._request.name, settings, self._request.hosts)
        self._network, self._report.received = network, lambda: network.bytes_received
        with self._launcher.user.with_temporary_binds() as user:
            async with entered(self._store.building(alone=builds)) as staging:
                await in_thread(packages.prepare, staging)
                jail = BuildJail(
                    bwrap=bwrap,
                    user=user,
                    python=packages.python.program,
                    directory=staging.mount,
                    environment=staging.environment,
                    shown=[*((each, each) for each in packages.shown()), *tool],
                    variables={
                        **proxy_variables(),
                        **packages.variables,
                        "TMPDIR": os.path.join(staging.work, "tmp"),
                    },
                    say=self._report.say,
                )
                return await self._build_there(staging, jail, packages, settings, lock)

    async def _build_there(
        self,
        staging: Staging,
        plain: BuildJail,
        packages: LanguagePackages,
        settings: BuildSettings,
        lock: PackageLock | None,
    ) -> tuple[str, PackageLock]:
        """Build it in a prepared directory, whose jail has none of the user's settings yet."""
        builds = self._request.wanted.allow_builds
        jail = replace(
            plain,
            shown=[*plain.shown, *((each, each) for each in settings.shown)],
            variables={**plain.variables, **settings.variables},
            files=settings.files,
            hidden=settings.secrets,
        )
        if lock is None:
            lock = await self._resolve(jail, packages, staging)
        path = self._path(packages, lock)
        if await in_thread(self._store.claim, path):
            return path, lock
        await in_thread(packages.write_lock, staging, lock)
        self._report.enter("installing")
        command = packages.install(staging.work, builds=builds)
        # The lock names each file by its hash, so the indexes have no more to say.
        cached = replace(jail, say=_ignore)
        renew = partial(_renew, staging, packages, lock)
        if packages.prefers_cache or not await self._from_cache(cached, command):
            await in_thread(renew)
            await self._run(jail, packages, command, "installed", renew)
        if builds and (command := packages.run_scripts()):
            # Code runs from here on: without settings, nor a cache that may name secrets.
            await self._run(plain.alone(staging.place), packages, command, "built")
        self._report.enter("compiling")
        details = await packages.finish(staging, plain, self._store, lock)
        self._report.enter("publishing")
        await in_thread(staging.complete, details)
        # Not left to its end: its files would be removed meanwhile.
        name = os.path.basename(path)
        return await trio.to_thread.run_sync(self._store.publish, staging, name), lock

    def _read_indexes(self, packages: LanguagePackages) -> None:
        packages.indexes = read_indexes(
            self._request.variables,
            self._request.home,
            prefix=os.path.dirname(os.path.dirname(packages.python.program)),
            channels=packages.channels,
            permits=AllowList.of(self._request.hosts).permits,
        )
        for note in packages.indexes.notes:
            self._report.say(f"nsm: {note}")
        if problems := packages.problems():
            # Without it, packages might come from elsewhere than the user has chosen.
            raise InstallError(
                f"It is not known where packages come from: {'; '.join(problems)}",
                "Fix that configuration, then build again.",
            )

    async def _resolve(
        self, jail: BuildJail, packages: LanguagePackages, staging: Staging
    ) -> PackageLock:
        self._report.enter("resolving")
        command = packages.resolve(staging.work, builds=self._request.wanted.allow_builds)
        await self._run(replace(jail, takes=packages.takes), packages, command, "resolved")
        try:
            await in_thread(staging.check, "")
            lock: PackageLock = await in_thread(packages.resolved, staging.place)
        except (OSError, ValueError, LockError) as error:
            raise InstallError(f"{packages.tool} left no versions: {error}") from error
        return lock

    async def _run(
        self,
        jail: BuildJail,
        packages: LanguagePackages,
        command: Sequence[str],
        done: str,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a command of the tool; with its cache alone if the indexes fail, after `renew`."""
        ran = await self._try(jail, command)
        if ran.status == 0:
            return
        problems = self._network.problems if self._network is not None else []
        if problems or no_answer(ran):
            await in_thread(renew)
            if await self._from_cache(jail, command):
                return
        message, hint = why_failed(ran, packages.tool, problems, done=done)
        raise InstallError(message, hint)

    async def _from_cache(self, jail: BuildJail, command: Sequence[str]) -> bool:
        """Run a command with nothing but the tool's cache; False if that does not suffice."""
        return (await jail.run([*command, "--offline"])).status == 0

    async def _try(self, jail: BuildJail, command: Sequence[str]) -> JailOutcome:
        """Run a command, and tell how much has come."""
        assert self._network is not None, "a build has one"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_telling)
            ran = await jail.run(command, serve=self._network.serve)
            nursery.cancel_scope.cancel()
        return ran

    async def _keep_telling(self) -> None:
        while True:
            await trio.sleep(TELL_INTERVAL_S)
            self._report.tell()

    def _keep_lock(self, packages: LanguagePackages, lock: PackageLock) -> tuple[str, str]:
        """Write the lock where it can be written. Returns its path and a note."""
        note = ""
        for directory in self._request.lock_directories:
            path = os.path.join(directory, packages.lock_file)
            try:
                if packages.read_lock(path) != lock:
                    locks.write(path, lock.text(self._request.name))
            except (OSError, LockError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                note = f"its lock is not in {directory} ({why})"
            else:
                return path, note
        return "", note


def _renew(staging: Staging, packages: LanguagePackages, lock: Any) -> None:
    """Make the environment again, empty: what a failed attempt has installed of a package would
    count as that package, and its files might run.
    """
    staging.check("")
    shutil.rmtree(staging.environment)
    packages.prepare(staging)
    packages.write_lock(staging, lock)


def _ignore(line: str) -> None:
    """Take a line of the log that nobody needs."""
