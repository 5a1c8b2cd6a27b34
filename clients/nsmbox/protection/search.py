"""Search of a directory for what a box must not change there."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from nsm import autorun
from nsm.autorun import CLAUDE_WORKTREES
from nsm.dataclass import dataclass, field
from nsm.git import small_file
from nsm.paths import follow_links, which
from nsmbox.protection import git_repository
from nsmbox.protection.secrets import printable, within
from nsmbox.protection.stand_ins import StandIn

MAX_ENTRIES = 2048
"""Largest number of entries, in all directories that are searched for repositories."""


MAX_INNER_ENTRIES = 4096
"""Largest number of entries of all protected directories that are searched for links."""

MAX_READ_ONLY = 512
"""Number of protected paths from which on no links in protected directories are followed: each
costs a mount, and those that hold the way to it."""

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
    """

    path: str
    copies: tuple[tuple[str, bytes], ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class Search:
    """Paths found so far.

    Attributes:
        unprotected: paths that the box may change and make; absolute.
        kept: directories of the host that the box can change at other places.
        directories: protected ones, in which links are still to be followed.
        links: links that lead to what is protected, and that the box could exchange: what they say.
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
    kept: Sequence[str] = ()
    directories: deque[str] = field(default_factory=deque[str])
    links: dict[str, str] = field(default_factory=dict[str, str])
    unprotectable: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    programs: dict[str, str] = field(default_factory=dict[str, str])
    repositories: int = 0
    entries: int = MAX_ENTRIES
    inner_entries: int = MAX_INNER_ENTRIES
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


def followed(search: Search, path: str) -> str:
    """Follow all links on the way to a path, and note those that the box could exchange.

    Returns:
        The path to which they lead; what it names need not exist.
    """
    roots = (search.directory, *search.shown)  # no links are on the way to these
    real, links = follow_links(path, next((root for root in roots if within(path, root)), "/"))
    search.links.update((link, says) for link, says in links.items() if search.shows(link))
    return real


def protect(search: Search, path: str, entry: autorun.Autorun | None = None) -> None:
    """Note a path for being read-only, or what links lead to from there, if it exists.

    Args:
        entry: of the table; it says whether the path is not to be made either.
    """
    if search.allows(path):
        return
    real = followed(search, path)
    if real != path and any(within(real, each) for each in search.kept):
        _note(search, path, f"leads to {printable(real)}, which the box can change.")
    if real != path and (search.allows(real) or not search.shows(real)):
        return
    if any(within(root, real) for root in (search.directory, *search.shown)):
        why = f"leads to a whole directory of the box ({printable(real)}), and what is there is not"
        _note(search, path, f"{why} protected.")
        return
    kind = kind_of(real)
    if kind is None or real in search.standing:
        if real != path or (entry is not None and entry.measure == "denied"):
            _keep_from_being_made(search, real, entry or autorun.DENIED)
    elif kind == "other":
        _note(search, path, "is neither a file nor a directory and is not protected.")
    elif kind != "link" and real not in search.read_only:  # a link to itself leads nowhere
        if kind == "file" and _has_other_names(real):
            _note(search, path, "has another name (a hard link), by which the box may change it.")
        own = _own_directory(real) if entry is not None and entry.private else None
        if own is not None:
            search.own.append(own)
        else:
            search.read_only.append(real)
        if kind == "directory":
            search.directories.append(real)


def _note(search: Search, path: str, text: str) -> None:
    search.unprotectable.append(f"{printable(os.path.relpath(path, search.directory))} {text}")


def protect_inner_links(search: Search) -> None:
    """Protect what links in protected directories lead to, after all else. Not by recursion: these
    directories may lead to each other as often as somebody likes."""
    while search.directories:
        folder = search.directories.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    search.inner_entries -= 1
                    if search.inner_entries < 0 or len(search.read_only) > MAX_READ_ONLY:
                        what = "what links deep in it lead to is not protected."
                        _note(search, folder, f"has many files: {what}")
                        return
                    if not entry.is_symlink():
                        last = tuple(entry.path.split("/")[-2:])
                        if entry.is_dir(follow_symlinks=False) and last != CLAUDE_WORKTREES:
                            search.directories.append(entry.path)
                    elif (named := autorun.find(entry.name)) is None or named.measure != "allowed":
                        protect(search, entry.path)
        except OSError:
            continue


def _has_other_names(path: str) -> bool:
    try:
        return os.lstat(path).st_nlink > 1
    except OSError:
        return False  # it is gone, or has been exchanged, which is noticed when it is opened


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
    if entry.only_beside and not any(
        kind_of(os.path.join(search.directory, other)) for other in autorun.beside(entry)
    ):
        return
    if entry.only_with and not which(entry.only_with, search.variables.get("PATH", "")):
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
