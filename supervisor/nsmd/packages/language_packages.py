"""Wanted packages of one language, and the program that installs them: what the installer needs to
know of Python's, Node's and conda's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from nsmd.jail.interpreters import FoundInterpreter
from nsmd.model.host_rules import AllowList
from nsmd.packages.build_jail import BuildJail
from nsmd.packages.build_network import BuildSettings
from nsmd.packages.index_values import Indexes
from nsmd.packages.package_builds import InstallRequest
from nsmd.packages.store import EnvironmentDetails, EnvironmentStore, Staging


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


class LanguagePackages(ABC):
    """Wanted packages of one language. Its methods take and return locks of that language, and
    raise InstallError if something cannot be used. All that returns no command may block.

    Commands run in the build's own directory, whose path in the jail is `work`; with `builds`,
    packages may be built; with `--offline`, the cache alone is used.

    Attributes:
        tool: name of the program that installs them.
        indexes: where packages come from; the installer reads them before it builds.
        prefers_cache: it asks the indexes only for what its cache lacks.
        variables: its variables.
        python: Python of the jail.
        facts: what else distinguishes environments with the same packages.
        lock_file: name of the lock's file.
        channels: channels of conda to ask, as for `read_indexes`.
    """

    tool: ClassVar[str]
    prefers_cache: ClassVar[bool] = True
    variables: ClassVar[Mapping[str, str]]
    channels: Sequence[str] | None = None

    def __init__(
        self,
        request: InstallRequest,
        python: FoundInterpreter,
        *,
        facts: Sequence[str],
        lock_file: str,
    ) -> None:
        self.request = request
        self.indexes = Indexes()
        self.python = python
        self.facts = facts
        self.lock_file = f"{request.name}.{lock_file}"

    @property
    @abstractmethod
    def wanted_hash(self) -> str: ...

    @abstractmethod
    def own_lock(self) -> tuple[PackageLock, str, str] | None:
        """Read the user's own lock of these packages, such as a `uv.lock`.

        Returns it, its path, and a note for the user; None if there is none.
        """

    @abstractmethod
    def read_lock(self, path: str) -> PackageLock | None:
        """Read a lock, or raise LockError; None if there is none."""

    @abstractmethod
    def find_tool(self) -> Sequence[tuple[str, str]]:
        """Find what installs them. Returns what the jail has to show of it, and where."""

    @abstractmethod
    def problems(self) -> Sequence[str]:
        """Return sentences about a configuration that cannot be used."""

    def shown(self) -> Sequence[str]:
        """Return the directories and files of the host that the jail shows."""
        return self.python.prefixes

    @abstractmethod
    def prepare(self, staging: Staging) -> None:
        """Make an empty environment, and the files to resolve from."""

    @abstractmethod
    def resolve(self, work: str, *, builds: bool) -> list[str]:
        """Make the command that resolves what `prepare` has written."""

    def takes(self, line: str) -> bool:
        """Read a line of what this command prints; True if people need not see it."""
        del line
        return False

    @abstractmethod
    def resolved(self, place: str) -> Any:
        """Read the lock that this command has made, in the build's own directory on the host; or
        raise LockError, OSError or ValueError.
        """

    @abstractmethod
    def write_lock(self, staging: Staging, lock: Any) -> None:
        """Make the files to install from."""

    @abstractmethod
    def install(self, work: str, *, builds: bool) -> list[str]:
        """Make the command that installs what `write_lock` has written."""

    def run_scripts(self) -> list[str]:
        """Make the command that runs the packages' own scripts after an installation with `builds`,
        in a jail whose `BUILD` is the build's own directory; empty if `install` has run all.
        """
        return []

    @abstractmethod
    def settings(self, listed: AllowList) -> BuildSettings:
        """Make the settings of what installs them. `listed` has further hosts that the user
        lists.
        """

    @abstractmethod
    async def finish(
        self, staging: Staging, jail: BuildJail, store: EnvironmentStore, lock: Any
    ) -> EnvironmentDetails:
        """Check what was installed, and describe it. Raises OSError, too."""
