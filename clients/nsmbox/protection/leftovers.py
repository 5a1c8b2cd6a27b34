"""Leftovers of a box that the host would run: reported when it has ended.

Much cannot be kept from an agent: it rebases, makes repositories and projects in directories below.
So everything that it could write is looked at before and afterwards, and what is new or changed is
told in plain words: files of the table `nsm.autorun`, each with the program that runs it, and what
git obeys in whatever directory has a `HEAD` or is called `.git`. With a link counts what it leads
to in the same directories. Files are recognised by what nobody can choose: inode and time of
change. Whatever cannot be understood (a link, a file that is too long or cannot be read) is told as
such.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from nsm import autorun, paths
from nsm.dataclass import dataclass, field
from nsm.git import MAX_POINTER_BYTES, git_file, pointer, small_file
from nsm.wire.tuples import NamedTuple
from nsmbox.protection.git_repository import MAX_CONFIG_BYTES, GitReader
from nsmbox.protection.secrets import printable, within

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
        of_git: what git obeys in these, and `.git` where it is a file or a link; by path.
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
            found.closed[folder] = state_of(folder)
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
                found.of_git[path] = state_of(path)
    if hooks := named.get("hooks"):
        if os.path.islink(hooks):  # what it leads to may be anything of the host's
            found.of_git[hooks] = state_of(hooks)
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
        return state_of(path)
    real = os.path.realpath(path)
    # Names in a directory count by themselves.
    if not os.path.isfile(real) or not any(within(real, root) for root in roots):
        return state_of(path)
    both = (state_of(path), state_of(real))
    return f"{both[0]} {both[1]}.{max(map(changed_at, both))}"


def state_of(path: str) -> State:
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


MAX_LIST_BYTES = 1024 * 1024
MAX_TOLD = 24
MAX_UNDER_WAY = 8
MAX_SHOWN_CHARS = 120

ALL_KEPT = "box-leftovers.txt"
"""File in the state directory with all that was told last, where it was more than `MAX_TOLD`."""

_TICK_NS = 20_000_000
"""The clock that files get their times from is this much behind at most."""

# Not compiled here, which takes longer than all else before a box: hardly one needs them.
_EXEC = rb"[ \t]*(?:exec|x)[ \t]+(.*\S)"


class Before(NamedTuple):
    """State when a box began.

    Attributes:
        directory: the working directory.
        roots: directories that the box can write to.
        at: when, in nanoseconds since 1970.
        programs: files that git's configuration names as programs, with the entry's key.
    """

    directory: str
    roots: tuple[str, ...]
    states: Mapping[str, State]
    lists: Mapping[str, tuple[str, ...]]
    whole: bool
    at: int
    programs: Mapping[str, str] = {}

    def moved(self, old: str, new: str) -> Before:
        """The same after a directory has been renamed."""

        def path(name: str) -> str:
            return new + name[len(old) :] if within(name, old) else name

        return self._replace(
            directory=path(self.directory),
            roots=tuple(map(path, self.roots)),
            states={path(name): state for name, state in self.states.items()},
            lists={path(name): lines for name, lines in self.lists.items()},
            programs={path(name): key for name, key in self.programs.items()},
        )

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Before:
        """Make one of `_asdict()` that went through JSON.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        return cls(
            directory=str(value["directory"]),
            roots=tuple(map(str, value["roots"])),
            states={str(path): str(state) for path, state in dict(value["states"]).items()},
            lists={str(path): tuple(lines) for path, lines in dict(value["lists"]).items()},
            whole=bool(value["whole"]),
            at=int(value["at"]),
            # An earlier version wrote none.
            programs={str(p): str(key) for p, key in dict(value.get("programs", {})).items()},
        )


def before(
    directory: str, writable: Sequence[str], programs: Sequence[tuple[str, str]] = ()
) -> Before:
    """Record the present state."""
    roots = tuple(
        path
        for path in dict.fromkeys(writable)
        if not any(within(path, other) for other in writable if other != path)
    )
    found = survey(roots)
    lists = {
        path: commands(path)
        for path in found.of_git
        if path.endswith(f"/{REBASE_LIST}") and not os.path.islink(path)
    }
    return Before(
        directory=directory,
        roots=roots,
        states={**found.states, **_states_of(dict(programs))},
        lists={path: lines for path, lines in lists.items() if lines},
        whole=found.whole,
        at=time.time_ns() - _TICK_NS,
        programs=dict(programs),
    )


