"""Search of a directory for what a box must not change there."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping

from nsm import autorun
from nsm.dataclass import dataclass, field
from nsm.git import small_file
from nsmbox.protection import git_repository
from nsmbox.protection.secrets import printable, within
from nsmbox.protection.stand_ins import StandIn

MAX_ENTRIES = 2048
"""Largest number of entries, in all directories that are searched for repositories."""


MAX_OWN_ENTRIES = 200
"""Largest number of entries of a directory in whose place a box has one of its own."""

MAX_OWN_BYTES = 1024 * 1024
"""Largest file of which that directory has a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDirectory:
    """Directory of a box's own in the place of one that is there: its programs fail where they
    cannot make files.

    Attributes:
        copies: names and content of its small files, of which the box has copies.
        shown: names of the rest, which the box sees read-only.
    """

    path: str
    copies: tuple[tuple[str, bytes], ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class Search:
    """Paths found so far.

    Attributes:
        standing: stand-ins of other boxes.
        unprotected: paths that the box may change and make; absolute.
        own: directories in whose place the box has one of its own.
        programs: those here that git's configuration names, with the entry's key.
        wait_s: for git to read the configuration of one. Each could have it wait to the end.
    """

    directory: str
    shown: tuple[str, ...]
    git: str | None
    variables: Mapping[str, str]
    held: list[str] = field(default_factory=list[str])
    read_only: list[str] = field(default_factory=list[str])
    made: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    standing: Collection[str] = ()
    unprotected: tuple[str, ...] = ()
    own: list[OwnDirectory] = field(default_factory=list[OwnDirectory])
    stand_ins: dict[str, StandIn] = field(default_factory=dict[str, StandIn])
    notes: list[str] = field(default_factory=list[str])
    programs: dict[str, str] = field(default_factory=dict[str, str])
    repositories: int = 0
    entries: int = MAX_ENTRIES
    wait_s: float = git_repository.WAIT_S

    def shows(self, path: str) -> bool:
        """Return whether the box can change the file there."""
        return any(within(path, each) for each in (self.directory, *self.shown))

    def allows(self, path: str) -> bool:
        """Return whether somebody has said that the box may change the file there."""
        return any(within(path, each) for each in self.unprotected)


def way_to(search: Search, path: str) -> Iterator[str]:
    """Directories on the way to a path, below what is shown as a whole.

    A directory with a mount in it can be renamed, and another one be made in its place; one that
    is a mount point itself cannot.
    """
    roots = (search.directory, *search.shown)
    above = os.path.dirname(path)
    while above not in roots and any(within(above, root) for root in roots):
        yield above
        above = os.path.dirname(above)


def protect(search: Search, path: str, entry: autorun.Autorun | None = None) -> None:
    """Note a path for being read-only, if it is there and no link leads to it.

    Args:
        entry: of the table; it says whether the path is not to be made either.
    """
    if search.allows(path):
        return
    kind = kind_of(path)
    if kind is None or path in search.standing:
        if entry is not None and entry.measure == "denied":
            _keep_from_being_made(search, path, entry)
        return
    if kind in ("file", "directory") and os.path.realpath(path) == path:
        if entry is not None and entry.private and (own := _own_directory(path)) is not None:
            search.own.append(own)
            return
        search.read_only.append(path)
        return
    shown = printable(os.path.relpath(path, search.directory))
    if kind == "other":
        search.notes.append(f"{shown} is neither a file nor a directory and is not protected.")
    else:
        search.notes.append(
            f"{shown} is reached by a symbolic link, which cannot be protected: the box can "
            "exchange it."
        )


def _own_directory(path: str) -> OwnDirectory | None:
    """Read a directory for one in its place; None if that cannot be."""
    copies: list[tuple[str, bytes]] = []
    shown: list[str] = []
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return None
    if len(names) > MAX_OWN_ENTRIES:
        return None
    for name in names:
        inner = os.path.join(path, name)
        kind = kind_of(inner)
        data = small_file(inner, MAX_OWN_BYTES) if kind == "file" else None
        if data is not None:
            copies.append((name, data))
        elif kind in ("file", "directory"):
            shown.append(name)
    return OwnDirectory(path=path, copies=tuple(copies), shown=tuple(shown))


def _keep_from_being_made(search: Search, path: str, entry: autorun.Autorun) -> None:
    """Note a stand-in for the first part of a path that is not there."""
    above, missing = os.path.dirname(path), path
    while above != search.directory and not os.path.lexists(above):
        above, missing = os.path.dirname(above), above
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        return  # nobody can make it
    if os.path.realpath(above) != above:
        search.notes.append(
            f"{printable(os.path.relpath(above, search.directory))} is a symbolic link: what the "
            "box makes below it is not prevented."
        )
        return
    if entry.only_beside and not any(
        kind_of(os.path.join(search.directory, other)) for other in autorun.beside(entry)
    ):
        return
    if missing != path or entry.nothing is None:
        private = entry.private and missing == path
        search.stand_ins[missing] = StandIn(missing, private=private)
    elif entry.nothing:
        search.stand_ins[path] = StandIn(path, "socket", entry.nothing)
    else:
        # Its program is used here, on the host as well: that is to take it for nothing, too.
        search.stand_ins[path] = StandIn(path, "file")


_KINDS = {"directory": stat.S_ISDIR, "file": stat.S_ISREG, "link": stat.S_ISLNK}


def kind_of(path: str) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return None
    for name, is_kind in _KINDS.items():
        if is_kind(mode):
            return name
    return "other"


def names_in(search: Search, folder: str, *, only_directories: bool = False) -> list[str]:
    """Names in a directory, sorted, as long as not too many have been looked at in all."""
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if search.entries <= 0:
                    search.notes.append(
                        "This directory is large: repositories deep in it are not looked for, and "
                        "not protected."
                    )
                    break
                search.entries -= 1
                if not only_directories or entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
    except OSError:
        pass
    return sorted(found)
