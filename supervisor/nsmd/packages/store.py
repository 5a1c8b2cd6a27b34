"""Environments on disk, by the hash of what they are made of; all functions block.

`DIRECTORY/HASH` is an environment, complete once it has that name. `DIRECTORY/.builds` has what
builds share, and a directory for each build that is under way: one file system mount, in which
files of the cache can be linked.

An environment is made elsewhere and renamed when it is on disk, so nothing half-made is used, and
two builds of one lock end as one. It is never changed in place: sessions run in it. It is at `/env`
in the build and in sessions, so no script in it names a directory of the host. uv links files from
its cache, so cache and environment are one mount (link(2) fails across mounts).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from nsm.below import read_file
from nsm.dataclass import dataclass
from nsm.wire.decode import DecodeError, decode
from nsmd.model.values import Interpreter

LAYOUT = 3
"""Version of how environments are made; a new one makes all environments again."""

DETAILS = "environment.json"

BUILD = "/build"
"""Directory of a build in its jail: the environment, temporary files, and the cache."""

NODE_MODULES = "node_modules"

MAX_DETAILS_BYTES = 4 * 1024 * 1024

_SHARED, _ALONE = "shared/build-", "alone-"
"""Beginnings of the names of builds' own directories; the first share a cache."""

_CACHE = "cache"

UNUSED_CACHE_S = 30 * 24 * 3600
"""Time without a build, after which all that was fetched is removed. The limit of a build is
shorter, so none uses it then.
"""

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Facts about the container image of an environment.

    Attributes:
        digest: hash of its manifest or configuration.
        variables: its variables, except PATH.
        working_directory: directory in which its programs start; empty for none that sessions have.
        layers: hashes of its layers, the lowest first.
    """

    digest: str
    variables: dict[str, str]
    path: str
    working_directory: str
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDetails:
    """Facts about an environment in the store.

    Attributes:
        program, agent_python: its interpreter, and the Python of the agent, as sessions see them.
        prefixes: host directories that both need.
        lock: hash of its lock.
        versions: installed packages, by name; of Node, by path below `node_modules`.
        modules: modules that models are told of.
        image: the image that it is made from; None for packages.
    """

    interpreter: Interpreter
    program: str
    agent_python: str
    prefixes: tuple[str, ...]
    version: str
    lock: str
    versions: dict[str, str]
    modules: tuple[str, ...]
    image: ImageFacts | None = None


def hash_of(*facts: str) -> str:
    """Name of the environment that is made of these facts."""
    return hashlib.sha256("\0".join((str(LAYOUT), *facts)).encode()).hexdigest()


class EnvironmentStore:
    """The environments of a user, in a directory that is made for this user alone if it does not
    exist.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.builds = os.path.join(directory, ".builds")

    def path(self, name: str) -> str:
        """Path of an environment, which may not exist."""
        return os.path.join(self.directory, name)

    def details(self, path: str) -> EnvironmentDetails | None:
        """Read the facts about an environment; None if there is no complete one."""
        try:
            with open(os.path.join(path, DETAILS), "rb") as file:
                return decode(EnvironmentDetails, json.loads(file.read(MAX_DETAILS_BYTES)))
        except (OSError, ValueError, RecursionError, DecodeError):
            return None

    def claim(self, path: str) -> bool:
        """Find a complete environment for a build. Mark it, so that `collect` keeps it while the
        build lasts: until then nobody else knows that it is in use.
        """
        with self._held():
            if self.details(path) is None:
                return False
            os.utime(path)
            return True

    @contextmanager
    def _held(self) -> Generator[None]:
        """Hold the lock of the names of environments."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        held = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def names(self) -> list[str]:
        """Names of all environments."""
        try:
            return sorted(name for name in os.listdir(self.directory) if _HASH.fullmatch(name))
        except FileNotFoundError:
            return []

    @contextmanager
    def building(self, *, alone: bool) -> Generator[Staging]:
        """Make a directory for a build, and remove it afterwards. One that is `alone` shares no
        cache with others, which it could change.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        make_directory(self.builds)
        self._remove_left()
        own, held = self._make_own(alone=alone)
        try:
            mount = own if alone else os.path.dirname(own)
            place = os.path.join(mount, "build-own") if alone else own
            cache = os.path.join(mount, _CACHE)
            make_directory(cache)
            os.utime(cache)  # it is in use
            make_directory(os.path.join(place, "tmp"))
            yield Staging(mount=mount, place=place)
        finally:
            shutil.rmtree(own, ignore_errors=True)
            os.close(held)

    def _make_own(self, *, alone: bool) -> tuple[str, int]:
        """Make a build's own directory. Returns its path, and a descriptor that holds its lock
        until this process ends, however it ends.
        """
        while True:
            own = os.path.join(self.builds, (_ALONE if alone else _SHARED) + secrets.token_hex(8))
            with suppress(FileNotFoundError):
                make_directory(own)
            if (held := _lock(own, wait=True)) is not None:
                return own, held
            # Somebody took it for one that was left, before it was locked.

    def _remove_left(self) -> None:
        """Remove what builds have left whose processes were killed."""
        for start in (_ALONE, _SHARED):
            for name in glob.glob(f"{start}*", root_dir=self.builds):
                left = os.path.join(self.builds, name)
                with suppress(OSError):
                    if (held := _lock(left, wait=False)) is not None:
                        shutil.rmtree(left, ignore_errors=True)
                        os.close(held)

    def _unused_cache(self) -> Sequence[str]:
        """Directory of the cache that builds share, if none has used it for long."""
        cache = os.path.join(self.builds, os.path.dirname(_SHARED), _CACHE)
        try:
            age_s = time.time() - os.stat(cache).st_mtime
        except FileNotFoundError:
            return ()
        return (cache,) if age_s > UNUSED_CACHE_S else ()

    def publish(self, staging: Staging, name: str) -> str:
        """Give an environment that `Staging.complete` has completed its name. Returns its path."""
        made, path = staging.environment, self.path(name)
        with self._held():
            # Another build may have been quicker. But what has the name and cannot be read, such as
            # a file that was cut off when the power failed, would stand in the way for ever.
            if self.details(path) is None:
                with suppress(FileNotFoundError):
                    self._set_aside(path)
                os.rename(made, path)
            os.utime(path)
        return path

    def _set_aside(self, path: str) -> None:
        """Take an environment's name; the next `collect` removes its files."""
        os.rename(path, os.path.join(self.directory, f".going-{secrets.token_hex(8)}"))

    def collect(
        self, kept: Collection[str], *, since_s: float = math.inf, dry_run: bool
    ) -> CollectedEnvironments:
        """Remove environments, what ended builds have left, and a cache that is not used any more.

        Paths that are `kept` stay, and what builds have made or found since a Unix time; with
        `dry_run` nothing goes.
        """
        going = [path for path in map(self.path, self.names()) if path not in kept]
        going = [path for path in going if not _is_marked(path, since_s)]
        going += self._unused_cache()
        freed = _size_alone(going)
        if dry_run:
            return CollectedEnvironments(paths=tuple(going), freed_bytes=freed)
        with self._held():
            # Sizes took a while, and builds went on.
            going = [path for path in going if not _is_marked(path, since_s)]
            for path in going:
                # Nobody finds it half removed.
                with suppress(OSError):
                    self._set_aside(path)
        for name in listed(self.directory):
            if name.startswith(".going-"):
                shutil.rmtree(os.path.join(self.directory, name), ignore_errors=True)
        self._remove_left()
        return CollectedEnvironments(paths=tuple(going), freed_bytes=freed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedEnvironments:
    """Directories of environments that were removed, or would be, and the size of files that
    nothing else shares.
    """

    paths: tuple[str, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Place of a build: the directory that the jail may change, which has the `cache`, and the
    build's own directory in it.
    """

    mount: str
    place: str

    @property
    def environment(self) -> str:
        """The environment that is being made."""
        return os.path.join(self.place, "env")

    @property
    def work(self) -> str:
        """The build's own directory, in the jail."""
        return f"{BUILD}/{os.path.basename(self.place)}"

    def write(self, name: str, lines: Iterable[str]) -> None:
        """Write a file of lines into the build's own directory."""
        write_new(os.path.join(self.place, name), "".join(f"{line}\n" for line in lines))

    def complete(self, details: EnvironmentDetails) -> None:
        """Write the facts about the environment, and have all of it on disk."""
        write_new(os.path.join(self.environment, DETAILS), json.dumps(asdict(details), indent=1))
        _sync(self.environment)

    def check(self, library: str) -> None:
        """Raise OSError for links to elsewhere where a build had directories: its code may be
        hostile.

        `library` is the path of its packages, from the environment.
        """
        path = self.environment
        checked = [self.place, path]
        for part in filter(None, library.split("/")):
            path = os.path.join(path, part)
            checked.append(path)
        for each in checked:
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "the build has replaced a directory", each)


def make_directory(path: str) -> None:
    """Make a directory that jails' users may read, and those above it that are missing: the
    supervisor's umask keeps them out.
    """
    if not os.path.isdir(above := os.path.dirname(path)):
        make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, 0o755)


