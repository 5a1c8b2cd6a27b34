"""Files of a project that the host runs by itself later: a box must not be able to change them.

A git hook, a line of git's or an editor's configuration, an MCP server of the project: whoever
writes one there has the user's rights as soon as the user works in that directory. Those that exist
are shown read-only. What does not exist cannot be protected without making it, which is done for
`hooks` and `commondir` of git alone; what people run themselves (a Makefile, a test) is as trusted
as its writer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from nsm.dataclass import dataclass, field
from nsm.paths import open_linkless
from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection import git_repository
from nsmbox.protection.autorun import PROJECT_FILES, START_UP
from nsmbox.protection.git_repository import GitFacts
from nsmbox.protection.secrets import printable, within

MAX_REPOSITORIES = 64
"""Submodules and repositories in a workspace: each costs three mounts."""

MAX_ENTRIES = 2048
"""Largest number of entries, in all directories that are searched for repositories."""

MAX_CONFIG_BYTES = 1024 * 1024

SHORT_WAIT_S = 0.5
"""Time limit for git after it has once waited for something that is no file. It needs milliseconds.
"""

_WITHOUT = "start the box without protection (--no-protect, or protect = false in [box])"

_ITSELF = b".\n"
"""`commondir` of a repository that shares with nobody: git works as if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """Protected paths of a working directory.

    Attributes:
        held: directories that stay as changeable as they were, and cannot be renamed: what lies in
            them would otherwise be protected under another name.
        read_only: files and directories.
        made: those of `read_only` that are to be made at launch, with their content; None stands
            for an empty directory.
        notes: sentences for people.
    """

    held: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    made: tuple[tuple[str, bytes | None], ...] = ()
    notes: tuple[str, ...] = ()


def mounts(guarded: Guarded) -> tuple[Mount, ...]:
    """List the mounts that protect them; after the working directory and the repository."""
    kinds = dict.fromkeys(guarded.held, False) | dict.fromkeys(guarded.read_only, True)
    made = {path for path, _ in guarded.made}
    return tuple(
        Mount(
            kind="ro-bind" if read_only else "bind",
            target=path,
            source=path,
            linkless=True,
            made=path in made,
            why="protected: the host would run it" if read_only else "cannot be renamed",
        )
        for path, read_only in sorted(kinds.items())
    )


def make(guarded: Guarded) -> None:
    """Make what has to be there to be protected; at launch only.

    Raises:
        BoxError: one cannot be made.
    """

    for path, content in guarded.made:
        folder, name = os.path.split(path)
        try:
            fd = open_linkless(folder)
            try:
                _make(fd, name, content)
            except FileExistsError:
                pass  # somebody was faster; whatever it is, it is opened without links
            finally:
                os.close(fd)
        except OSError as error:
            raise BoxError(
                f"{printable(path)}, which is to be protected, cannot be made: {error.strerror}.",
                hint=f"Make it yourself, or {_WITHOUT}.",
            ) from error


def _make(folder: int, name: str, content: bytes | None) -> None:
    if content is None:
        os.mkdir(name, 0o755, dir_fd=folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o644, dir_fd=folder)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Search:
    """Paths found so far.

    Attributes:
        wait_s: for git to read the configuration of one. Each could have it wait to the end.
    """

    directory: str
    shown: tuple[str, ...]
    git: str | None
    variables: Mapping[str, str]
    held: list[str] = field(default_factory=list[str])
    read_only: list[str] = field(default_factory=list[str])
    made: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    notes: list[str] = field(default_factory=list[str])
    repositories: int = 0
    entries: int = MAX_ENTRIES
    wait_s: float = git_repository.WAIT_S

    def shows(self, path: str) -> bool:
        """Return whether the box can change the file there."""
        return any(within(path, each) for each in (self.directory, *self.shown))


