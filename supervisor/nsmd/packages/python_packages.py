"""Environments of Python packages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from nsmd.host.paths import why_not_run
from nsmd.jail.interpreters import FoundInterpreter, Unreadable, find_python, modules_of
from nsmd.model.host_rules import AllowList
from nsmd.packages import locks, requirements
from nsmd.packages.build_jail import ENV, PLACE, PYTHON, BuildJail
from nsmd.packages.build_network import BuildSettings, python_settings
from nsmd.packages.language_packages import LanguagePackages
from nsmd.packages.locks import MAX_LOCK_BYTES, Lock, LockError
from nsmd.packages.package_builds import InstallError, InstallRequest, in_thread
from nsmd.packages.sharing import installed, share_files
from nsmd.packages.store import (
    BUILD,
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    make_directory,
    read_left,
    write_new,
)

MANY_SOURCES = 100
"""Number of sources that one process compiles; starting several takes as long as some sources."""

MAX_NAMED = 20
"""Largest number of packages that a note names."""


_ANSWER = re.compile(
    r"Received response for \w+ request with status (?P<status>401|403)[^:]*: (?P<url>\S+)"
)
"""uv's own words, in its log, about an index that refuses."""

_UV = f"{PLACE}/uv"


def _wheels_only(*, builds: bool) -> Sequence[str]:
    return () if builds else ("--only-binary", ":all:")


def find_uv(search_path: str) -> str | None:
    """Find the program uv: the one that nsm was installed with, else one on PATH. Blocks."""
    for program in _uvs(search_path):
        if os.path.isfile(program) and os.access(program, os.X_OK) and not why_not_run(program):
            return os.path.realpath(program)
    return None


def _uvs(search_path: str) -> Iterator[str]:
    # On other machines, to which `nsm host setup` copies nsm, there is the module alone.
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin  # noqa: PLC0415

        yield find_uv_bin()
    for folder in search_path.split(os.pathsep):
        if os.path.isabs(folder):
            yield os.path.join(folder, "uv")


