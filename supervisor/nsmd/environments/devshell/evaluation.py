"""Evaluation of a flake's development shell by Nix; the answer is kept until the flake changes.

Nix runs the flake's evaluation and the builds it needs: a user who turned `use_flake` on asked for
that. Nothing else of the project runs on the host: `shellHook` is only text here, and git, which
Nix starts to see which files are the flake's, gets a copy without the repository's configuration.
Nix writes no lock into the project, and a profile keeps the shell's packages from Nix's garbage
collector.

A flake is evaluated from its own files and the inputs in its lock. Only the evaluation knows which
files it uses; development shells in practice depend on those named here. A change of another file
is noticed with the next change of one of these. Looking takes some 50 us if nothing changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import trio

from nsm.below import read_file
from nsm.dataclass import dataclass
from nsm.paths import replace_file
from nsm.wire.errors import NixFailedError
from nsmd.environments.devshell.script import DevEnv, DevEnvError, parse
from nsmd.environments.nix.program import Nix, NixExitError, flake_copy
from nsmd.host.commands import OnProgress
from nsmd.host.paths import file_stamp, is_within

log = logging.getLogger(__name__)


FLAKE = "flake.nix"

NAMED = (FLAKE, "flake.lock", "devshell.toml", "rust-toolchain.toml", "rust-toolchain")
"""Besides `*.nix`, which are searched in the project's top directory and in these:"""

DIRECTORIES = ("nix", ".nix")

MAX_DEPTH = 3
MAX_FILES = 256
MAX_DIRECTORIES = 64
MAX_FILE_BYTES = 4 * 1024 * 1024
"""Largest file. A lock of a hundred inputs has some 100 KiB."""

MAX_BYTES = 16 * 1024 * 1024
"""Largest size of all files. Calls wait while they are read: 10 ms for that size."""

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""Path and stamp of each file and directory, in order."""


@dataclass(frozen=True, slots=True)
class FlakeState:
    """A flake's files at one moment.

    Attributes:
        key: hash of their names and contents.
        signature: shows cheaply that nothing has changed.
    """

    key: str
    signature: Signature


def has_flake(project: str) -> bool:
    """Return whether the project has a flake, judging by its own directory."""
    return os.path.isfile(os.path.join(project, FLAKE))


def read_flake(project: str, known: FlakeState | None = None) -> FlakeState | None:
    """Read the project's flake; None if it has none."""
    if known is not None and known.signature == _sign(path for path, _ in known.signature):
        return known
    if not has_flake(project):
        return None
    # Directories, too, since a new file changes its directory.
    folders = list(islice(_directories(project), MAX_DIRECTORIES))
    files = list(_files(project, folders))
    signature = _sign([*folders, *files])
    digest = hashlib.sha256()
    left = MAX_BYTES
    for path in sorted(files):
        content = _read(path, min(left, MAX_FILE_BYTES))
        left = max(0, left - len(content))
        digest.update(os.fsencode(os.path.relpath(path, project)) + b"\0")
        digest.update(hashlib.sha256(content).digest())
    return FlakeState(key=digest.hexdigest()[:32], signature=signature)


def _sign(paths: Iterable[str]) -> Signature:
    return tuple((path, file_stamp(path)) for path in paths)


def _directories(project: str) -> Iterator[str]:
    yield project
    for name in DIRECTORIES:
        for folder, below, _ in os.walk(os.path.join(project, name)):
            yield folder
            if os.path.relpath(folder, project).count(os.sep) + 1 >= MAX_DEPTH:
                below.clear()


def _files(project: str, folders: Sequence[str]) -> Iterator[str]:
    """The named files, existing or not, and the ones found, at most `MAX_FILES`."""
    left = MAX_FILES
    for name in NAMED:
        yield os.path.join(project, name)
    for folder in folders:
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
        except OSError:
            continue
        for name in names:
            if name.endswith(".nix") and not (folder == project and name in NAMED):
                left -= 1
                if left < 0:
                    return
                yield os.path.join(folder, name)


