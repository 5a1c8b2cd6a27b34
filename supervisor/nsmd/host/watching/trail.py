"""Paths that a look-up depended on: directories, links, and missing entries.

A path means something else as soon as one of its directories is renamed, or one of its symbolic
links exchanged. So to know whether an answer still holds, all of them must be watched; and to run a
program, each one's owner must be trusted. This follows a path as the kernel does
(path_resolution(7)), one component after another, and notes both. Blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping

from nsmd.host.paths import why_replaceable

MAX_LINKS = 40
"""Symbolic links to follow in one path, as many as Linux does."""

ANY = ""
"""Stand-in for a name: every entry of the directory matters."""

NoWay = Callable[[str], str | None]

WatchedPaths = Mapping[str, frozenset[str]]
"""Directories, each with the entries that matter. If none matters, only changes of the directory
itself do.
"""


class DistrustError(OSError):
    """Somebody else could exchange this path; the message says who or how."""


class Trail:
    """Record of followed paths.

    Args:
        owners: trusted user ids.
        no_way: returns why the jails' user cannot reach a file; None if it can.
    """

    def __init__(self, owners: Collection[int], no_way: NoWay = lambda _: None) -> None:
        self._owners = owners
        self._no_way = no_way
        self._seen: dict[str, os.stat_result | OSError] = {}
        self._places: dict[str, set[str]] = {}

    @property
    def places(self) -> WatchedPaths:
        """Paths to watch."""
        return {place: frozenset(names) for place, names in self._places.items()}

    def list(self, directory: str) -> list[str]:
        """List the names in a directory, sorted.

        Args:
            directory: from `follow`.

        Raises:
            OSError: it cannot be read.
        """
        self._note(directory, ANY)
        return sorted(os.listdir(directory))

    def follow(self, path: str, *, trusted: bool = True) -> str:
        """Follow an absolute path. Returns the path without symbolic links.

        Args:
            path: path of something that may not exist.
            trusted: refuse a path that somebody else could exchange.

        Raises:
            DistrustError: somebody else could exchange it.
            OSError: nothing is there, there are too many links, or it cannot be read.
        """
        current, links = "/", 0
        rest = path.split("/")[::-1]
        if trusted:
            self._check(current, self._status(current), last=False)
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current = os.path.dirname(current)
                continue
            child = os.path.join(current, name)
            last = not any(part not in ("", ".") for part in rest)
            try:
                status = self._status(child)
                if trusted:
                    self._check(child, status, last=last)
            except OSError:
                self._note(current, name)
                raise
            if stat.S_ISDIR(status.st_mode):
                self._note(child)
                current = child
                continue
            self._note(current, name)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(child)
                rest += target.split("/")[::-1]
                current = "/" if target.startswith("/") else current
                continue
            if not last:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), child)
            current = child
        return current

    def why_closed(self, path: str) -> str | None:
        """Why jails could not use the target of a path from `follow`; None if they can."""
        return self._no_way(path)

    def status(self, path: str) -> os.stat_result:
        """Read the status of a path from `follow`."""
        return self._status(path)

    def _status(self, path: str) -> os.stat_result:
        # Each is read once, so that all paths of one look agree, and common beginnings are free.
        found = self._seen.get(path)
        if found is None:
            try:
                found = os.lstat(path)
            except OSError as error:
                found = error
            except ValueError:  # no name of a file: a lone surrogate from a client's JSON
                found = OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self._seen[path] = found
        if isinstance(found, OSError):
            raise found
        return found

    def _check(self, part: str, status: os.stat_result, *, last: bool) -> None:
        shared = stat.S_ISDIR(status.st_mode) and not last
        if reason := why_replaceable(part, status, self._owners, may_be_shared=shared):
            raise DistrustError(errno.EPERM, reason, part)

    def _note(self, directory: str, name: str | None = None) -> None:
        names = self._places.setdefault(directory, set())
        if name is not None:
            names.add(name)
