"""Differences between a project and a session's overlay of it: the upper layer of overlayfs beside
the directory itself.

The session can fill and change the layer while it is read, so it is only data: see `below`.
https://docs.kernel.org/filesystems/overlayfs.html describes its marks.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from nsm import autorun
from nsm.below import DIRECTORY, look, open_below, open_file, read_link
from nsm.dataclass import dataclass, replace
from nsm.paths import follow_links

Kind = Literal["added", "changed", "deleted"]
Type = Literal["file", "directory", "symlink", "special"]

PERMISSIONS = 0o777
"""Bits of a mode that are compared and applied: never those that make a program run as
its owner.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """State of the file at a path.

    Attributes:
        mode: permissions, see `PERMISSIONS` and `carried_mode`; 0 for a link.
        size: bytes of a file or of a link's target; else 0.
        token: identifies this state; differs after any change.
    """

    type: Type
    mode: int
    size: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change that a session made to one path.

    Attributes:
        path: path below the project; bytes that are not UTF-8 as in `os.fsdecode`.
        conflict: why applying it would undo a later change on the host; else empty.
        risk: why somebody should look before applying it; else empty.
        problem: why it cannot be applied at all; else empty.
        before: state on the host now; None if nothing is there.
        after: state in the session; None if nothing is there.
    """

    path: str
    before: PathState | None
    after: PathState | None
    conflict: str = ""
    risk: str = ""
    problem: str = ""

    @property
    def kind(self) -> Kind:
        """Kind of the change."""
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "changed"


def type_of(mode: int) -> Type:
    """Return the file type in a mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "special"


def host_state(found: os.stat_result) -> PathState:
    """Make the state of a file of the project. Nobody can choose its time of change."""
    type_ = type_of(found.st_mode)
    return PathState(
        type=type_,
        mode=0 if type_ == "symlink" else found.st_mode & PERMISSIONS,
        size=found.st_size if type_ in ("file", "symlink") else 0,
        token=""
        if type_ == "directory"  # a directory's times change with its content
        else f"{found.st_dev:x}.{found.st_ino:x}.{found.st_size:x}.{found.st_ctime_ns:x}",
    )


def copy_state(found: os.stat_result, digest: str) -> PathState:
    """Make the state of a file of an overlay. Its owner may set everything but the hash of its
    content.
    """
    type_ = type_of(found.st_mode)
    mode = 0 if type_ == "symlink" else found.st_mode & PERMISSIONS
    size = found.st_size if type_ in ("file", "symlink") else 0
    return PathState(type=type_, mode=mode, size=size, token=f"{type_}.{mode:o}.{digest}")


_WRITE_OF_OTHERS = 0o022


def carried_mode(after: PathState, before: PathState | None) -> int:
    """Permissions of the changed file on the host: others may write only if they could before."""
    kept = before.mode if before is not None and before.type == after.type else 0
    return after.mode & PERMISSIONS & ~(_WRITE_OF_OTHERS & ~kept)


def digest_of(content: bytes) -> str:
    """SHA-256 as text."""
    return hashlib.sha256(content).hexdigest()


_RUN_BY_GIT = re.compile(
    r"(.*/)?\.git(/|$)(?!objects/(?!info/alternates)|refs/|logs/|index$|HEAD$|ORIG_HEAD$|"
    r"COMMIT_EDITMSG$|FETCH_HEAD$|MERGE_HEAD$|MERGE_MSG$|packed-refs$)",
    re.IGNORECASE | re.DOTALL,
)
"""Files of a repository that may make git run something: all but those known to hold only data.
Hooks and configuration, under any name, say what git executes (compare CVE-2026-25725). The name
`.git` also matches on file systems that ignore case.
"""

_HEAD = re.compile(r"(?!(.*/)?\.git/)(.*/)?HEAD", re.IGNORECASE | re.DOTALL)
"""The file that makes a directory of any name a repository: git then obeys its configuration for
everybody in there (gitrepository-layout(5); safe.bareRepository is not set by default).
"""


def risk_of(
    path: str,
    after: PathState | None,
    target: str = "",
    content: Callable[[], bytes | None] = lambda: None,
) -> str:
    """Return why somebody should look at a change before applying it: the host would run something,
    or the change leads out of the project. Empty if there is no reason.

    Args:
        content: content of a file; None if it is long, or nobody knows.
    """
    if after is None:
        return ""
    if after.type == "symlink" and _leads_out(path, target):
        return "a link that leads out of the project"
    if after.type == "directory":
        return ""
    if _RUN_BY_GIT.match(path) or _HEAD.fullmatch(path):
        return "git may execute what it says"
    entry = autorun.find(path)
    if entry is None or (entry.says and not entry.counts(content())):
        return ""
    return f"run or obeyed without being told to: {entry.reason}"


