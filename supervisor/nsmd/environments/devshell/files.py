"""Files that decide a flake's shell, and the detection of changes to them.

A flake is evaluated from its own files and the inputs in its lock. Only the evaluation knows which
files it uses; development shells in practice depend on those named here. A change of another file
is noticed with the next change of one of these.

All functions block, for some 50 us if nothing changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice

from nsm.below import read_file
from nsm.dataclass import dataclass

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

Signature = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of the last change in ns of each file and directory, in order."""


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


def look(project: str, known: FlakeState | None = None) -> FlakeState | None:
    """Read the project's flake; None if it has none.

    Args:
        known: from an earlier look; returned if nothing has changed.
    """
    if known is not None and known.signature == _sign([row[0] for row in known.signature]):
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


def _sign(paths: list[str]) -> Signature:
    rows: list[tuple[str, int, int, int]] = []
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            rows.append((path, 0, 0, 0))
        else:
            rows.append((path, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(rows)


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