def told(was: Before, reader: GitReader, *, stand_ins: Collection[str] = ()) -> str:
    """Describe what has come since, for people; empty if there is nothing to tell."""
    found = survey(was.roots)
    for path in stand_ins:
        found.named.pop(path, None)
    lines = [
        *_of_git(was, found, reader),
        *_of_programs(was),
        *_of_the_table(was, found),
        *_unseen(was, found),
    ]
    if not lines:
        return ""
    head = (
        f"before you go on in {printable(was.directory)}, look at what the box has left there; "
        "this computer would run it by itself:"
    )
    return _listed(head, lines, MAX_TOLD, all_in=_all_kept(was, lines))


def _all_kept(was: Before, lines: Sequence[str]) -> str:
    """Path of a file with all lines, where not all are told: a box may have made most of them so
    that others are not seen. Empty if there is none."""
    if len(lines) <= MAX_TOLD:
        return ""
    path = os.path.join(paths.state_dir(), ALL_KEPT)
    text = "".join(f"{line}\n" for line in (f"In {printable(was.directory)}:", *lines))
    try:
        paths.ensure_private_dir(paths.state_dir())
        paths.replace_file(path, os.fsencode(text))
    except OSError:
        return ""
    return path


def under_way(was: Before) -> str:
    """Describe what was there already, for people; empty if there is nothing to tell."""
    found = [
        f"{_relative(path, was)}: {_short(line)}"
        for path, lines in was.lists.items()
        for line in lines
    ]
    if not found:
        return ""
    head = "a rebase is under way here whose next `git rebase --continue` runs commands:"
    return _listed(head, found, MAX_UNDER_WAY)


def _listed(head: str, lines: Sequence[str], at_most: int, *, all_in: str = "") -> str:
    more = [f"and {len(lines) - at_most} more"] if len(lines) > at_most else []
    if all_in:
        more[0] += f"; all of them are in {printable(all_in)}"
    return "\n  ".join([head, *lines[:at_most], *more])


def _changes(was: Before, now: Mapping[str, State]) -> Iterator[tuple[str, str]]:
    """Yield the paths that are new or have another state, those nearest to the top first, each with
    a word for it."""
    for path in sorted(now, key=lambda path: (path.count("/"), path)):
        earlier = was.states.get(path)
        if earlier is None and not was.whole and 0 < changed_at(now[path]) < was.at:
            continue  # it was there, and was not looked at
        if earlier != now[path]:
            yield path, "added" if earlier is None else "changed"


# ------------------------------------------------------------------------- files of the table


def _of_the_table(was: Before, found: Survey) -> Iterator[str]:
    together: dict[tuple[str, autorun.Autorun], list[tuple[str, str]]] = {}
    packages: dict[str, int] = {}
    for path, word in _changes(was, found.named):
        relative = _relative_to_root(path, was)
        entry = autorun.find(relative)
        if entry is None:
            continue
        above = relative.split("/")
        if entry.path == "pyvenv.cfg":  # a virtual environment is no project in one
            above = above[:-2]
        inside = next((part for part in above if _holds_packages(part)), None)
        if inside is not None:
            packages[inside] = packages.get(inside, 0) + 1
            continue
        # Builds make many files with one ending, which are told in one line.
        top = "" if entry.path.startswith("*") else _top(path, entry)
        together.setdefault((top, entry), []).append((path, word))
    for (top, entry), files in together.items():
        if len(files) == 1:
            path, word = files[0]
            to = f" -> {printable(os.readlink(path))}" if os.path.islink(path) else ""
            yield f"{_relative(path, was)}{to} ({word}): {entry.reason}"
        else:
            words = " or ".join(sorted({word for _, word in files}))
            if top:
                shown = f"{_relative(top, was)}: {len(files)} files"
            else:
                shown = f"{_relative(files[0][0], was)} and {len(files) - 1} more {entry.path}"
            yield f"{shown} ({words}): {entry.reason}"
    for name, count in packages.items():
        noun = "file" if count == 1 else "files"
        yield f"in directories {name}: {count} {noun} that would be run if opened as a project"


def _holds_packages(name: str) -> bool:
    return autorun.folded(name) in autorun.PACKAGE_DIRECTORIES


def _top(path: str, entry: autorun.Autorun) -> str:
    """The part of a path that the entry names."""
    count = entry.path.count("/") + 1
    last = autorun.folded(entry.path).split("/")[-1]
    parts = path.split("/")
    for place in range(count, len(parts) + 1):
        if autorun.folded(parts[place - 1]) == last:
            return "/".join(parts[:place])
    return path


