"""Survey of all that a box can write: files that would make the host run something.

Those are files of the table `nsm.autorun`, and what git obeys in whatever directory has a `HEAD` or
is called `.git`. With a link counts what it leads to in the same directories. Files are recognised
by what nobody can choose: inode and time of change.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Mapping, Sequence

from nsm import autorun
from nsm.dataclass import dataclass, field
from nsmbox.protection.secrets import within

MAX_ENTRIES = 400_000
"""Largest number of names that are looked at, those nearest to the top first. It takes about a
second.
"""

GIT_FILES = ("config", "config.worktree", "commondir")
"""Files of a git directory by which git runs programs, or goes to others that have such files."""

REBASE_LIST = "rebase-merge/git-rebase-todo"
"""Path in a git directory; git's only list that contains commands (git-rebase(1))."""

State = str
"""Text that differs after any change to a file."""


@dataclass(slots=True, kw_only=True)
class Survey:
    """Findings.

    Attributes:
        named: files of the table, by path.
        repositories: git directories.
        of_git: what git obeys in these, and `.git` where it is a file or a link; by path.
        closed: directories that cannot be read, by path.
        whole: everything has been looked at.
    """

    named: dict[str, State] = field(default_factory=dict[str, State])
    repositories: list[str] = field(default_factory=list[str])
    of_git: dict[str, State] = field(default_factory=dict[str, State])
    closed: dict[str, State] = field(default_factory=dict[str, State])
    whole: bool = True

    @property
    def states(self) -> Mapping[str, State]:
        """All of them by path."""
        return self.named | self.of_git | self.closed


def survey(roots: Sequence[str]) -> Survey:
    """Look at everything below some directories.

    Args:
        roots: absolute, all links followed; none lies in another one.
    """
    found = Survey()
    left = MAX_ENTRIES
    # Path, path from its root on with a slash at its end, and whether a component of that may
    # begin a path of the table.
    waiting = deque((root, "", False) for root in roots)
    seen: set[str] = set()
    followed: set[tuple[str, str]] = set()  # links may lead to each other without end
    while waiting:
        if left <= 0:
            found.whole = False
            break
        folder, relative, suspect = waiting.popleft()
        if folder in seen:
            continue
        seen.add(folder)
        entries = _entries(folder)
        if entries is None:
            found.closed[folder] = state(folder)
            continue
        left -= len(entries)
        repository: dict[str, str] = {}
        has_head = False
        for name, is_directory in entries:
            low = autorun.folded(name)
            may = suspect or low in autorun.FIRST
            path = f"{folder}/{name}" if folder != "/" else f"/{name}"
            if low in _OF_REPOSITORY:
                repository[low] = path
                has_head = has_head or low == "head"
            if is_directory:
                waiting.append((path, f"{relative}{name}/", may))
                continue
            if low == ".git":
                found.of_git[path] = _state_through(path, roots)
            if (may or low.endswith(autorun.ENDINGS)) and _counts(path, relative + name):
                found.named[path] = _state_through(path, roots)
            if may and os.path.islink(path):
                real = os.path.realpath(path)
                if (
                    (real, low) not in followed
                    and os.path.isdir(real)
                    and any(within(real, root) for root in roots)
                ):
                    followed.add((real, low))
                    waiting.append((path, f"{relative}{name}/", True))
        # A later `git init` takes over what a `.git` without a `HEAD` has.
        if has_head or autorun.folded(os.path.basename(folder)) == ".git":
            _repository(found, folder, repository, roots)
            target = _common(repository.get("commondir"), folder)
            if target is not None and any(within(target, root) for root in roots):
                named = {name: f"{target}/{name}" for name in _OF_REPOSITORY}
                _repository(found, target, named, roots)
    return found


_OF_REPOSITORY = ("head", "hooks", "rebase-merge", *GIT_FILES)


def _entries(folder: str) -> list[tuple[str, bool]] | None:
    try:
        with os.scandir(folder) as found:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    except FileNotFoundError:
        return []
    except OSError:
        return None


def _counts(path: str, relative: str) -> bool:
    entry = autorun.find(relative)
    if entry is None or entry.measure == "allowed":
        return False
    if not entry.says:
        return True
    if not autorun.PACKAGE_DIRECTORIES.isdisjoint(map(autorun.folded, relative.split("/"))):
        return False  # thousands of manifests, which nobody opens as projects
    from nsm.git import small_file  # noqa: PLC0415 - hardly one has it

    return entry.counts(small_file(path, autorun.MAX_CONTENT_BYTES))


def _repository(found: Survey, folder: str, named: Mapping[str, str], roots: Sequence[str]) -> None:
    found.repositories.append(folder)
    for name in GIT_FILES:
        if name in named and os.path.lexists(named[name]):
            found.of_git[named[name]] = _state_through(named[name], roots)
    if rebase := named.get("rebase-merge"):
        todo = f"{rebase}/{os.path.basename(REBASE_LIST)}"
        for path in (rebase, todo) if os.path.islink(rebase) else (todo,):
            if os.path.lexists(path):
                found.of_git[path] = state(path)
    if hooks := named.get("hooks"):
        if os.path.islink(hooks):  # what it leads to may be anything of the host's
            found.of_git[hooks] = state(hooks)
            hooks = os.path.realpath(hooks)
            if not any(within(hooks, root) for root in roots):
                return
        for name, _ in _entries(hooks) or ():
            if not name.endswith(".sample"):
                path = f"{hooks}/{name}"
                found.of_git[path] = _state_through(path, roots)


def _common(commondir: str | None, folder: str) -> str | None:
    """The directory that a repository shares with others, by its file."""
    from nsm.git import pointer  # noqa: PLC0415 - hardly one has it

    named = pointer(commondir) if commondir else None
    return None if named is None else os.path.realpath(os.path.join(folder, named))


def _state_through(path: str, roots: Sequence[str]) -> State:
    """Return the state of a file; of a link with that of the file to which it leads, where the box
    can change it."""
    if not os.path.islink(path):
        return state(path)
    real = os.path.realpath(path)
    # Names in a directory count by themselves.
    if not os.path.isfile(real) or not any(within(real, root) for root in roots):
        return state(path)
    both = (state(path), state(real))
    return f"{both[0]} {both[1]}.{max(map(changed_at, both))}"


def state(path: str) -> State:
    """Return the state of a file; empty if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    mode = status.st_mode
    text = f"{stat.S_IFMT(mode):o}.{mode & 0o111:o}.{status.st_ino}.{status.st_size}"
    return f"{text}.{status.st_ctime_ns}"


def changed_at(state: State) -> int:
    """Time of a state's last change, in nanoseconds since 1970."""
    return int(state.rpartition(".")[2] or 0)