def write_new(path: str, text: str) -> None:
    """Write a new file in a directory of a build, through no link that the build has left there;
    jails' users may read it.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)


def read_left(path: str, limit: int) -> str:
    """Read a regular file that a build has left, or raise OSError or ValueError."""
    data = read_file(path, limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is larger than {limit} bytes")
    return data.decode()


def package_of(place: str) -> str:
    """Name of the package at a path below `node_modules`."""
    return place.rpartition(f"{NODE_MODULES}/")[2]


def _size_alone(directories: Sequence[str]) -> int:
    """Size of the files that are nowhere but in these directories."""
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in names:
                found = os.lstat(os.path.join(folder, name))
                key = found.st_dev, found.st_ino
                links[key] = found.st_nlink, links.get(key, (0, 0, 0))[1] + 1, found.st_blocks
    return sum(512 * blocks for there, seen, blocks in links.values() if there == seen)


def _is_marked(path: str, since_s: float) -> bool:
    """Return whether a build has made or found an environment since then."""
    try:
        return os.stat(path).st_mtime >= since_s
    except OSError:
        return False


def _lock(directory: str, *, wait: bool) -> int | None:
    """Lock a directory. Returns the descriptor that holds the lock; None if another process has
    it, or the directory is gone.
    """
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.isdir(directory):
            return held
    except BlockingIOError:
        pass
    os.close(held)
    return None


def _sync(directory: str) -> None:
    """Have a directory's file system on disk: one call for ten thousand files (syncfs(2))."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(held):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory)
    finally:
        os.close(held)


def listed(directory: str) -> Sequence[str]:
    """Names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return ()
