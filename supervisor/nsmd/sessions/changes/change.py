"""One difference between a project and a session's copy of it; pure."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from dataclasses import dataclass
from typing import Literal

Kind = Literal["added", "changed", "deleted"]
Type = Literal["file", "directory", "symlink", "special"]

PERMISSIONS = 0o777
"""What is compared and applied of a mode: never the bits that make a program run as its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of the file at a path.

    Attributes:
        mode: permissions, see `PERMISSIONS` and `carried_mode`; 0 of a link.
        size: bytes of a file or of a link's target; 0 of all else.
        token: stands for all of it; another one after any change.
    """

    type: Type
    mode: int
    size: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change that a session made to one path.

    Attributes:
        path: below the project; bytes that are no UTF-8 as `os.fsdecode` has them.
        before: on the host now; None where nothing is.
        after: in the session; None where nothing is.
        conflict: why applying it would undo what was done on the host meanwhile; empty if it would
            not.
        risk: why nobody should apply it unseen; empty if there is nothing to say.
        problem: why it cannot be applied at all; empty if it can.
    """

    path: str
    before: State | None
    after: State | None
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


def host_state(found: os.stat_result) -> State:
    """Make the state of a file of the project, whose time of change nobody can choose."""
    type_ = type_of(found.st_mode)
    return State(
        type=type_,
        mode=0 if type_ == "symlink" else found.st_mode & PERMISSIONS,
        size=found.st_size if type_ in ("file", "symlink") else 0,
        token=""
        if type_ == "directory"  # whose times change with what is in it
        else f"{found.st_dev:x}.{found.st_ino:x}.{found.st_size:x}.{found.st_ctime_ns:x}",
    )


def copy_state(found: os.stat_result, digest: str) -> State:
    """Make the state of a file of a copy, whose owner may set everything but its content's hash.

    Args:
        digest: from `digest_of`, of a file's content or a link's target.
    """
    type_ = type_of(found.st_mode)
    mode = 0 if type_ == "symlink" else found.st_mode & PERMISSIONS
    size = found.st_size if type_ in ("file", "symlink") else 0
    return State(type=type_, mode=mode, size=size, token=f"{type_}.{mode:o}.{digest}")


_WRITE_OF_OTHERS = 0o022


def carried_mode(after: State, before: State | None) -> int:
    """Permissions that a change has on the host: others may write only where they could.

    Args:
        after: in the session, as it is there.
        before: on the host.
    """
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
"""Of a repository, all but what is known to hold data alone: its hooks and its configuration, of
whatever name, say what git executes (CVE-2026-25725 is of their kind). The name `.git` on file
systems that ignore case, too."""

_HEAD = re.compile(r"(?!(.*/)?\.git/)(.*/)?HEAD", re.IGNORECASE | re.DOTALL)
"""What makes a directory of any name a repository, whose configuration git obeys for whoever is in
there (gitrepository-layout(5); safe.bareRepository is not set by default)."""

_RUN_BY_OTHERS = re.compile(
    r"(.*/)?(\.(envrc|npmrc|yarnrc(\.yml)?|pnpmfile\.cjs|mcp\.json|pre-commit-config\.yaml|"
    r"gitmodules|gitattributes|bazelrc|gdbinit|lldbinit|exrc|nvimrc|vimrc|lvimrc|nvim\.lua|"
    r"dir-locals(-2)?\.el|gitlab-ci\.yml|mise\.toml|cursorrules|windsurfrules)|"
    r"mise\.toml|\.?lefthook(-local)?\.(ya?ml|toml|json)|(CLAUDE(\.local)?|AGENTS|GEMINI)\.md|"
    r"\.(vscode|idea|zed|fleet|claude|cursor|windsurf|kiro|codex|gemini|husky|githooks|lefthook|"
    r"devcontainer|direnv|mise|cargo|yarn|circleci|github/workflows|"
    r"github/copilot-instructions\.md)(/.*)?)",
    re.IGNORECASE | re.DOTALL,
)
"""What editors, agents, package managers and servers that build execute or obey without being told
to."""


def risk_of(path: str, after: State | None, target: str = "") -> str:
    """Why a change should not be applied unseen: it would have something run on the host, or lead
    out of the project. Empty if there is nothing to say.

    Args:
        target: of a link.
    """
    if after is None:
        return ""
    if after.type == "symlink" and _leads_out(path, target):
        return "a link that leads out of the project"
    if after.type == "directory":
        return ""
    if _RUN_BY_GIT.match(path) or _HEAD.fullmatch(path):
        return "git may execute what it says"
    if _RUN_BY_OTHERS.fullmatch(path):
        return "editors and tools act on it without being told to"
    return ""


def _leads_out(path: str, target: str) -> bool:
    """Return whether a link may lead out of the project; other links are harmless."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or inside == ".." or inside.startswith("../"):
        return True
    # The directory above `a/..` is that of wherever `a` leads, if that is a link as well.
    named = False
    for component in target.split("/"):
        if component == ".." and named:
            return True
        named = named or component not in ("", ".", "..")
    return False