class PythonPackages(LanguagePackages):
    """Python packages that are wanted, for a Python, which the jail has as well: requirements, or
    the project's own lock.
    """

    tool = "uv"
    prefers_cache = False
    variables: ClassVar[Mapping[str, str]] = {
        "UV_CACHE_DIR": f"{BUILD}/cache/uv",
        "UV_LINK_MODE": "hardlink",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }

    def __init__(self, request: InstallRequest, unreadable: Unreadable) -> None:
        found = find_python(
            request.wanted.interpreter or None,
            request.search_path,
            home=request.home,
            unreadable=unreadable,
        )
        if isinstance(found, str):
            raise InstallError(f"There is no Python for it: {found}")
        facts = found.program, found.version_text
        super().__init__(request, found, facts=facts, lock_file="txt")
        self._refusing = ""
        try:
            self._given = requirements.read_project_lock(request.wanted, found)
            self._lines = requirements.read(request.wanted) if self._given is None else []
        except (LockError, requirements.RequirementsError) as error:
            raise InstallError(str(error)) from error

    @property
    def wanted_hash(self) -> str:
        return requirements.hash_of(self.request.wanted, self._lines)

    def own_lock(self) -> tuple[Lock, str, str] | None:
        if self._given is None:
            return None
        names = ", ".join(self._given.left_out[:MAX_NAMED])
        note = f"directories are not installed as packages: {names}" if names else ""
        return self._given.lock, self._given.path, note

    def read_lock(self, path: str) -> Lock | None:
        return locks.read(path, locks.parse, follow=True)

    def find_tool(self) -> Sequence[tuple[str, str]]:
        found = find_uv(self.request.search_path)
        if found is None:
            raise InstallError(
                "There is no uv to install packages with",
                "Install it (`pip install --user uv`, or https://docs.astral.sh/uv), so that it is "
                "on the supervisor's PATH.",
            )
        return ((found, _UV),)

    def problems(self) -> Sequence[str]:
        return self.indexes.python_problems

    def shown(self) -> Sequence[str]:
        return *self.python.prefixes, *self.indexes.directories, *self.indexes.constraints

    def prepare(self, staging: Staging) -> None:
        staging.write("wanted.txt", self._lines)
        _make_venv(staging.environment, self.python)

    def resolve(self, work: str, *, builds: bool) -> list[str]:
        return [
            *("/usr/bin/env", "RUST_LOG=uv_client::cached_client=trace"),  # for `takes`
            *(_UV, "pip", "compile", "--universal", "--generate-hashes"),
            *("--quiet", "--no-header", "--no-annotate", "--python", PYTHON),
            *("--output-file", f"{work}/resolved.txt"),
            *_wheels_only(builds=builds),
            *(word for path in self.indexes.constraints for word in ("--constraint", path)),
            f"{work}/wanted.txt",
        ]

    def takes(self, line: str) -> bool:
        if not line.startswith(("TRACE ", "DEBUG ")):
            return False
        if (found := _ANSWER.search(line)) is not None:
            for index in self.indexes.python:
                # Some public indexes have no other answer than 403 for what they do not have.
                refuses = found["status"] == "401" or index.login is not None
                if refuses and found["url"].startswith(f"{index.url.rstrip('/')}/"):
                    self._refusing = f"{index.name} answers {found['status']}"
        return True

    def resolved(self, place: str) -> Lock:
        if self._refusing:
            # uv passes over such an index if there are others, which may have a package of the same
            # name from somebody else.
            raise InstallError(
                f"The index {self._refusing}, so packages might come from another one",
                "Your user and password for it are missing or not accepted: see your configuration "
                "of pip or uv, and ~/.netrc.",
            )
        text = read_left(f"{place}/resolved.txt", MAX_LOCK_BYTES)
        return Lock(pins=locks.parse(text).pins, wanted_hash=self.wanted_hash)

    def settings(self, listed: AllowList) -> BuildSettings:
        return python_settings(self.indexes, listed, builds=self.request.wanted.allow_builds)

    def write_lock(self, staging: Staging, lock: Lock) -> None:
        staging.write("lock.txt", [lock.body])

    def install(self, work: str, *, builds: bool) -> list[str]:
        return [
            *(_UV, "pip", "install", "--python", PYTHON, "--require-hashes"),
            *("--no-deps", *_wheels_only(builds=builds), "-r", f"{work}/lock.txt"),
        ]

    async def finish(
        self, staging: Staging, jail: BuildJail, store: EnvironmentStore, lock: Lock
    ) -> EnvironmentDetails:
        sources = await in_thread(self._share, staging, store)
        if sources:
            # A module that cannot be compiled is one that cannot be imported: no failure here.
            await jail.run(
                [
                    # Without `-S`, Python would run code in the packages' `.pth` files; and in
                    # the environment, a build may have left another Python.
                    *(self.python.program, "-I", "-S", "-m", "compileall", "-q", "-q"),
                    *("-j", "0" if len(sources) > MANY_SOURCES else "1"),
                    *("--invalidation-mode", "unchecked-hash"),
                    *("-i", f"{staging.work}/sources.txt"),
                ]
            )
        return await in_thread(self._describe, staging.environment, lock)

    @property
    def _library(self) -> str:
        return f"lib/python{'.'.join(map(str, self.python.version[:2]))}/site-packages"

    def _share(self, staging: Staging, store: EnvironmentStore) -> list[str]:
        """Check what was installed, and share its files. Returns the sources that are left to
        compile, which are in `sources.txt`.
        """
        staging.check(self._library)
        _check_python(staging.environment, self.python)
        tag = f"cpython-{self.python.version[0]}{self.python.version[1]}"
        sources = share_files(store, staging.environment, self._library, tag)
        staging.write("sources.txt", [f"{ENV}/{path}" for path in sources])
        return sources

    def _describe(self, made: str, lock: Lock) -> EnvironmentDetails:
        return EnvironmentDetails(
            interpreter="python",
            program=PYTHON,
            agent_python=PYTHON,
            prefixes=self.python.prefixes,
            version=self.python.version_text,
            lock=lock.digest,
            versions=installed(os.path.join(made, self._library)),
            modules=modules_of(made, self.python.version),
        )


def _make_venv(place: str, python: FoundInterpreter) -> None:
    """Make an empty virtual environment, as the module `venv` does, which knows host paths only."""
    version = ".".join(map(str, python.version[:2]))
    make_directory(os.path.join(place, "lib", f"python{version}", "site-packages"))
    make_directory(os.path.join(place, "bin"))
    os.symlink(python.program, os.path.join(place, "bin", "python"))
    for name in ("python3", f"python{version}"):
        os.symlink("python", os.path.join(place, "bin", name))
    os.symlink("lib", os.path.join(place, "lib64"))
    write_new(os.path.join(place, "pyvenv.cfg"), _venv_settings(python))


def _venv_settings(python: FoundInterpreter) -> str:
    return (
        f"home = {os.path.dirname(python.program)}\n"
        "include-system-site-packages = false\n"
        f"version = {python.version_text}\n"
    )


def _check_python(place: str, python: FoundInterpreter) -> None:
    """Check that no package has put a file of its own in place of the environment's Python:
    sessions could not start. InstallError if one has.
    """
    settings = _venv_settings(python)
    try:
        program = os.readlink(os.path.join(place, "bin", "python"))
        same = read_left(os.path.join(place, "pyvenv.cfg"), len(settings)) == settings
    except (OSError, ValueError):
        program, same = "", False
    if program != python.program or not same:
        raise InstallError(
            "One of the packages brings a file bin/python or pyvenv.cfg, which would take the "
            "place of the environment's own",
            "Leave that package out, or use a version without it.",
        )
