"""The installer: it makes one environment from packages.

It runs none of their code, and none of what reads indexes: uv, npm or py-rattler runs in a jail.
All that blocks here runs in threads: calls go on in the same process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import trio

from nsm.dataclass import replace
from nsmd.environments.packages import locks
from nsmd.environments.packages.build_jail import BuildJail, JailOutcome, no_answer, why_failed
from nsmd.environments.packages.build_network import BuildNetwork, BuildSettings, proxy_variables
from nsmd.environments.packages.conda_packages import CondaPackages
from nsmd.environments.packages.index_reading import read_indexes
from nsmd.environments.packages.index_values import Indexes
from nsmd.environments.packages.locks import LockError
from nsmd.environments.packages.node_packages import NodePackages
from nsmd.environments.packages.python_packages import PythonPackages
from nsmd.environments.packages.request import (
    BuildReport,
    Installed,
    InstallError,
    InstallRequest,
    entered,
    in_thread,
)
from nsmd.environments.packages.store import (
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    hash_of,
)
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import missing_bwrap
from nsmd.jail.interpreters import FoundInterpreter
from nsmd.model.host_rules import AllowList

TELL_INTERVAL_S = 0.5


class PackageLock(Protocol):
    """Exact versions of packages, with the hash of what was wanted, which may be empty, and of the
    versions.
    """

    @property
    def wanted_hash(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def text(self, name: str) -> str:
        """Make the file for an environment of that name."""
        ...


class PackageTool(Protocol):
    """A program that resolves and installs packages.

    Attributes:
        shown: what the jail has to show, and where.
        offline: options with which it uses its cache alone; none if it cannot.
        prefers_cache: it asks the indexes only for what its cache lacks.
    """

    @property
    def name(self) -> str: ...
    @property
    def shown(self) -> Sequence[tuple[str, str]]: ...
    @property
    def variables(self) -> Mapping[str, str]: ...
    @property
    def offline(self) -> Sequence[str]: ...
    @property
    def prefers_cache(self) -> bool: ...
    def takes(self, line: str, /) -> bool:
        """Read a line of what it prints while it resolves; True if people need not see it."""
        ...

    def resolve(self, work: str, constraints: Sequence[str], *, builds: bool) -> list[str]:
        """Make the command that resolves what the packages' `prepare` has written, in the build's
        own directory (`work`, in the jail). `constraints` are files; with `builds`, packages may be
        built.
        """
        ...

    def resolved(self, place: str, wanted_hash: str) -> Any:
        """Read the lock that this command has made, in the build's own directory on the host.

        Raises LockError, OSError or ValueError if there is none, InstallError if it is not to be
        used.
        """
        ...

    def install(self, work: str, *, builds: bool) -> list[str]:
        """Make the command that installs what the packages' `write_lock` has written."""
        ...

    def run_scripts(self) -> list[str]:
        """Make the command that runs the packages' own scripts after an installation with `builds`,
        in a jail whose `BUILD` is the build's own directory; empty if `install` has run all.
        """
        ...


