"""Packages that nsm needs with another version of Python, fetched with pip or uv."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from typing import TYPE_CHECKING

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nsm import paths
from nsm.wire.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

Version = tuple[int, int]

_GLIBC = (17, 28)
"""Minor versions of glibc 2 whose wheels are fetched: those of manylinux2014, and of Debian 10."""

LEAST_GLIBC: Version = (2, max(_GLIBC))
"""Version of glibc that fetched packages run with."""


def requirements(found: Distribution, python: Version) -> Iterator[Requirement]:
    """List what a distribution needs with that version of Python, without extras."""
    version = f"{python[0]}.{python[1]}"
    environment: dict[str, str] = {name: str(fact) for name, fact in default_environment().items()}
    environment["extra"] = ""
    if python != sys.version_info[:2]:
        environment |= {"python_version": version, "python_full_version": f"{version}.0"}
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def fetch(name: str, python: Version, directory: str) -> None:
    """Fetch what a distribution of this installation needs, in the versions of this installation.

    What only the other Python needs is not here: it comes in the newest version that is permitted.

    Args:
        name: of the distribution, which is not fetched itself.

    Raises:
        HostError: something cannot be fetched.
    """
    known = {canonicalize_name(name)}
    asked = list(requirements(distribution(name), python))
    while asked:
        wanted: dict[str, str] = {}
        while asked:
            requirement = asked.pop()
            key = canonicalize_name(requirement.name)
            if key in known:
                continue
            known.add(key)
            try:
                here = distribution(requirement.name)
            except PackageNotFoundError:
                wanted[key] = f"{requirement.name}{requirement.specifier}"
            else:
                wanted[key] = f"{requirement.name}=={here.version}"
                asked += requirements(here, python)
        if not wanted:
            return
        _install(list(wanted.values()), python, directory)
        for each in distributions(path=[directory]):
            if canonicalize_name(each.name) in wanted:
                asked += requirements(each, python)


def _install(packages: list[str], python: Version, directory: str) -> None:
    version = f"{python[0]}.{python[1]}"
    common = ["--quiet", "--target", directory, "--no-deps", "--only-binary", ":all:"]
    common += ["--python-version", version, *packages]
    if find_spec("pip") is not None:
        platforms = [f"manylinux_2_{minor}_{platform.machine()}" for minor in _GLIBC]
        more = [word for each in platforms for word in ("--platform", each)]
        command = [sys.executable, "-P", "-m", "pip", "install"]
        command += ["--implementation", "cp", "--no-compile"]
    elif (
        uv := shutil.which("uv", path=paths.search_path())
    ) is not None:  # `uv tool install` makes a Python without pip
        more = ["--python-platform", f"{platform.machine()}-manylinux_2_{max(_GLIBC)}"]
        command = [uv, "pip", "install", "--python", sys.executable, "--link-mode", "copy"]
    else:
        raise HostError(
            f"the packages for Python {version} cannot be fetched: {sys.executable} has no pip, "
            "and uv is not on PATH",
            hint="Install uv here, or on the other machine the version of Python that nsm has "
            "here, or nsm itself.",
        )
    # uv takes its configuration from the directories above the working directory, too.
    done = subprocess.run([*command, *more, *common], cwd="/", capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(
            f"the packages for Python {version} could not be fetched: {' '.join(said[-1:])}",
            hint="Install the version of Python there that nsm has here, or nsm itself.",
        )
