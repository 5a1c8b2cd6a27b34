"""Environments of Node packages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.environments.host_presets import Unreadable, find_node
from nsmd.environments.interpreters import FoundInterpreter
from nsmd.environments.packages import locks, node_locks
from nsmd.environments.packages.build_jail import BuildJail
from nsmd.environments.packages.build_network import BuildSettings, npm_settings
from nsmd.environments.packages.failures import InstallError
from nsmd.environments.packages.indexes import Indexes
from nsmd.environments.packages.indexes.reading import NPM
from nsmd.environments.packages.installer_protocol import InstallRequest
from nsmd.environments.packages.locks import LockError, hash_of_wanted
from nsmd.environments.packages.node_locks import NodeLock
from nsmd.environments.packages.sharing import share_packages
from nsmd.environments.packages.store import (
    NODE_MODULES,
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    write_new,
)
from nsmd.environments.packages.tools import RESOLVED, Npm, find_npm
from nsmd.host.package_manager import install_command
from nsmd.model.host_rules import AllowList
from nsmd.model.packages import npm_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePackages:
    """Node packages that are wanted; see `installer.Packages`.

    Attributes:
        request: what to make.
        node: Node of the environment.
        python: Python for the agent and the jail.
    """

    request: InstallRequest
    node: FoundInterpreter
    python: FoundInterpreter

    @staticmethod
    def of(request: InstallRequest, unreadable: Unreadable) -> NodePackages:
        """Find the Node.

        Raises:
            InstallError: there is none.
        """
        found = find_node(
            request.wanted.interpreter or None,
            request.search_path,
            home=request.home,
            unreadable=unreadable,
        )
        if isinstance(found, str):
            raise InstallError(f"There is no Node for it: {found}")
        node, python = found
        return NodePackages(request=request, node=node, python=python)

    @property
    def facts(self) -> Sequence[str]:
        return self.node.program, self.node.version_text

    @property
    def wanted_hash(self) -> str:
        wanted = self.request.wanted
        return hash_of_wanted({"npm": sorted(wanted.npm), "allow_builds": wanted.allow_builds})

    @property
    def lock_file(self) -> str:
        return f"{self.request.name}.{node_locks.FILE}"

    @property
    def channels(self) -> None:
        return None

    def own_lock(self) -> tuple[NodeLock, str, str] | None:
        path = self.request.wanted.package_lock
        if not path:
            return None
        try:
            lock = node_locks.read_project(path)
        except LockError as error:
            raise InstallError(f"{path} cannot be used: {error}") from error
        if lock is None:
            raise InstallError(
                f"{path} is not there", "`npm install --package-lock-only` in the project makes it."
            )
        if not lock.packages:
            raise InstallError(
                f"{path} names no package",
                "Add packages to the package.json beside it, then run "
                "`npm install --package-lock-only`.",
            )
        return lock, path, ""

    def read_lock(self, path: str) -> NodeLock | None:
        return locks.read(path, node_locks.parse, follow=True)

    def tool(self, indexes: Indexes) -> Npm:
        del indexes
        found = find_npm(self.node, self.request.search_path)
        if found is None:
            raise InstallError(
                "There is no npm to install packages with",
                f"Install it: {install_command('npm')}",
            )
        return found

    def problems(self, indexes: Indexes) -> Sequence[str]:
        return indexes.npm_problems

    def shown(self, indexes: Indexes) -> Sequence[str]:
        del indexes
        return tuple(dict.fromkeys((*self.node.prefixes, *self.python.prefixes)))

    def prepare(self, staging: Staging, indexes: Indexes) -> None:
        del indexes
        wanted = dict(map(npm_versions, self.request.wanted.npm))
        for folder in (staging.environment, os.path.join(staging.place, RESOLVED)):
            os.makedirs(folder)
        manifest = {"name": "environment", "private": True, "dependencies": wanted}
        staging.write(f"{RESOLVED}/{node_locks.MANIFEST}", [json.dumps(manifest)])

    def settings(self, indexes: Indexes, listed: AllowList) -> BuildSettings:
        del listed
        return npm_settings(indexes)

    def write_lock(self, staging: Staging, lock: NodeLock, indexes: Indexes) -> None:
        registries = {each.scope: each.url for each in indexes.npm}
        for name, text in lock.files(registries).items():
            write_new(os.path.join(staging.environment, name), text)

    async def finish(
        self, staging: Staging, jail: BuildJail, store: EnvironmentStore, lock: NodeLock
    ) -> EnvironmentDetails:
        del jail
        staging.check(NODE_MODULES)
        made = staging.environment
        # Sessions see these files, and the URL of a registry is nobody's business there.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(made, NODE_MODULES, f".{node_locks.FILE}"))
        for name, text in lock.files({"": NPM}).items():
            os.unlink(os.path.join(made, name))
            write_new(os.path.join(made, name), text)
        versions = await trio.to_thread.run_sync(_installed, made, lock)
        await trio.to_thread.run_sync(share_packages, store, made, versions)
        return EnvironmentDetails(
            interpreter="node",
            program=self.node.program,
            agent_python=self.python.program,
            prefixes=tuple(dict.fromkeys((*self.node.prefixes, *self.python.prefixes))),
            version=self.node.version_text,
            lock=lock.digest,
            versions=versions,
            modules=tuple(name for name in lock.names if name in versions),
        )


def _installed(made: str, lock: NodeLock) -> dict[str, str]:
    """Versions of packages, by path below `node_modules`; the others are for other platforms."""
    return {
        place.removeprefix(f"{NODE_MODULES}/"): row["version"]
        for place, row in lock.packages.items()
        if os.path.isdir(os.path.join(made, place))
    }
