"""Builds of packages for the supervisor: what is asked for, what a build says meanwhile, and the
environments that were made.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, cast

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import NsmError, PackagesFailedError
from nsmd.host.command_monitor import CommandProgress, Log, lines_of
from nsmd.host.commands import OnProgress
from nsmd.jail import BwrapLauncher
from nsmd.jail.host import BASE_PATH
from nsmd.jail.interpreters import reserved_mb
from nsmd.model.packages import WantedPackages, module_of, names_of, normal_name, shown
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Environment, ReadOnlyBind
from nsmd.network.decisions import RefusedError
from nsmd.network.upstream import NO_UPSTREAM, Upstream
from nsmd.packages.build_jail import ENV
from nsmd.packages.store import (
    NODE_MODULES,
    EnvironmentDetails,
    EnvironmentStore,
)

if TYPE_CHECKING:
    from nsmd.packages.installer import Installer


REMOVE_S = 5.0
"""Longest wait for the removal of a build's files; the next build removes what is left."""

T = TypeVar("T")


class InstallError(Exception):
    """An environment cannot be made. Its message is a sentence without its final dot; its hint says
    what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """An environment to make.

    Attributes:
        refresh: look for newer versions than its lock has.
        store: directory of environments.
        lock_directories: directories for its lock, the best first.
        search_path: value of PATH.
        variables: variables of the user, which may configure pip.
        hosts: further hosts that a build may reach.
    """

    name: str
    wanted: WantedPackages
    refresh: bool
    store: str
    lock_directories: tuple[str, ...]
    search_path: str
    home: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that was made, or was there: its directory, the path of its lock (empty if
    there is none), and a sentence about what did not go as it should.
    """

    path: str
    lock: str
    note: str = ""


class BuildReport:
    """The log of a build, and its progress for those who wait.

    Args:
        log_fd: an open file for the log; the caller closes it.

    Attributes:
        received: returns the number of bytes that have come so far.
    """

    def __init__(self, log_fd: int, on_progress: OnProgress) -> None:
        self._log = Log(log_fd)
        self._on_progress = on_progress
        self._progress = CommandProgress(phase="resolving")
        self.received: Callable[[], int] = int

    def say(self, text: str) -> None:
        """Take lines for the log."""
        if lines := lines_of(text):
            self._log.add(lines)
            self._progress = replace(self._progress, activity=lines[-1].strip()[:200])

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self._progress = replace(self._progress, phase=phase, activity="")
        self.tell()

    def tell(self) -> None:
        """Write the lines so far, and tell the progress."""
        self._log.flush()
        self._on_progress(
            replace(self._progress, downloaded_bytes=self.received()), self._log.written
        )

    def close(self) -> None:
        """Write the rest of the log."""
        self._log.close()


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function that blocks; a build that is cancelled leaves it to its end."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


