"""Environments made from packages, for tests: an installation, and sources of packages."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nsm.dataclass import replace
from nsm.wire.errors import PackagesFailedError
from nsmd.host.command_monitor import CommandProgress
from nsmd.jail import BwrapLauncher, enter_private_mounts
from nsmd.model.packages import WantedPackages
from nsmd.model.settings import DEFAULT_JAIL_UID, UpstreamSettings
from nsmd.network.upstream import find_upstream
from nsmd.packages.package_builds import Installed, PackageEnvironments
from nsmd.packages.store import EnvironmentDetails, EnvironmentStore
from realjail import BWRAP

SEARCH_PATH = os.environ.get("PATH", os.defpath)


_MOUNTS = enter_private_mounts() if os.geteuid() == 0 else None
"""Entered before there are threads, which would stay outside and see no file system that a test
mounts later.
"""


@cache
def _launcher() -> BwrapLauncher:
    """Make the launcher for this process; jails of root then reach tests' directories, too."""
    return BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, mounts=_MOUNTS)


def installation(
    folder: Path,
    *,
    variables: Mapping[str, str] | None = None,
    search_path: str = SEARCH_PATH,
    timeout_s: float = 120.0,
) -> PackageEnvironments:
    """Make environments below a directory.

    Args:
        variables: variables of the user, who has no others and no files.
    """
    home = folder / "home"
    return PackageEnvironments(
        store=str(folder / "envs"),
        lock_directories=(str(folder / "locks"), str(folder / "spare-locks")),
        search_path=search_path,
        home=str(home),
        launcher=_launcher(),
        variables={"HOME": str(home), "PATH": search_path, **(variables or {})},
        timeout_s=timeout_s,
        upstream=find_upstream(UpstreamSettings(), variables or {}, str(home)),
    )


class Workshop:
    """Environments of a user, below a directory.

    Attributes:
        variables: variables of the user, who has no others and no files.
        hosts: hosts that builds may reach beside the indexes.
        log: path of the log of the last build.
        phases: phases of all builds.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = variables
        self.hosts: tuple[str, ...] = ()
        self.search_path = SEARCH_PATH
        self.store = EnvironmentStore(str(folder / "envs"))
        self.log = folder / "log"
        self.phases: list[str] = []

    async def build(
        self,
        wanted: WantedPackages,
        name: str = "science",
        *,
        refresh: bool = False,
        timeout_s: float = 120.0,
    ) -> Installed:
        """Make an environment."""
        run = installation(
            self.folder, variables=self.variables, search_path=self.search_path, timeout_s=timeout_s
        )

        def on_progress(progress: CommandProgress, _log_bytes: int) -> None:
            self.phases.append(progress.phase)

        with self.log.open("wb") as log:
            return await replace(run, hosts=self.hosts).make(
                name, wanted, refresh=refresh, on_progress=on_progress, log_fd=log.fileno()
            )

    async def make(self, *packages: Any, **options: Any) -> object:
        """Make an environment of packages of the subclass's kind."""
        raise NotImplementedError

    async def why_not(self, *packages: Any, **options: Any) -> str:
        """Error and hint of an environment that cannot be made, of which nothing is left."""
        with pytest.raises(PackagesFailedError) as caught:
            await self.make(*packages, **options)
        assert self.store.names() == []
        assert self.leftovers() == []
        return f"{caught.value} {caught.value.hint}"

    def details(self, path: str | Path) -> EnvironmentDetails:
        """Facts about a made environment."""
        details = self.store.details(str(path))
        assert details is not None
        return details

    def leftovers(self) -> list[str]:
        """Files that builds have left behind."""
        builds = self.folder / "envs/.builds"
        return [str(path) for kind in ("*/build*", "alone-*") for path in builds.glob(kind)]


def published(store: EnvironmentStore, name: str, modules: tuple[str, ...] = ()) -> str:
    """Publish an environment without packages, as a build does. Returns its path."""
    details = EnvironmentDetails(
        interpreter="python",
        program="/usr/bin/python3",
        agent_python="/usr/bin/python3",
        prefixes=(),
        version="3.11",
        lock="",
        versions={},
        modules=modules,
    )
    with store.building(alone=False) as staging:
        os.mkdir(staging.environment)
        staging.complete(details)
        return store.publish(staging, name)


_BACKEND = """
import os, zipfile

{probe}

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = "{name}-{version}.dist-info"
    files = {{
        "{name}.py": "found = " + repr(probe()),
        info + "/METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        info + "/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    files[info + "/RECORD"] = "".join(path + ",,\\n" for path in files)
    with zipfile.ZipFile(os.path.join(directory, "{name}-{version}-py3-none-any.whl"), "w") as file:
        for path, text in files.items():
            file.writestr(path, text)
    return "{name}-{version}-py3-none-any.whl"
"""

_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "{name}"
version = "{version}"
"""


def sdist(name: str, version: str, probe: str) -> tuple[str, bytes]:
    """Make a package that has only its source: the file's name, and the file.

    Args:
        probe: function `probe()` that runs when it is built; the module's `found` is its result.
    """
    below = f"{name}-{version}"
    files = {
        "pyproject.toml": _PROJECT.format(name=name, version=version),
        "backend.py": _BACKEND.format(name=name, version=version, probe=probe),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{below}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{below}.tar.gz", packed.getvalue()