# ------------------------------------------------------------------------------ what git obeys


def _of_git(was: Before, found: Survey, reader: GitReader) -> Iterator[str]:
    for path, word in _changes(was, found.of_git):
        shown = _relative(path, was)
        if os.path.islink(path):
            to = printable(os.readlink(path))
            yield f"{shown} -> {to} ({word}): git follows this link, wherever it leads"
        elif (name := autorun.folded(os.path.basename(path))) == ".git":
            yield from _pointed(path, git_file(path), was, word)
        elif name == "commondir":
            yield from _pointed(path, pointer(path), was, word)
        elif name == os.path.basename(REBASE_LIST):
            yield from _rebase(path, was)
        elif name in GIT_FILES:
            yield from _configuration(path, was, word, reader)
        elif os.access(path, os.X_OK):
            yield f"{shown} ({word}): git runs this hook"


def _configuration(path: str, was: Before, word: str, reader: GitReader) -> Iterator[str]:
    shown = _relative(path, was)
    data = small_file(path, MAX_CONFIG_BYTES)
    if data is None:
        yield f"{shown} ({word}): {_why_unread(path, MAX_CONFIG_BYTES)}; git may run what it says"
        return
    running = reader.running(data)
    if isinstance(running, str):
        yield f"{shown} ({word}): {running}"
        return
    for entry in running:
        key, _, value = entry.partition(" = ")
        if key != "core.worktree" or _leads_out(os.path.join(os.path.dirname(path), value), was):
            yield f"{shown}: {_short(entry)}"


def _leads_out(path: str, was: Before) -> bool:
    """Return whether a path is in none of the box's directories, whatever links are on the way."""
    real = os.path.realpath(path)
    return not any(within(real, os.path.realpath(root)) for root in was.roots)


def _pointed(path: str, named: str | None, was: Before, word: str) -> Iterator[str]:
    """A file that leads git elsewhere: harmless where that was looked at, too."""
    shown = _relative(path, was)
    if named is None:
        why = _why_unread(path, MAX_POINTER_BYTES)
        yield f"{shown} ({word}): {why}; git may read its configuration elsewhere"
        return
    to = os.path.realpath(os.path.join(os.path.dirname(path), named))
    if not any(within(to, root) for root in was.roots):
        yield f"{shown} ({word}): leads git to {printable(to)}"


def _rebase(path: str, was: Before) -> Iterator[str]:
    shown = _relative(path, was)
    if small_file(path, MAX_LIST_BYTES) is None:
        why = _why_unread(path, MAX_LIST_BYTES)
        yield f"{shown}: {why}; `git rebase --continue` may run its commands"
        return
    earlier = was.lists.get(path, ())
    for command in commands(path):
        if command not in earlier:
            yield f"{shown}: `git rebase --continue` runs {_short(command)}"


def commands(path: str) -> tuple[str, ...]:
    """Commands in a list of git's of what is still to do."""
    data = small_file(path, MAX_LIST_BYTES) or b""
    if not data:
        return ()
    found = (re.fullmatch(_EXEC, line.rstrip(b"\r")) for line in data.split(b"\n"))
    return tuple(os.fsdecode(match[1]) for match in found if match)


def _why_unread(path: str, limit: int) -> str:
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_size > limit:
        return f"is longer than {limit >> 10} KiB and was not looked at"
    return "cannot be read or understood"


def _of_programs(was: Before) -> Iterator[str]:
    for path, word in _changes(was, _states_of(was.programs)):
        key = was.programs[path]
        yield f"{_relative(path, was)} ({word}): git runs this program ({printable(key)})"


def _states_of(programs: Mapping[str, str]) -> dict[str, State]:
    return {path: state for path in programs if (state := state_of(path))}


# ------------------------------------------------------------------------- what was not looked at


def _unseen(was: Before, found: Survey) -> Iterator[str]:
    for path, _ in _changes(was, found.closed):
        yield f"{_relative(path, was)}: this directory cannot be read, and was not looked at"
    if not found.whole:
        yield (
            f"there are more than {MAX_ENTRIES:,} names here: those deepest in it were not "
            "looked at"
        )


def _relative_to_root(path: str, was: Before) -> str:
    root = next(root for root in was.roots if within(path, root))
    return os.path.relpath(path, root)


def _relative(path: str, was: Before) -> str:
    return printable(os.path.relpath(path, was.directory))


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}..."
