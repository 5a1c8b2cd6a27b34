"""One difference between a project and a session's overlay of it; pure."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Callable
from typing import Literal

from nsm import autorun
from nsm.dataclass import dataclass

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
    """Why somebody should look at a change before applying it: the host would run something, or the
    change leads out of the project. Empty if there is no reason.

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