@asynccontextmanager
async def entered(blocking: AbstractContextManager[T]) -> AsyncGenerator[T]:
    """Enter and leave a context whose functions block."""
    value = await trio.to_thread.run_sync(blocking.__enter__)
    try:
        yield value
    finally:
        with trio.move_on_after(REMOVE_S, shield=True):
            await in_thread(blocking.__exit__, None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageEnvironments:
    """Facts for every run of the installer; most are of `InstallRequest`.

    `timeout_s` is the time limit of one build, seconds.
    """

    store: str
    lock_directories: tuple[str, ...]
    search_path: str
    home: str
    launcher: BwrapLauncher
    variables: Mapping[str, str] = field(repr=False)
    hosts: tuple[str, ...] = ()
    timeout_s: float
    upstream: Upstream = NO_UPSTREAM

    async def make(
        self,
        name: str,
        wanted: WantedPackages,
        *,
        owner: str = "",
        refresh: bool,
        on_progress: OnProgress,
        log_fd: int,
    ) -> Installed:
        """Make an environment, unless it is there, or raise PackagesFailedError. Cancellation ends
        the build.

        Args:
            owner: name of the directory for its lock, below the last one; empty for the usual ones.
            refresh: look for newer versions than its lock has.
            on_progress, log_fd: as for `run_monitored`.
        """
        try:
            await self.upstream.read_logins()
        except RefusedError as refused:
            raise PackagesFailedError(refused.detail) from None
        request = InstallRequest(
            name=name,
            wanted=wanted,
            refresh=refresh,
            store=self.store,
            lock_directories=(
                (os.path.join(self.lock_directories[-1], owner),)
                if owner
                else self.lock_directories
            ),
            search_path=self.search_path,
            home=self.home,
            variables=self.upstream.variables(self.variables),
            hosts=self.hosts,
        )
        report = BuildReport(log_fd, on_progress)
        try:
            with trio.move_on_after(self.timeout_s):
                # Its modules are needed by few supervisors.
                installer = (await in_thread(_installer_class))(request, self.launcher, report)
                return await installer.make()
        except Exception as caught:
            raise _failure(_first_error(caught)) from caught
        finally:
            report.close()
        raise PackagesFailedError(
            f"The build was stopped after {self.timeout_s:g} s.",
            hint="`[packages] build_timeout_seconds` is its limit. What was fetched is kept.",
        )

    def environment(
        self,
        path: str,
        name: str,
        wanted: WantedPackages,
        defaults: Defaults,
        entry: EnvironmentSettings,
    ) -> Environment:
        """Describe an environment of the store, by its directory. Blocks.

        Raises PackagesFailedError if there is no complete one.
        """
        details = EnvironmentStore(self.store).details(path)
        if details is None:
            raise PackagesFailedError(
                f"There is no complete environment at {path}.",
                hint=f"`nsm env update {name}` builds it again.",
            )
        environment = Environment(
            name=name,
            interpreter=details.interpreter,
            agent_python=details.agent_python,
            program=details.program,
            reserved_mb=reserved_mb(details.interpreter, _numbers(details.version)),
            timeout_s=entry.timeout_seconds or defaults.timeout_seconds,
            memory_mb=entry.memory_mb or defaults.memory_mb,
            cpu_weight=entry.cpu_weight or defaults.cpu_weight,
            source=shown(wanted),
            network=entry.network_rule,
            secrets=entry.secrets,
            variables=tuple(entry.env.items()),
            devices=entry.devices or wanted.devices,
            preload=wanted.preload,
        )
        complete = _of_packages if details.image is None else _of_image
        environment = complete(environment, path, wanted, details)
        return replace(environment, description=entry.description or environment.description)


def _of_packages(
    environment: Environment, path: str, wanted: WantedPackages, details: EnvironmentDetails
) -> Environment:
    count = len(details.versions)
    packages = f"{count or 'no'} package{'' if count == 1 else 's'}"
    node = details.interpreter == "node"
    binds = [*((each, each) for each in details.prefixes), (path, ENV)]
    folders = [f"{ENV}/bin"]
    if node:
        # Every module finds what lies there, since it looks in all directories above its own.
        binds.append((os.path.join(path, NODE_MODULES), f"/{NODE_MODULES}"))
        folders = [f"{ENV}/{NODE_MODULES}/.bin", os.path.dirname(details.program)]
    return replace(
        environment,
        description=f"{'Node.js' if node else 'Python'} {details.version}, {packages}",
        binds=tuple(ReadOnlyBind(source=source, target=target) for source, target in binds),
        path=":".join(dict.fromkeys((*folders, *BASE_PATH))),
        packages=details.modules,
        main_packages=details.modules if node else _main_packages(wanted, details),
    )


def _installer_class() -> type[Installer]:
    from nsmd.packages.installer import Installer  # noqa: PLC0415

    return Installer


def _failure(error: Exception) -> Exception:
    """Make the error for people; others than these are faults of ours."""
    if isinstance(error, InstallError):
        return PackagesFailedError(f"{error.message}.", hint=error.hint)
    if isinstance(error, NsmError):
        return PackagesFailedError(error.message, hint=error.hint)
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return PackagesFailedError(f"It cannot be made: {error.strerror or error}{where}.")
    return error


def _first_error(error: Exception) -> Exception:
    """First error in nested groups, since nurseries wrap what is raised in them."""
    if not isinstance(error, ExceptionGroup):
        return error
    return _first_error(cast("ExceptionGroup[Exception]", error).exceptions[0])


def _main_packages(wanted: WantedPackages, details: EnvironmentDetails) -> tuple[str, ...]:
    """Modules of the Python packages that are wanted by name, or these names."""
    named = {name: module_of(name) for name in names_of(wanted)}
    there = set(map(normal_name, details.versions))
    return tuple(
        module if module in details.modules else name
        for name, module in named.items()
        if normal_name(name) in there
    )


def _of_image(
    environment: Environment, path: str, wanted: WantedPackages, details: EnvironmentDetails
) -> Environment:
    from nsmd.packages.images import image_root  # noqa: PLC0415  # rarely needed

    facts = details.image
    assert facts is not None
    try:
        seen = image_root.shown_image(
            path, details.agent_python, details.prefixes, writable=bool(wanted.root)
        )
    except (InstallError, OSError) as error:
        raise PackagesFailedError(
            f"The image at {path} cannot be used: {error}.",
            hint=f"`nsm env update {environment.name}` makes it again.",
        ) from error
    titles = {"python": "Python", "bash": "Bash", "node": "Node.js"}
    language = f"{titles[details.interpreter]} {details.version}"
    if not details.program:
        language = "programs only, by `nsm exec`"
    variables = {**image_root.variables_of(facts), **dict(environment.variables)}
    return replace(
        environment,
        description=f"{language}, image {facts.digest[7:19]}",
        binds=seen.binds,
        links=seen.links,
        image=seen.image,
        path=facts.path,
        variables=tuple(variables.items()),
        setup=image_root.setup_of(details, facts),
        directory=facts.working_directory,
        preload=wanted.preload if details.interpreter == "python" else (),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdecimal())