def look(
    directory: str,
    facts: GitFacts,
    *,
    homes: Sequence[str] = (),
    paths: Sequence[str] = (),
    git: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Guarded:
    """Find what is to be protected.

    Args:
        directory: the working directory: absolute, all links followed.
        homes: the user's home directories, all links followed.
        paths: further ones, relative to it.
        git: reads includes of a repository's configuration; a program outside of the working
            directory.
        variables: the caller's.

    Raises:
        BoxError: git's configuration has already been led elsewhere, or one of `paths` is not
            below the working directory.
    """
    search = _Search(
        directory=directory, shown=facts.shown, git=git, variables=dict(variables or {})
    )
    asked = tuple(_checked(paths))
    for path in dict.fromkeys((*PROJECT_FILES, *asked)):
        _protect(search, os.path.join(directory, path), explicit=path in asked)
    for home in homes:
        _start_up(search, home)
    _programs(search)
    for name in _names(search, directory):
        if name.endswith(".code-workspace"):
            _protect(search, os.path.join(directory, name))
    if facts.git_directory and facts.common:
        _worktree(search, facts.git_directory, facts.common)
    if facts.identity.hooks:
        _hooks(search, directory, facts.identity.hooks)
    for repository in _nested(search, directory):
        worktree = os.path.dirname(repository) if repository.endswith("/.git") else repository
        _repository(search, repository, worktree)
    held = {above for path in (*search.held, *search.read_only) for above in _way(search, path)}
    return Guarded(
        held=tuple(sorted({*search.held, *held} - {search.directory, *search.shown})),
        read_only=tuple(sorted(set(search.read_only))),
        made=tuple(sorted(search.made.items())),
        notes=tuple(dict.fromkeys(search.notes)),
    )


def git_directories(directory: str, common: str | None) -> tuple[str, ...]:
    """Git's directories that a box can write to: repositories, their modules and worktrees.

    Args:
        directory: the working directory: absolute, all links followed.
        common: its repository, wherever that lies; None looks for one.
    """
    search = _Search(directory=directory, shown=(), git=None, variables={})
    tops = [common] if common is not None else []
    if _kind(os.path.join(directory, ".git")) == "directory":
        tops.append(os.path.join(directory, ".git"))
    if git_repository.is_repository(directory):
        tops.append(directory)
    found: dict[str, None] = {}
    for top in (*tops, *_nested(search, directory)):
        for path in (top, *_modules(search, os.path.join(top, "modules"))):
            found[path] = None
            linked = os.path.join(path, "worktrees")
            for name in _names(search, linked, only_directories=True):
                found[os.path.join(linked, name)] = None
    return tuple(found)


def _start_up(search: _Search, home: str) -> None:
    for name in START_UP:
        path = os.path.join(home, name)
        if within(search.directory, path):
            search.notes.append(
                f"This directory is a part of ~/{name}: what the box writes here, the host runs."
            )
        elif within(path, search.directory):
            _protect(search, path)


def _programs(search: _Search) -> None:
    """Places of programs are said and left as they are: a `.venv` is there to be changed."""
    path = search.variables.get("PATH", "")
    found = [
        "." if not os.path.isabs(folder) else printable(os.path.relpath(real, search.directory))
        for folder in (path.split(":") if path else ())
        if within(
            real := os.path.realpath(os.path.join(search.directory, folder)), search.directory
        )
    ]
    if found:
        names = ", ".join(list(dict.fromkeys(found))[:3])
        search.notes.append(
            f"PATH has places here ({names}): programs that the box puts there run outside of it, "
            "too, when somebody calls them."
        )


def _way(search: _Search, path: str) -> Iterator[str]:
    """Directories on the way to a path, below what is shown as a whole.

    A directory with a mount in it can be renamed, and another one be made in its place; one that
    is a mount point itself cannot.
    """
    roots = (search.directory, *search.shown)
    above = os.path.dirname(path)
    while above not in roots and any(within(above, root) for root in roots):
        yield above
        above = os.path.dirname(above)


def _checked(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        normal = os.path.normpath(path)
        if os.path.isabs(path) or normal.split("/")[0] in ("..", ".") or "\0" in path:
            raise BoxError(
                f"{path!r} cannot be protected: it is not below the working directory.",
                hint="Give paths relative to it, such as .github or scripts/deploy.sh.",
                exit_code=2,
            )
        yield normal


def _protect(search: _Search, path: str, *, explicit: bool = False) -> None:
    """Note a path for being read-only, if it is there and no link leads to it."""
    kind = _kind(path)
    if kind in ("file", "directory") and os.path.realpath(path) == path:
        search.read_only.append(path)
        return
    shown = printable(os.path.relpath(path, search.directory))
    if kind in ("link", "file", "directory"):
        search.notes.append(
            f"{shown} is reached by a symbolic link, which cannot be protected: the box can "
            "exchange it."
        )
    elif kind is not None:
        search.notes.append(f"{shown} is neither a file nor a directory and is not protected.")
    elif explicit:
        search.notes.append(f"{shown} does not exist and so is not protected: the box can make it.")


_KINDS = {"directory": stat.S_ISDIR, "file": stat.S_ISREG, "link": stat.S_ISLNK}


def _kind(path: str) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return None
    for name, is_kind in _KINDS.items():
        if is_kind(mode):
            return name
    return "other"


def _worktree(search: _Search, own: str, common: str) -> None:
    """The repository of the working directory itself."""
    dot_git = os.path.join(search.directory, ".git")
    if own != dot_git:
        _protect(search, dot_git)  # the file that says where
    if own != common:
        # What says of a linked worktree where its repository is.
        search.held.append(own)
        _existing(search, own, ("commondir", "gitdir"))
    _repository(search, common, search.directory, is_own=True)


def _repository(search: _Search, common: str, worktree: str, *, is_own: bool = False) -> None:
    """A repository that the box can write to: its hooks and its configuration."""
    if search.repositories >= MAX_REPOSITORIES:
        search.notes.append(
            f"There are more than {MAX_REPOSITORIES} repositories here: hooks and configuration of "
            "the others are not protected."
        )
        return
    search.repositories += 1
    # That file belongs to linked worktrees, says gitrepository-layout(5); anywhere else it has git
    # read hooks and configuration from where it likes.
    redirect = os.path.join(common, "commondir")
    can_write = os.access(common, os.W_OK)  # else the box cannot either
    if _kind(redirect) is None:
        if is_own and can_write:
            search.made[redirect] = _ITSELF
            search.read_only.append(redirect)
    elif git_repository.small_file(redirect) == _ITSELF:
        search.read_only.append(redirect)
    else:
        raise BoxError(
            f"{printable(common)}/commondir leads git to hooks and configuration elsewhere: git "
            "makes no such file there, so a box may have.",
            hint=f"Look at what it says before you use git here, and remove it; or {_WITHOUT}.",
        )
    search.held.append(common)
    hooks = os.path.join(common, "hooks")
    if _kind(hooks) is None and can_write:
        search.made[hooks] = None
        search.read_only.append(hooks)
    elif _kind(hooks) is not None:
        _protect(search, hooks)
        _targets(search, hooks)
    per_worktree = can_write and _has_configuration_per_worktree(common)
    _existing(search, common, ("config",))
    _of_worktree(search, common, make=per_worktree)
    _configured(search, os.path.join(common, "config"), worktree)
    for name in _names(search, os.path.join(common, "worktrees"), only_directories=True):
        linked = os.path.join(common, "worktrees", name)
        search.held.append(linked)
        _existing(search, linked, ("commondir", "gitdir"))
        _of_worktree(search, linked, make=per_worktree)
    for module in _modules(search, os.path.join(common, "modules")):
        _repository(search, module, worktree)


def _has_configuration_per_worktree(common: str) -> bool:
    """Return whether git reads `config.worktree` here (git-worktree(1)), as after
    `sparse-checkout`."""
    data = git_repository.small_file(os.path.join(common, "config"), MAX_CONFIG_BYTES) or b""
    return b"worktreeconfig" in data.lower()


def _of_worktree(search: _Search, folder: str, *, make: bool) -> None:
    """The configuration of one worktree, in its git directory; git would read one that comes."""
    path = os.path.join(folder, "config.worktree")
    if _kind(path) is None and make:
        search.made[path] = b""
        search.read_only.append(path)
    else:
        _existing(search, folder, ("config.worktree",))


def _existing(search: _Search, folder: str, names: Sequence[str]) -> None:
    for name in names:
        _protect(search, os.path.join(folder, name))


def _targets(search: _Search, hooks: str) -> None:
    """Add the targets of links among the hooks."""
    for name in _names(search, hooks):
        path = os.path.join(hooks, name)
        if os.path.islink(path):
            real = os.path.realpath(path)
            if search.shows(real) and _kind(real) == "file":
                search.read_only.append(real)


def _hooks(search: _Search, worktree: str, named: str) -> None:
    """A directory of hooks that configuration names, from the working tree's top on."""
    path = os.path.normpath(os.path.join(worktree, os.path.expanduser(named)))
    if search.shows(path) and path != worktree:
        _protect(search, path)
        _targets(search, path)


def _configured(search: _Search, config: str, worktree: str) -> None:
    """Files that a repository's configuration includes, and hooks that it keeps elsewhere."""
    data = git_repository.small_file(config, MAX_CONFIG_BYTES)
    if search.git is None or _kind(config) != "file":
        return
    if data is not None and not any(word in data.lower() for word in (b"include", b"hookspath")):
        return  # git takes as long to start as all else here
    listed = git_repository.run(
        search.git,
        ["config", "--file", config, "--includes", "-z", "--show-origin", "--list"],
        search.variables,
        wait_s=search.wait_s,
    )
    if isinstance(listed, str):
        search.notes.append(f"What {printable(config)} includes is not protected: {listed}.")
        if listed.startswith(git_repository.TOOK_TOO_LONG):
            search.wait_s = SHORT_WAIT_S
        return
    fields = os.fsdecode(listed).split("\0")
    for origin, entry in zip(fields[::2], fields[1::2], strict=False):
        included = os.path.normpath(origin.removeprefix("file:"))
        if included != config and search.shows(included):
            _protect(search, included)
        key, _, value = entry.partition("\n")
        if key == "core.hookspath" and value:
            _hooks(search, worktree, value)


def _modules(search: _Search, folder: str, depth: int = 4) -> Iterator[str]:
    """Git directories of submodules; names of submodules can have slashes."""
    for name in _names(search, folder, only_directories=True):
        path = os.path.join(folder, name)
        if _kind(os.path.join(path, "HEAD")) == "file":
            yield path
        elif depth > 1:
            yield from _modules(search, path, depth - 1)


def _nested(search: _Search, directory: str, depth: int = 2) -> Iterator[str]:
    """Repositories below the working directory: of a directory full of projects; bare ones."""
    for name in _names(search, directory, only_directories=True):
        if name.startswith(".") or name == "node_modules":
            continue  # caches and what others have made, with thousands of names
        path = os.path.join(directory, name)
        if _kind(os.path.join(path, ".git")) == "directory":
            yield os.path.join(path, ".git")
        elif git_repository.is_repository(path):
            yield path
        elif depth > 1:
            yield from _nested(search, path, depth - 1)


def _names(search: _Search, folder: str, *, only_directories: bool = False) -> list[str]:
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