def _leads_out(path: str, target: str) -> bool:
    """Return whether a link may lead out of the project; other links are harmless."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or inside == ".." or inside.startswith("../"):
        return True
    # The directory above `a/..` is the parent of the target of `a`, if `a` is a link as well.
    named = False
    for component in target.split("/"):
        if component == ".." and named:
            return True
        named = named or component not in ("", ".", "..")
    return False


MAX_ENTRIES = 4096
"""Largest number of names that are looked at below those of the table."""

MAX_SEARCHED = 10_000
"""Largest number of a project's entries among which those names are searched, upper ones first."""

_OF_GIT = ("hooks", "config", "config.worktree", "info", "commondir")


def find_linked(project: int) -> Mapping[str, str]:
    """Find what links lead to in a project, with the name that leads there; the links on the way to
    it, too. Paths are relative. Blocks.
    """
    directory = os.readlink(f"/proc/self/fd/{project}")
    found: dict[str, str] = {}
    waiting = deque(_find_names(directory))
    seen: set[str] = set()
    left = MAX_ENTRIES
    while waiting and left > 0:
        left -= 1
        name = waiting.popleft()
        real, links = follow_links(os.path.join(directory, name), directory)
        if links:
            for place in (real, *links):
                below = os.path.relpath(place, directory)
                if below != "." and not below.startswith("../") and below != "..":
                    found.setdefault(below, name)
        if real not in seen and real != directory:
            seen.add(real)
            waiting.extend(f"{name}/{each}" for each in _names_run(real, name))
    return found


def _find_names(directory: str) -> list[str]:
    """Find the names of the table, in the project and in all directories below it, apart from
    those of installed packages.
    """
    found: list[str] = []
    waiting = deque([""])
    left = MAX_SEARCHED
    while waiting and left > 0:
        inside = waiting.popleft()
        try:
            with os.scandir(os.path.join(directory, inside)) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            if not inside:
                raise
            continue
        left -= len(entries)
        for entry in entries:
            name, low = f"{inside}{entry.name}", autorun.folded(entry.name)
            if low in autorun.FIRST or low == ".git" or low.endswith(autorun.ENDINGS):
                found.append(name)
            elif low not in autorun.PACKAGE_DIRECTORIES and entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
    return found


def _names_run(directory: str, name: str) -> list[str]:
    """Names in a directory; those that git obeys in one of its own."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [each for each in names if each in _OF_GIT] if autorun.folded(name) == ".git" else names


def names_of(path: str, linked: Mapping[str, str]) -> Iterator[str]:
    """Yield the names by which links lead to a path, or to what is below it."""
    for place, name in linked.items():
        if path == place or place.startswith(f"{path}/"):
            yield name
        elif path.startswith(f"{place}/"):
            yield name + path[len(place) :]


PIECE_BYTES = 256 * 1024

MAX_CHANGES = 200_000
"""Largest number of changes of one session. Its files are bounded, so only deleted trees of the
host come near this.
"""

MAX_PATH_BYTES = 4000
"""Longest path, below PATH_MAX. Code can nest deeper, and then nobody sees what it put there."""

MAX_PATHS_BYTES = 64 * 1024 * 1024
"""Total size of the paths of all changes. Names use memory here, but none of a session's room."""

READINGS = 4
"""How much is read, as a multiple of the overlay's size. Holes take no room, and a file with
several names is read for each.
"""

MARGIN_NS = 20_000_000
"""Margin for times of files, whose clock ticks every 1 to 10 ms."""


class TooManyChangesError(Exception):
    """Error for more than `MAX_CHANGES`, or for paths that are longer than `MAX_PATHS_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Directories to compare.

    Attributes:
        since_ns: start of the session, Unix time.
        applied: `st_ctime_ns` by path, for changes of this session that were applied on the host.
        stop: returns True once nobody waits for the answer.
    """

    changed: int
    project: int
    since_ns: int
    applied: dict[str, int]
    linked: Callable[[], Mapping[str, str]]
    stop: Callable[[], bool] = lambda: False