def _read(path: str, limit: int) -> bytes:
    """Read a file; anything else in its place counts as empty."""
    try:
        return read_file(path, limit, links=True)
    except OSError as error:
        return b"" if error.errno == errno.EINVAL else b"\0"


EVALUATION_TIMEOUT_S = 3600.0
"""Time limit: the first evaluation may fetch nixpkgs and a compiler over a slow line, or build what
no cache has.
"""

CLOSURE_TIMEOUT_S = 60.0

MAX_CLOSURE_PATHS = 2500
"""Largest number of store paths; each is a mount in the jail. bwrap takes 9000 arguments, three for
each; a shell with a compiler and some libraries has 100 to 400 paths.
"""

KEEP_S = 8 * 86400.0
"""How long the store paths of an earlier shell are kept after its last use: the longest lifetime of
a session, and a day.
"""

UNUSED_S = 30 * 86400.0
"""How long everything about a project is kept after the last request for its shell."""

_FORMAT = 1
_NO_ATTRIBUTE = "does not provide attribute"
"""Part of Nix's message about a flake without it, in all versions so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """An evaluated development shell.

    Attributes:
        root: store path that refers to all its packages.
        closure: store paths that a jail must show, sorted.
    """

    env: DevEnv
    root: str
    closure: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectCache:
    """Directory for one project's shell."""

    project: str
    folder: str

    @classmethod
    def of(cls, project: str, state: str) -> ProjectCache:
        """Choose the directory for a project."""
        name = hashlib.sha256(os.fsencode(project)).hexdigest()[:16]
        return cls(project=project, folder=os.path.join(state, name))

    @property
    def log_path(self) -> str:
        """Path of the log of the last evaluation."""
        return os.path.join(self.folder, "log")

    def profile(self, key: str) -> str:
        """Path of the link that keeps a shell from the garbage collector."""
        return os.path.join(self.folder, key)

    def root(self, key: str) -> str:
        """Store path that it keeps."""
        return os.path.realpath(self.profile(key))

    def open_log(self) -> BinaryIO:
        """Open the log, emptied."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        return open(self.log_path, "wb")

    def record(self, key: str) -> str:
        """Path of the file with Nix's output."""
        return os.path.join(self.folder, f"{key}.json")


def load(cache: ProjectCache, key: str, extra: Sequence[str]) -> Shell | None:
    """Load a shell that was evaluated earlier, if all of it still exists; blocks.

    Args:
        extra: as for `evaluate`.
    """
    try:
        with open(cache.record(key), encoding="utf-8") as file:
            told: dict[str, Any] = json.load(file)
        if told["format"] != _FORMAT or told["extra"] != list(extra):
            return None
        shell = Shell(
            env=parse(str(told["env"]).encode()), root=told["root"], closure=tuple(told["closure"])
        )
        if cache.root(key) != shell.root or _first_missing(shell.closure):
            return None
        os.utime(cache.record(key))
    except (OSError, ValueError, KeyError, TypeError, DevEnvError):
        return None
    return shell


async def evaluate(
    nix: Nix, cache: ProjectCache, key: str, extra: Sequence[str], on_progress: OnProgress
) -> Shell:
    """Make Nix evaluate the project's flake and build what its shell needs.

    Args:
        key: hash of the flake's files.
        extra: paths of programs that the jail needs besides the shell; the jail shows those in
            Nix's store with all that they refer to.

    Raises:
        NixFailedError: there is no shell; the message says why.
        OSError: the project is gone, or the state directory cannot be written.

    Cancellation: stops Nix.
    """
    printed = await _print_dev_env(nix, cache, key, on_progress)
    try:
        env = await trio.to_thread.run_sync(parse, printed)  # possibly megabytes
    except DevEnvError as error:
        raise NixFailedError(
            f"The output of `nix print-dev-env --json` cannot be used: {error}."
        ) from None
    root = cache.root(key)
    closure = await _closure(nix, [root, *_in_store(extra, os.path.dirname(root))])
    shell = Shell(env=env, root=root, closure=closure)
    record = {
        "format": _FORMAT,
        "project": cache.project,
        "extra": list(extra),
        "root": root,
        "closure": closure,
        "env": printed.decode(),
    }
    await trio.to_thread.run_sync(partial(_write, cache, key, record))
    return shell


