"""Environments of conda packages, with a Python among them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from nsm.dataclass import replace
from nsmd.jail.interpreters import (
    MINIMUM_PYTHON,
    Unreadable,
    find_python,
    modules_of,
)
from nsmd.model.host_rules import AllowList
from nsmd.packages import conda_lists, conda_program, locks
from nsmd.packages.build_jail import (
    ENV,
    PLACE,
    PYTHON,
    BuildJail,
    why_failed,
)
from nsmd.packages.build_network import BuildSettings, conda_settings
from nsmd.packages.conda_lists import FILE_NAME, PLATFORM, CondaLock, CondaWanted
from nsmd.packages.language_packages import LanguagePackages
from nsmd.packages.locks import LockError, hash_of_wanted
from nsmd.packages.request import InstallError, InstallRequest, in_thread
from nsmd.packages.sharing import uncompiled
from nsmd.packages.store import (
    BUILD,
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    listed,
    make_directory,
    read_left,
)

META = "conda-meta"
"""Directory with a file for each installed package."""

_CACHE = f"{BUILD}/cache/conda"
_FETCHED = "/run/nsm/packages"
"""Directory of fetched packages while they are linked; nobody can change them there."""

_PROGRAM = f"{PLACE}/conda_program.py"
_WANTED, _RESOLVED, _FILES = "wanted.json", "resolved.json", "files.json"
MAX_RESOLVED_BYTES = 16 * 1024 * 1024

_INSTALLED = re.compile(FILE_NAME.replace(r"\.(?:conda|tar\.bz2)", r"\.json"))


class CondaPackages(LanguagePackages):
    """Conda packages that are wanted, which py-rattler, the library of pixi, installs by a Python
    of the host; the first channel of the indexes is preferred.
    """

    tool = "py-rattler"
    variables: ClassVar[Mapping[str, str]] = {"XDG_CACHE_HOME": f"{BUILD}/cache"}

    def __init__(self, request: InstallRequest, unreadable: Unreadable) -> None:
        wanted = request.wanted
        if wanted.interpreter:
            raise InstallError(
                "An environment of conda has a Python of its own",
                "Leave out `--python`, and name its version in the list: `python=3.12`.",
            )
        found = find_python(None, request.search_path, home=request.home, unreadable=unreadable)
        if isinstance(found, str):
            raise InstallError(f"There is no Python to build it with: {found}")
        super().__init__(request, found, facts=(self.tool,), lock_file="conda.txt")
        try:
            self.given = conda_lists.read(wanted.conda)
        except LockError as error:
            raise InstallError(f"{wanted.conda} cannot be used: {error}") from error
        if isinstance(self.given, CondaLock):
            self.channels = tuple(dict.fromkeys(pin.channel for pin in self.given.pins))
        else:
            self.channels = self.given.channels  # empty for the user's own
        self._command = (found.program, "-I", _PROGRAM)
        self._channels: Sequence[str] = ()

    @property
    def wanted_hash(self) -> str:
        given = self.given
        if isinstance(given, CondaLock):
            return given.digest
        return hash_of_wanted(
            {"channels": given.channels, "conda": sorted(given.specs), "platform": PLATFORM}
        )

    def own_lock(self) -> tuple[CondaLock, str, str] | None:
        if isinstance(self.given, CondaWanted):
            return None
        names = ", ".join(self.given.left_out)[:200]
        note = f"directories are not installed as packages: {names}" if names else ""
        return self.given, self.request.wanted.conda, note

    def read_lock(self, path: str) -> CondaLock | None:
        return locks.read(path, conda_lists.parse, follow=True)

    def find_tool(self) -> Sequence[tuple[str, str]]:
        spec = importlib.util.find_spec("rattler")
        if spec is None or spec.origin is None:
            raise InstallError(
                "There is no py-rattler to install packages of conda with",
                "Install it beside nsm, as its extra `conda`: `pip install 'nsm-sessions[conda]'`.",
            )
        self._channels = [index.url.removesuffix("/") for index in self.indexes.conda]
        return (
            (os.path.dirname(spec.origin), f"{PLACE}/rattler"),
            (os.path.abspath(conda_program.__file__), _PROGRAM),
        )

    def problems(self) -> Sequence[str]:
        return self.indexes.conda_problems

    def prepare(self, staging: Staging) -> None:
        make_directory(staging.environment)
        if isinstance(self.given, CondaWanted):
            numbers: dict[str, int] = {}
            for number, index in enumerate(self.indexes.conda):
                numbers.setdefault(index.name, number)
            wanted = {
                "channels": self._channels,
                "specs": [_in_channel(spec, numbers) for spec in self.given.specs],
                "platform": PLATFORM,
                "cache": f"{_CACHE}/channels",
            }
            staging.write(_WANTED, [json.dumps(wanted)])

    def resolve(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [*self._command, "resolve", f"{work}/{_WANTED}", f"{work}/{_RESOLVED}"]

    def resolved(self, place: str) -> CondaLock:
        found: list[tuple[int, str, str]] = json.loads(
            read_left(f"{place}/{_RESOLVED}", MAX_RESOLVED_BYTES)
        )
        pins = [
            conda_lists.pin(f"{self._channels[number]}/{path.lstrip('/')}", sha256)
            for number, path, sha256 in found
        ]
        return conda_lists.lock(pins, self.wanted_hash)

    def install(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [*self._command, "fetch", f"{work}/{_FILES}", f"{_CACHE}/packages"]

    def settings(self, listed: AllowList) -> BuildSettings:
        return conda_settings(self.indexes, listed)

    def write_lock(self, staging: Staging, lock: CondaLock) -> None:
        for pin in lock.pins:
            if pin.channel not in self._channels:
                raise InstallError(
                    f"The lock has a package from {pin.channel}, which is no channel of the list",
                    f"`nsm env update {self.request.name}` makes the lock again.",
                )
        files = [(pin.url, pin.place, pin.sha256) for pin in lock.pins]
        staging.write(_FILES, [json.dumps(files)])

    async def finish(
        self,
        staging: Staging,
        jail: BuildJail,
        store: EnvironmentStore,
        lock: CondaLock,
    ) -> EnvironmentDetails:
        del store  # other environments have no files of these packages
        await in_thread(staging.check, "")
        fetched = os.path.join(staging.mount, _CACHE.removeprefix(f"{BUILD}/"), "packages")
        # From here on code of the packages may run, so this jail can change no cache.
        alone = replace(jail, shown=[*jail.shown, (fetched, _FETCHED)]).alone(staging.place)
        ran = await alone.run([*self._command, "link", f"{BUILD}/{_FILES}", _FETCHED, BUILD])
        if ran.status != 0:
            raise InstallError(*why_failed(ran, self.tool, (), done="linked"))
        details, sources = await in_thread(self._look, staging, lock)
        if sources:
            # What cannot be compiled cannot be imported either: no failure here.
            await alone.run(
                [
                    *(PYTHON, "-I", "-S", "-m", "compileall", "-q", "-q", "-j", "0"),
                    *("--invalidation-mode", "unchecked-hash", "-i", f"{BUILD}/sources.txt"),
                ]
            )
        return details

    def _look(self, staging: Staging, lock: CondaLock) -> tuple[EnvironmentDetails, list[str]]:
        """Check what was linked, and describe it. Returns also what packages bring as source only,
        which is in `sources.txt`.
        """
        staging.check(META)
        made = staging.environment
        versions = _installed(made)
        version = _check_python(made, versions)
        library = f"lib/python{'.'.join(map(str, version[:2]))}/site-packages"
        sources: list[str] = []
        with suppress(FileNotFoundError):  # a Python alone may have no such directory
            staging.check(library)
            tag = f"cpython-{version[0]}{version[1]}"
            sources = uncompiled(os.path.join(made, library), tag)
            staging.write("sources.txt", [f"{ENV}/{library}/{path}" for path in sources])
        details = EnvironmentDetails(
            interpreter="python",
            program=PYTHON,
            agent_python=PYTHON,
            prefixes=(),
            version=".".join(map(str, version)),
            lock=lock.digest,
            versions=versions,
            modules=modules_of(made, version),
        )
        return details, sources


def _in_channel(spec: str, numbers: Mapping[str, int]) -> tuple[int | None, str]:
    """Split a package from its channel's number; None if any will do."""
    channel, named, rest = spec.rpartition("::")
    return (numbers.get(channel), rest) if named else (None, spec)


def _installed(made: str) -> dict[str, str]:
    """Versions of the installed packages, by name."""
    found = map(_INSTALLED.fullmatch, listed(os.path.join(made, META)))
    return {match["name"]: match["version"] for match in found if match is not None}


def _check_python(made: str, versions: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version of the environment's Python; InstallError if it has none for sessions."""
    hint = f"Add `python>={'.'.join(map(str, MINIMUM_PYTHON))}` to its packages."
    if "python" not in versions:
        raise InstallError("The environment has no Python, which sessions run in", hint)
    version = tuple(int(number) for number in re.findall(r"\d+", versions["python"])[:3])
    if version < MINIMUM_PYTHON:
        raise InstallError(f"Its Python is {versions['python']}, which is too old", hint)
    program = os.path.realpath(os.path.join(made, "bin", "python"))
    inside = program.startswith(f"{os.path.realpath(made)}/")
    if not inside or not stat.S_ISREG(os.lstat(program).st_mode):
        raise InstallError("Its Python is no program of the environment itself")
    return version