def compare(sides: Sides) -> list[Change]:
    """Find all changes, sorted by path; blocks.

    Raises:
        TooManyChangesError: there are too many.
    """
    changes: list[Change] = []
    paths_bytes = 0
    for change in _Walk(sides).run():
        changes.append(change)
        paths_bytes += len(change.path)
        if len(changes) > MAX_CHANGES or paths_bytes > MAX_PATHS_BYTES or sides.stop():
            raise TooManyChangesError
    return sorted(changes, key=lambda change: in_tree(change.path))


def change_at(sides: Sides, path: str) -> Change | None:
    """Find the change of one path; None if there is none; blocks.

    Raises:
        OSError: it has changed meanwhile.
    """
    walk = _Walk(sides)
    try:
        return _change_at(walk, sides, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return walk.unreadable(path, error)


def _change_at(walk: _Walk, sides: Sides, path: str) -> Change | None:
    components = path.split("/")
    opaque = False
    for depth in range(1, len(components)):
        directory = "/".join(components[:depth])
        found = look(sides.changed, directory)
        if found is None:
            break
        if not stat.S_ISDIR(found.st_mode):
            opaque = True  # deleted, or something that is no directory
            break
        opaque = opaque or _is_opaque(sides.changed, directory)
    found = look(sides.changed, path)
    if found is None or is_whiteout(found):
        before = walk.host(path) if found is not None or opaque else None
        return None if before is None else walk.made(path, before, None)
    return walk.leaf_or_directory(path, found)


def in_tree(path: str) -> str:
    """Sort key that keeps a directory's content directly behind it."""
    return path.replace("/", "\0")  # no name has this character, and it sorts before all others


def content_digest(root: int, path: str, size: int) -> str:
    """Compute `digest_of` a file's content in pieces.

    Args:
        size: size of the file when it was looked at; no more is read if it grows.
    """
    fd = open_file(root, path)
    try:
        digest = hashlib.sha256()
        while size >= 0 and (piece := os.read(fd, PIECE_BYTES)):
            digest.update(piece)
            size -= len(piece)
        return digest.hexdigest()
    finally:
        os.close(fd)


def is_whiteout(found: os.stat_result) -> bool:
    """Return whether a file is overlayfs's mark for a removed file."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


class _Walk:
    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        room = os.fstatvfs(sides.changed)
        self._largest = room.f_blocks * room.f_frsize
        self._to_read = READINGS * self._largest

    def run(self) -> Iterator[Change]:
        # Without recursion, and without keeping descriptors: code decides how deep the tree is.
        waiting = [("", False)]
        while waiting:
            directory, hidden = waiting.pop()
            # If the session removed a directory and made it again, the host's content in it is
            # gone, and so on below it.
            hidden = hidden or _is_opaque(self._sides.changed, directory)
            try:
                names = _names(self._sides.changed, directory)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    yield self.unreadable(directory, error)
                continue  # else it has changed meanwhile
            for name in names:
                path = f"{directory}/{name}" if directory else name
                if len(os.fsencode(path)) > MAX_PATH_BYTES:
                    yield self.unreadable(directory, OSError(errno.ENAMETOOLONG, "too deep"))
                    break
                try:
                    found = look(self._sides.changed, path)
                    if found is None:
                        continue
                    if not is_whiteout(found) and stat.S_ISDIR(found.st_mode):
                        waiting.append((path, hidden))
                    yield from self._at(path, found)
                except FileNotFoundError:
                    continue  # it has changed meanwhile
                except OSError as error:
                    # The session can set modes: one unreadable directory must not hide the rest.
                    yield self.unreadable(path, error)
            if hidden:
                known = set(names)
                for name in self._host_names(directory):
                    if name not in known:
                        yield from self._gone(f"{directory}/{name}" if directory else name)

    def _at(self, path: str, found: os.stat_result) -> Iterator[Change]:
        if is_whiteout(found):
            yield from self._gone(path)
            return
        if not stat.S_ISDIR(found.st_mode):
            yield from self._below(path)
        change = self.leaf_or_directory(path, found)
        if change is not None:
            yield change

    def leaf_or_directory(self, path: str, found: os.stat_result) -> Change | None:
        """Return the change of a path that the overlay has."""
        before = self.host(path)
        try:
            after = self._in_copy(path, found)
        except FileNotFoundError:
            return None  # it has changed meanwhile
        except OSError as error:
            return self.unreadable(path, error, before)
        after = replace(after, mode=carried_mode(after, before))  # the token has the real mode
        return None if self._is_same(path, before, after) else self.made(path, before, after)

    def _in_copy(self, path: str, found: os.stat_result) -> PathState:
        """Return the state of a path in the session."""
        if stat.S_ISREG(found.st_mode):
            if found.st_size > min(self._largest, self._to_read):
                raise OSError(errno.EFBIG, "it has, or all have, more than the copy has room for")
            self._to_read -= found.st_size
            return copy_state(found, content_digest(self._sides.changed, path, found.st_size))
        if stat.S_ISLNK(found.st_mode):
            return copy_state(found, digest_of(os.fsencode(read_link(self._sides.changed, path))))
        return copy_state(found, "")

    def host(self, path: str) -> PathState | None:
        found = look(self._sides.project, path)
        return None if found is None else host_state(found)

    def made(self, path: str, before: PathState | None, after: PathState | None) -> Change:
        """Make a change with its conflict, risk and problem."""
        target = ""
        if after is not None and after.type == "symlink":
            target = read_link(self._sides.changed, path)
        problem = ""
        if after is not None and after.type == "special":
            problem = "it is neither a file nor a directory nor a link"
        elif before is not None and before.type == "special":
            problem = "on the host it is neither a file nor a directory nor a link"
        return Change(
            path=path,
            before=before,
            after=after,
            conflict=self._conflict(path, before),
            risk=self._risk(path, after, target),
            problem=problem,
        )

    def _risk(self, path: str, after: PathState | None, target: str) -> str:
        def content() -> bytes | None:
            return self._content(path, after)

        risk = risk_of(path, after, target, content)
        if risk or after is None or after.type == "directory":
            return risk
        for name in names_of(path, self._sides.linked()):
            if risk := risk_of(name, after, content=content):
                return f"{risk} (by the link {name})"
        return ""

    def _content(self, path: str, after: PathState | None) -> bytes | None:
        """Read a short file of the session; None if it is not what its token says any more."""
        if after is None or after.type != "file" or after.size > autorun.MAX_CONTENT_BYTES:
            return None
        try:
            fd = open_file(self._sides.changed, path)
        except OSError:
            return None
        with open(fd, "rb") as file:
            data = file.read(autorun.MAX_CONTENT_BYTES + 1)
        return data if after.token.endswith(digest_of(data)) else None

    def _conflict(self, path: str, before: PathState | None) -> str:
        if before is None or before.type == "directory":
            return ""
        changed_ns = int(before.token.rpartition(".")[2], 16)
        if changed_ns <= self._sides.since_ns - MARGIN_NS:
            return ""
        if self._sides.applied.get(path) == changed_ns:
            return ""  # we applied it
        return "it was changed on the host since the session began"

    def _is_same(self, path: str, before: PathState | None, after: PathState) -> bool:
        if before is None or replace(before, token="") != replace(after, token=""):
            return False
        match after.type:
            case "file":
                try:
                    theirs = content_digest(self._sides.project, path, before.size)
                except OSError:
                    return False
                return after.token.endswith(theirs)
            case "symlink":
                ours = digest_of(os.fsencode(read_link(self._sides.project, path)))
                return after.token.endswith(ours)
            case _:
                return True

    def _gone(self, path: str) -> Iterator[Change]:
        """Yield the host's files at a path, all of them deleted."""
        before = self.host(path)
        if before is not None:
            yield self.made(path, before, None)
            yield from self._below(path)

    def _below(self, path: str) -> Iterator[Change]:
        """Yield the host's files below a path where the session has no directory."""
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            for name in self._host_names(directory):
                below = f"{directory}/{name}"
                before = self.host(below)
                if before is not None:
                    yield self.made(below, before, None)
                    if before.type == "directory":
                        waiting.append(below)

    def _host_names(self, directory: str) -> list[str]:
        try:
            return _names(self._sides.project, directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return []
            raise

    def unreadable(self, path: str, error: OSError, before: PathState | None = None) -> Change:
        """Make a change about which nothing is known except that it cannot be read."""
        after = PathState(type="special", mode=0, size=0, token="unreadable")  # noqa: S106
        return Change(
            path=path or ".",
            before=before,
            after=after,
            problem=f"what the session made of it cannot be read: {error.strerror}",
        )


def _names(root: int, directory: str) -> list[str]:
    fd = open_below(root, directory, DIRECTORY)
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def _is_opaque(changed: int, directory: str) -> bool:
    """Return whether the overlay's directory hides the host's content."""
    try:
        fd = open_below(changed, directory, DIRECTORY)
    except OSError:
        return False
    try:
        return os.getxattr(fd, "user.overlay.opaque") == b"y"
    except OSError:
        return False
    finally:
        os.close(fd)
