"""Files of repositories that a box must not change, since git on the host obeys them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from nsm import autorun
from nsm.git import is_repository, small_file
from nsmbox.model.plan import BoxError
from nsmbox.protection import git_repository
from nsmbox.protection.git_repository import MAX_CONFIG_BYTES
from nsmbox.protection.search import Search, followed, kind_of, names_in, protect
from nsmbox.protection.secrets import printable

MAX_REPOSITORIES = 64
"""Submodules and repositories in a workspace: each costs three mounts."""

SHORT_WAIT_S = 0.5
"""Time limit for git after it has once waited for something that is no file. It needs milliseconds.
"""

WITHOUT = "start the box without protection (--no-protect, or protect = false in [box])"

_ITSELF = b".\n"
"""`commondir` of a repository that shares with nobody: git works as if there were none."""


def worktree_repository(search: Search, own: str, common: str) -> None:
    """The repository of the working directory itself."""
    dot_git = os.path.join(search.directory, ".git")
    if followed(search, dot_git) != own:
        protect(search, dot_git)  # the file that says where
    if own != common:
        # What says of a linked worktree where its repository is.
        search.held.append(own)
        _existing(search, own, ("commondir", "gitdir"))
    repository(search, common, search.directory, is_own=True)


def repository(search: Search, common: str, worktree: str, *, is_own: bool = False) -> None:
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
    if kind_of(redirect) is None:
        if is_own and can_write and not search.allows(redirect):
            search.made[redirect] = _ITSELF
            search.read_only.append(redirect)
    elif small_file(redirect) == _ITSELF:
        search.read_only.append(redirect)
    else:
        raise BoxError(
            f"{printable(common)}/commondir leads git to hooks and configuration elsewhere: git "
            "makes no such file there, so a box may have.",
            hint=f"Look at what it says before you use git here, and remove it; or {WITHOUT}.",
        )
    search.held.append(common)
    hooks = os.path.join(common, "hooks")
    if kind_of(hooks) is None and can_write and not search.allows(hooks):
        search.made[hooks] = None
        search.read_only.append(hooks)
    elif kind_of(hooks) is not None:
        protect(search, hooks)
    per_worktree = can_write and _has_configuration_per_worktree(common)
    _existing(search, common, ("config",))
    _of_worktree(search, common, make=per_worktree)
    for name in ("config", "config.worktree"):
        _configured(search, os.path.join(common, name), worktree)
    worktrees = followed(search, os.path.join(common, "worktrees"))
    for name in (
        names_in(search, worktrees, only_directories=True) if search.shows(worktrees) else ()
    ):
        linked = os.path.join(worktrees, name)
        search.held.append(linked)
        _existing(search, linked, ("commondir", "gitdir"))
        _of_worktree(search, linked, make=per_worktree)
    for module in _modules(search, followed(search, os.path.join(common, "modules"))):
        repository(search, module, worktree)


def _has_configuration_per_worktree(common: str) -> bool:
    """Return whether git reads `config.worktree` here (git-worktree(1)), as after
    `sparse-checkout`."""
    config = os.path.realpath(os.path.join(common, "config"))
    data = small_file(config, MAX_CONFIG_BYTES) or b""
    return b"worktreeconfig" in data.lower()


def _of_worktree(search: Search, folder: str, *, make: bool) -> None:
    """The configuration of one worktree, in its git directory; git would read one that comes."""
    path = os.path.join(folder, "config.worktree")
    if kind_of(path) is None and make:
        search.made[path] = b""
        search.read_only.append(path)
    else:
        _existing(search, folder, ("config.worktree",))


def _existing(search: Search, folder: str, names: Sequence[str]) -> None:
    for name in names:
        protect(search, os.path.join(folder, name))


def hooks_elsewhere(search: Search, worktree: str, named: str) -> None:
    """A directory of hooks that configuration names, from the working tree's top on."""
    protect(search, os.path.join(worktree, os.path.expanduser(named)), autorun.DENIED)


def named_programs(search: Search, worktree: str, key: str, value: str) -> None:
    """Note the programs here that an entry of a configuration names, so that people are told."""
    if git_repository.names_program(key, value):
        for path in git_repository.paths_in(value, worktree):
            for each in (path, os.path.realpath(path)):
                if search.shows(each) and not search.allows(each):
                    search.programs.setdefault(each, key)


def _configured(search: Search, config: str, worktree: str) -> None:
    """Files that a repository's configuration includes, hooks that it keeps elsewhere, and programs
    that it names."""
    real = followed(search, config)
    data = small_file(real, MAX_CONFIG_BYTES)
    if search.git is None or kind_of(real) != "file" or not search.shows(real):
        return
    if data is not None and not any(word in data.lower() for word in git_repository.WORDS):
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
        included = origin.removeprefix("file:")
        if included != config:
            protect(search, included)
        key, _, value = entry.partition("\n")
        if re.fullmatch(r"include(if\..*)?\.path", key, re.DOTALL) and value:
            place = os.path.join(os.path.dirname(included), os.path.expanduser(value))
            protect(search, place, autorun.DENIED_FILE)
        if key == "core.hookspath" and value:
            hooks_elsewhere(search, worktree, value)
        named_programs(search, worktree, key, value)


def _modules(search: Search, folder: str, depth: int = 4) -> Iterator[str]:
    """Git directories of submodules; names of submodules can have slashes."""
    if not search.shows(folder):
        return
    for name in names_in(search, folder, only_directories=True):
        path = os.path.join(folder, name)
        if kind_of(os.path.join(path, "HEAD")) == "file":
            yield path
        elif depth > 1:
            yield from _modules(search, path, depth - 1)


def nested(search: Search, directory: str, depth: int = 2) -> Iterator[tuple[str, str]]:
    """Repositories below the working directory, each with its working tree: of a directory full of
    projects; bare ones."""
    for name in names_in(search, directory, only_directories=True):
        if name.startswith(".") or name == "node_modules":
            continue  # caches and what others have made, with thousands of names
        path = os.path.join(directory, name)
        dot_git = os.path.join(path, ".git")
        if kind_of(dot_git) == "link":
            dot_git = followed(search, dot_git)
        if search.shows(dot_git) and kind_of(dot_git) == "directory":
            yield dot_git, path
        elif is_repository(path):
            yield path, path
        elif depth > 1:
            yield from nested(search, path, depth - 1)