async def _print_dev_env(nix: Nix, cache: ProjectCache, key: str, on_progress: OnProgress) -> bytes:
    system = f"{platform.machine()}-linux"
    attributes = (f"devShells.{system}.default", f"devShell.{system}")
    tree = os.path.join(cache.folder, "tree")
    with cache.open_log() as file:
        async with flake_copy(cache.project, tree, nix.variables) as (directory, flake):
            for attribute in attributes:
                with suppress(FileNotFoundError):
                    os.unlink(cache.profile(key))
                try:
                    return await nix.run(
                        [
                            "print-dev-env",
                            "--json",
                            "--no-write-lock-file",
                            "--profile",
                            cache.profile(key),
                            "--",
                            # From that directory, since some versions do not accept all paths as
                            # references.
                            f"{flake}#{attribute}",
                        ],
                        directory=directory,
                        tree=tree,
                        timeout_s=EVALUATION_TIMEOUT_S,
                        on_progress=on_progress,
                        log_fd=file.fileno(),
                    )
                except NixExitError as error:
                    if _NO_ATTRIBUTE not in error.error:
                        raise
                os.ftruncate(file.fileno(), 0)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
    raise NixFailedError(
        f"The flake of {cache.project} has neither {' nor '.join(attributes)}.",
        hint="Add one (`nix flake show` lists what it has), or remove use_flake from config.toml.",
    )


async def _closure(nix: Nix, paths: Sequence[str]) -> tuple[str, ...]:
    # As lines: newer versions have another form of --json.
    told = await nix.run(
        ["path-info", "--recursive", "--", *dict.fromkeys(paths)], timeout_s=CLOSURE_TIMEOUT_S
    )
    closure = tuple(sorted(set(told.decode().split())))
    if len(closure) > MAX_CLOSURE_PATHS:
        raise NixFailedError(
            f"The development shell needs {len(closure)} store paths, and a jail shows at most "
            f"{MAX_CLOSURE_PATHS}.",
            hint="Make a smaller one for nsm: devShells.SYSTEM.default is the one that is used.",
        )
    if missing := _first_missing(closure):
        raise NixFailedError(
            f"Nix's store is not where it says: there is no {missing} on this host.",
            hint="nsm needs a store at its own place (usually /nix/store), not one elsewhere.",
        )
    return closure


def _first_missing(paths: Sequence[str]) -> str | None:
    return next((path for path in paths if not os.path.lexists(path)), None)


def _in_store(paths: Sequence[str], store: str) -> Iterator[str]:
    """Store paths that contain some paths."""
    for path in paths:
        real = os.path.realpath(path)
        if is_within(real, store) and real != store:
            yield os.path.join(store, os.path.relpath(real, store).split(os.sep)[0])


def _write(cache: ProjectCache, key: str, record: dict[str, Any]) -> None:
    replace_file(cache.record(key), json.dumps(record).encode())
    _forget_old(cache, key)


def forget_unused(state: str, known: Collection[str]) -> None:
    """Release the store paths of projects that nobody uses any more; blocks.

    Args:
        state: as for `ProjectCache.of`.
    """
    now = time.time()
    with suppress(OSError):
        for folder in os.scandir(state):
            if folder.path in known or not folder.is_dir(follow_symlinks=False):
                continue
            used = [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)]
            if now - max(used, default=0.0) >= UNUSED_S:
                log.info("the development shell of %s is given up: nobody used it", folder.path)
                shutil.rmtree(folder, ignore_errors=True)


def _forget_old(cache: ProjectCache, key: str) -> None:
    """Release the store paths that no session can use any more."""
    now = time.time()
    for entry in os.scandir(cache.folder):
        old = entry.name.removesuffix(".json")
        if old == entry.name or old == key or now - entry.stat().st_mtime < KEEP_S:
            continue
        log.info("the development shell of %s of an earlier flake is given up", cache.project)
        for name in os.listdir(cache.folder):
            if name == old or name.startswith((f"{old}-", f"{old}.")):
                with suppress(OSError):
                    os.unlink(os.path.join(cache.folder, name))
