"""Copies of other machines' projects, on the machine that has the sessions.

Each lies in a directory that nsm has made and marked, and only there is anything removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, cast

from nsm import paths
from nsm.wire.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "nsm-copy.json"
"""File beside the copy: nsm made the directory, and may remove what is in the copy."""

_KEY = re.compile(r"[0-9a-f]{12}")
_MAX_HEADER_BYTES = 64 * 1024 * 1024

Seen = list[int]
"""Size, time of the last change in milliseconds, and permissions of a file; of a link only zeros
and a number of its target."""


def copies_dir(home: str) -> str:
    """The directory of all copies."""
    return os.path.join(home, "nsm-projects")


def open_copy(key: str, name: str) -> str:
    """Make and mark the directory of a copy; returns its path.

    Raises:
        HostError: something else is there.
    """
    if not _KEY.fullmatch(key) or name in ("", ".", "..") or "/" in name:
        raise HostError(f"{key!r}, {name!r} name no copy of a project")
    marked = os.path.join(copies_dir(paths.home()), key)
    if not os.path.exists(os.path.join(marked, MARK)):
        _mark(marked)
    copy = os.path.join(marked, name)
    with suppress(FileExistsError):
        os.mkdir(copy)
    if os.path.islink(copy) or not os.path.isdir(copy):
        raise HostError(f"{copy} is no directory", hint="Remove it.")
    return copy


def _mark(marked: str) -> None:
    """Make a directory with its mark in it, both or neither: the disk may be full.

    Raises:
        HostError: something else is there.
    """
    os.makedirs(os.path.dirname(marked), mode=0o700, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(marked))
    try:
        paths.replace_file(os.path.join(made, MARK), b'{"nsm": 1}\n')
        os.rename(made, marked)  # also onto a directory that is empty
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if os.path.exists(os.path.join(marked, MARK)):
            return  # another client was faster
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise HostError(
            f"{marked} is there already, and nsm has not made it", hint="Move it away."
        ) from None


def seen_in(directory: str, names: Iterable[str]) -> dict[str, Seen]:
    """The state of files and links, by name; what is neither is left out."""
    found: dict[str, Seen] = {}
    for name in names:
        path = os.path.join(directory, name)
        try:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                changed_ms = status.st_mtime_ns // 1_000_000
                found[name] = [status.st_size, changed_ms, status.st_mode & 0o777]
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(path).encode(errors="surrogateescape")
                found[name] = [len(target), int.from_bytes(target[:7]), 0]
        except FileNotFoundError:
            continue  # git knows it, and it has gone
    return found


def names_below(directory: str) -> Iterator[str]:
    """All files and links below a directory, relative to it."""
    for place, folders, files in os.walk(directory):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(place, name), directory)


def receive(directory: str, source: IO[bytes]) -> dict[str, int]:
    """Take over the difference: a line of JSON with what is to be removed, then a tar archive.

    Raises:
        OSError: it cannot be written; the next copy brings what is missing.
        HostError: it is no such difference.
    """
    header: Any = json.loads(source.readline(_MAX_HEADER_BYTES) or b"{}")
    removed = 0
    for name in cast("list[str]", header.get("remove", [])):
        path = _inside(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)
        removed += 1
        with suppress(OSError):
            os.removedirs(os.path.dirname(path))  # as far as they are empty
    os.makedirs(directory, exist_ok=True)
    received = 0
    with tarfile.open(fileobj=source, mode="r|") as archive:
        # All is checked here. An attribute, since Python 3.11.2 has no argument for it.
        archive.extraction_filter = _as_it_is
        for entry in archive:
            path = _inside(directory, entry.name)
            if not (entry.isreg() or entry.issym()):
                raise HostError(f"{entry.name!r} is neither a file nor a link")
            with suppress(FileNotFoundError):
                os.unlink(path)
            archive.extract(entry, directory, set_attrs=True)
            received += 1
    return {"received": received, "removed": removed}


def _as_it_is(entry: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    return entry


def _inside(directory: str, name: str) -> str:
    """The path of a file of a copy; no link may lead out of that.

    Raises:
        HostError: it would lie elsewhere.
    """
    path = os.path.normpath(os.path.join(directory, name))
    parent = os.path.realpath(os.path.dirname(path))
    inside = os.path.commonpath((parent, os.path.realpath(directory))) == os.path.realpath(
        directory
    )
    if name.startswith("/") or path == directory or not inside:
        raise HostError(f"{name!r} lies outside of the copy")
    return path