class Packages(Protocol):
    """Wanted packages of one language. Its methods take and return locks of that language, and
    raise InstallError if something cannot be used.

    Attributes:
        python: Python of the jail.
        facts: what else distinguishes environments with the same packages.
        lock_file: name of the lock's file.
        channels: channels of conda to ask, as for `read_indexes`.
    """

    @property
    def python(self) -> FoundInterpreter: ...
    @property
    def facts(self) -> Sequence[str]: ...
    @property
    def wanted_hash(self) -> str: ...
    @property
    def lock_file(self) -> str: ...
    @property
    def channels(self) -> Sequence[str] | None: ...

    def own_lock(self) -> tuple[PackageLock, str, str] | None:
        """Read the user's own lock of these packages, such as a `uv.lock`.

        Returns it, its path, and a note for the user; None if there is none.
        """
        ...

    def read_lock(self, path: str) -> PackageLock | None:
        """Read a lock, or raise LockError; None if there is none."""
        ...

    def tool(self, indexes: Indexes) -> PackageTool:
        """Find what installs them."""
        ...

    def problems(self, indexes: Indexes) -> Sequence[str]:
        """Return sentences about a configuration that cannot be used."""
        ...

    def shown(self, indexes: Indexes) -> Sequence[str]:
        """Return the directories and files of the host that the jail shows."""
        ...

    def prepare(self, staging: Staging, indexes: Indexes) -> None:
        """Make an empty environment, and the files to resolve from."""
        ...

    def write_lock(self, staging: Staging, lock: Any, indexes: Indexes) -> None:
        """Make the files to install from."""
        ...

    def settings(self, indexes: Indexes, listed: AllowList) -> BuildSettings:
        """Make the settings of what installs them. `listed` has further hosts that the user
        lists.
        """
        ...

    async def finish(
        self, staging: Staging, jail: BuildJail, store: EnvironmentStore, lock: Any
    ) -> EnvironmentDetails:
        """Check what was installed, and describe it. Raises OSError, too."""
        ...


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
            from nsmd.environments.images.image_install import (  # noqa: PLC0415  # rarely needed
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

    def _packages(self) -> Packages:
        wanted = self._request.wanted
        of = PythonPackages.of if wanted.preset == "python" else NodePackages.of
        return (CondaPackages.of if wanted.conda else of)(
            self._request, self._launcher.user.why_unreadable
        )

    def _known_lock(self, packages: Packages) -> tuple[PackageLock | None, str]:
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

    def _path(self, packages: Packages, lock: PackageLock) -> str:
        """Path of the environment of a lock."""
        builds = "builds" if self._request.wanted.allow_builds else "wheels"
        return self._store.path(hash_of(lock.digest, *packages.facts, os.uname().machine, builds))

    def _there(self, packages: Packages, lock: PackageLock) -> str | None:
        """Path of the environment of a lock; None if there is none yet."""
        path = self._path(packages, lock)
        return path if self._store.claim(path) else None

    async def _build(self, packages: Packages, lock: PackageLock | None) -> tuple[str, PackageLock]:
        """Build the environment of a lock, or of what is wanted; returns its path, and the lock."""
        builds = self._request.wanted.allow_builds
        if (bwrap := self._launcher.bwrap_path) is None:
            raise missing_bwrap()
        indexes = await in_thread(self._read_indexes, packages)
        tool = await in_thread(packages.tool, indexes)
        settings = await in_thread(packages.settings, indexes, AllowList.of(self._request.hosts))
        network = BuildNetwork(self._request.name, settings, self._request.hosts)
        self._network, self._report.received = network, lambda: network.bytes_received
        with self._launcher.user.for_a_while() as user:
            async with entered(self._store.building(alone=builds)) as staging:
                await in_thread(packages.prepare, staging, indexes)
                jail = BuildJail(
                    bwrap=bwrap,
                    user=user,
                    python=packages.python.program,
                    directory=staging.mount,
                    environment=staging.environment,
                    shown=[*((each, each) for each in packages.shown(indexes)), *tool.shown],
                    variables={
                        **proxy_variables(),
                        **tool.variables,
                        "TMPDIR": os.path.join(staging.work, "tmp"),
                    },
                    say=self._report.say,
                )
                return await self._build_there(
                    staging, jail, packages, tool, indexes, settings, lock
                )

    async def _build_there(
        self,
        staging: Staging,
        plain: BuildJail,
        packages: Packages,
        tool: PackageTool,
        indexes: Indexes,
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
            lock = await self._resolve(jail, tool, indexes.constraints, staging, packages)
        path = self._path(packages, lock)
        if await in_thread(self._store.claim, path):
            return path, lock
        await in_thread(packages.write_lock, staging, lock, indexes)
        self._report.enter("installing")
        command = tool.install(staging.work, builds=builds)
        # The lock names each file by its hash, so the indexes have no more to say.
        cached = replace(jail, say=_ignore)
        renew = partial(_renew, staging, packages, indexes, lock)
        if tool.prefers_cache or not await self._from_cache(cached, tool, command):
            await in_thread(renew)
            await self._run(jail, tool, command, "installed", renew)
        if builds and (command := tool.run_scripts()):
            # Code runs from here on: without settings, nor a cache that may name secrets.
            await self._run(plain.alone(staging.place), tool, command, "built")
        self._report.enter("compiling")
        details = await packages.finish(staging, plain, self._store, lock)
        self._report.enter("publishing")
        await in_thread(staging.complete, details)
        # Not left to its end: its files would be removed meanwhile.
        name = os.path.basename(path)
        return await trio.to_thread.run_sync(self._store.publish, staging, name), lock

    def _read_indexes(self, packages: Packages) -> Indexes:
        program = packages.python.program
        prefix = os.path.dirname(os.path.dirname(program))
        indexes = read_indexes(
            self._request.variables,
            self._request.home,
            prefix=prefix,
            channels=packages.channels,
            permits=AllowList.of(self._request.hosts).permits,
        )
        for note in indexes.notes:
            self._report.say(f"nsm: {note}")
        if problems := packages.problems(indexes):
            # Without it, packages might come from elsewhere than the user has chosen.
            raise InstallError(
                f"It is not known where packages come from: {'; '.join(problems)}",
                "Fix that configuration, then build again.",
            )
        return indexes

    async def _resolve(
        self,
        jail: BuildJail,
        tool: PackageTool,
        constraints: Sequence[str],
        staging: Staging,
        packages: Packages,
    ) -> PackageLock:
        self._report.enter("resolving")
        builds = self._request.wanted.allow_builds
        command = tool.resolve(staging.work, constraints, builds=builds)
        await self._run(replace(jail, takes=tool.takes), tool, command, "resolved")
        try:
            await in_thread(staging.check, "")
            lock: PackageLock = await in_thread(tool.resolved, staging.place, packages.wanted_hash)
        except (OSError, ValueError, LockError) as error:
            raise InstallError(f"{tool.name} left no versions: {error}") from error
        return lock

    async def _run(
        self,
        jail: BuildJail,
        tool: PackageTool,
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
            if await self._from_cache(jail, tool, command):
                return
        message, hint = why_failed(ran, tool.name, problems, done=done)
        raise InstallError(message, hint)

    async def _from_cache(self, jail: BuildJail, tool: PackageTool, command: Sequence[str]) -> bool:
        """Run a command with nothing but the tool's cache; False if that does not suffice."""
        if not tool.offline:
            return False
        return (await jail.run([*command, *tool.offline])).status == 0

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

    def _keep_lock(self, packages: Packages, lock: PackageLock) -> tuple[str, str]:
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


def _renew(staging: Staging, packages: Packages, indexes: Indexes, lock: Any) -> None:
    """Make the environment again, empty: what a failed attempt has installed of a package would
    count as that package, and its files might run.
    """
    staging.check("")
    shutil.rmtree(staging.environment)
    packages.prepare(staging, indexes)
    packages.write_lock(staging, lock, indexes)


def _ignore(line: str) -> None:
    """Take a line of the log that nobody needs."""
