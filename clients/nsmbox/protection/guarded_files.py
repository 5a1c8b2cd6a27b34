"""Files of a project that the host runs by itself later: a box must not be able to change them.

A git hook, a line of git's or an editor's configuration, an MCP server of the project: whoever
writes one there has the user's rights as soon as the user works in that directory. Those that exist
are shown read-only. For those that do not exist there are stand-ins while a box runs
(`nsmbox.protection.stand_ins`), and git's `hooks` and `commondir` are made to stay. What people
run themselves (a Makefile, a test) is as trusted as its writer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nsm import autorun
from nsm.autorun import CLAUDE_WORKTREES
from nsm.dataclass import dataclass, replace
from nsm.paths import open_linkless
from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection import guarded_git
from nsmbox.protection.git_repository import GitFacts
from nsmbox.protection.search import (
    OwnDirectory,
    Search,
    followed,
    kind_of,
    names_in,
    protect,
    protect_inner_links,
    way_to,
)
from nsmbox.protection.secrets import printable, within
from nsmbox.protection.stand_ins import StandIn

_PRIVATE_MB = 64
"""Size of what a box has of its own in the place of a directory."""

_RUN = "protected: the host would run it"

_TOLD_PROGRAMS = 4

MAX_WORKTREES = 64
"""Each costs two mounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """Protected paths of a working directory.

    Attributes:
        held: directories that stay as changeable as they were, and cannot be renamed: what lies in
            them would otherwise be protected under another name.
        made: those of `read_only` that are to be made at launch, with their content; None stands
            for an empty directory.
        stand_ins: for what is not there, while a box runs.
        links: links that lead to such files, and what each says: the box cannot exchange them.
        programs: files that the box can change and git's configuration names as programs, with the
            entry's key.
    """

    held: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    made: tuple[tuple[str, bytes | None], ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    own: tuple[OwnDirectory, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    unprotectable: tuple[str, ...] = ()
    programs: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def joined(parts: Iterable[Guarded]) -> Guarded:
    """The protected paths of several directories."""
    each = list(parts)
    names = Guarded.__annotations__
    return Guarded(
        **{n: tuple(dict.fromkeys(one for part in each for one in getattr(part, n))) for n in names}
    )


def mounts(guarded: Guarded) -> tuple[Mount, ...]:
    """List the mounts that protect them; after the working directory and the repository."""
    kinds = dict.fromkeys(guarded.held, False) | dict.fromkeys(guarded.read_only, True)
    made = {path for path, _ in guarded.made}
    protected = [
        Mount(
            kind="ro-bind" if read_only else "bind",
            target=path,
            source=path,
            linkless=True,
            made=path in made,
            why=_RUN if read_only else "cannot be renamed",
        )
        for path, read_only in sorted(kinds.items())
    ]
    own = (mount for each in guarded.own for mount in _own(each))
    links = (
        Mount(kind="link", target=path, source=says, linkless=True, why=_RUN)
        for path, says in guarded.links
    )
    return (*protected, *own, *links, *map(_stand_in, guarded.stand_ins))


def _own(each: OwnDirectory) -> Iterator[Mount]:
    yield _memory(each.path)
    for name, data in each.copies:
        yield Mount(kind="file", target=f"{each.path}/{name}", data=data, mode=0o644, why="a copy")
    for name in each.shown:
        path = f"{each.path}/{name}"
        yield Mount(kind="ro-bind", target=path, source=path, linkless=True, why=_RUN)


def _memory(path: str, *, stand_in: bool = False) -> Mount:
    return Mount(
        kind="tmpfs",
        target=path,
        size_mb=_PRIVATE_MB,
        linkless=True,
        made=stand_in,
        stand_in=stand_in,
        why="the box's own: the host would run it",
    )


def _stand_in(each: StandIn) -> Mount:
    why = "cannot be made: the host would run it"
    if each.private:
        return _memory(each.path, stand_in=True)
    if each.kind == "directory":
        return Mount(
            kind="ro-bind",
            target=each.path,
            source=each.path,
            linkless=True,
            made=True,
            stand_in=True,
            why=why,
        )
    return Mount(
        kind="ro-file",
        target=each.path,
        data=each.content.encode(),
        mode=0o444,
        linkless=True,
        made=True,
        stand_in=True,
        why=why,
    )


def make(guarded: Guarded) -> None:
    """Make what has to be there to be protected; at launch only."""

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
                hint=f"Make it yourself, or {guarded_git.WITHOUT}.",
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


def look(
    directory: str,
    facts: GitFacts,
    *,
    homes: Sequence[str] = (),
    paths: Sequence[str] = (),
    others: Sequence[str] = (),
    kept: Sequence[str] = (),
    unprotected: Sequence[str] = (),
    standing: Collection[str] = (),
    git: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Guarded:
    """Find what is to be protected.

    Args:
        others: directories besides that the box can change, all links followed.
        kept: those of the host that it can change at other places.
        unprotected: those that the box may change and make all the same, relative to it.
        standing: paths of stand-ins that are there for other boxes.
        git: reads includes of a repository's configuration; a program outside of the working
            directory.

    Raises:
        BoxError: git's configuration has already been led elsewhere, or one of `paths` is not
            below the working directory.
    """
    search = Search(
        directory=directory,
        shown=(*facts.shown, *others),
        git=git,
        variables=dict(variables or {}),
        standing=standing,
        kept=kept,
        unprotected=tuple(os.path.join(directory, path) for path in _checked(unprotected)),
    )
    for path in dict.fromkeys(_checked(paths)):
        protect(search, os.path.join(directory, path), autorun.DENIED)
    is_empty = _is_empty(directory, standing)
    if is_empty and not directory.endswith(".worktrees"):  # nobody opens those as a project
        search.unprotectable.append(
            "This directory is empty, so the box can make all files in it; nsm names at the end "
            "which of them this computer would run."
        )
    for entry in autorun.NAMES:
        if entry.measure in ("denied", "read-only") and not entry.path.startswith("*"):
            protect(search, os.path.join(directory, entry.path), None if is_empty else entry)
    for home in homes:
        _start_up(search, home)
    _programs(search)
    for name in names_in(search, directory):
        if name.endswith(".code-workspace"):
            protect(search, os.path.join(directory, name))
    if facts.git_directory and facts.common:
        guarded_git.worktree_repository(search, facts.git_directory, facts.common)
    elif os.path.isdir(dot_git := os.path.join(directory, ".git")):
        followed(search, dot_git)  # a link to what the box cannot change
    else:
        protect(search, dot_git)
    if facts.identity.hooks:
        guarded_git.hooks_elsewhere(search, directory, facts.identity.hooks)
    for key, value in facts.identity.programs:
        guarded_git.named_programs(search, directory, key, value)
    for repository, worktree in guarded_git.nested(search, directory):
        guarded_git.repository(search, repository, worktree)
    protect_inner_links(search)
    programs = _changeable(search)
    if said := of_programs(programs, directory):
        search.notes.insert(0, said)
    own = [each.path for each in search.own]
    closed = (*search.read_only, *own)  # in these the host's links cannot be exchanged
    links = {
        path: says
        for path, says in search.links.items()
        if not any(within(path, each) for each in closed)
    }
    all_paths = (*search.held, *search.read_only, *search.stand_ins, *own, *links)
    held = {above for path in all_paths for above in way_to(search, path)}
    return Guarded(
        held=tuple(sorted({*search.held, *held} - {search.directory, *search.shown})),
        read_only=tuple(sorted(set(search.read_only))),
        made=tuple(sorted(search.made.items())),
        stand_ins=tuple(search.stand_ins[path] for path in sorted(search.stand_ins)),
        own=tuple(search.own),
        links=tuple(sorted(links.items())),
        unprotectable=tuple(dict.fromkeys(search.unprotectable)),
        programs=programs,
        notes=tuple(dict.fromkeys(search.notes)),
    )


def _is_empty(directory: str, standing: Collection[str]) -> bool:
    """Return whether a directory is as `git clone` and makers of new projects want it: where there
    are stand-ins, they do nothing."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return {name for name in names if os.path.join(directory, name) not in standing} <= {".git"}


def _changeable(search: Search) -> tuple[tuple[str, str], ...]:
    """Programs that git's configuration names and that nothing protects."""
    protected = (*search.read_only, *search.stand_ins, *(each.path for each in search.own))
    return tuple(
        (path, key)
        for path, key in sorted(search.programs.items())
        if not any(within(os.path.realpath(path), each) for each in protected)
    )


def of_programs(programs: Sequence[tuple[str, str]], directory: str) -> str:
    """A sentence about programs that a box can change and git runs; empty if there are none."""
    if not programs:
        return ""
    told = [
        f"{printable(os.path.relpath(path, directory))} ({printable(key)})"
        for path, key in programs[:_TOLD_PROGRAMS]
    ]
    more = len(programs) - len(told)
    names = ", ".join([*told, *([f"{more} more"] if more else [])])
    return (
        f"git on this computer runs {names}, as its configuration says, and the box can change "
        "that: name it in `protect_paths` of [box] to prevent it."
    )


def _start_up(search: Search, home: str) -> None:
    for entry in autorun.IN_HOME:
        path = os.path.join(home, entry.path)
        if within(search.directory, path):
            search.notes.append(
                f"This directory is a part of ~/{entry.path}: what the box writes here, the host "
                "runs."
            )
        elif within(path, search.directory):
            protect(search, path, entry)


def _programs(search: Search) -> None:
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


def of_worktrees(directory: str) -> Guarded:
    """Files in linked worktrees that say where their repository is: git there obeys them."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        names = []
    places = [os.path.join(directory, name) for name in names]
    linked = [
        place
        for place in places
        if kind_of(place) == "directory" and kind_of(os.path.join(place, ".git")) == "file"
    ]
    over = f"There are more than {MAX_WORKTREES} worktrees: the others are not protected."
    return Guarded(
        held=tuple(linked[:MAX_WORKTREES]),
        read_only=tuple(os.path.join(place, ".git") for place in linked[:MAX_WORKTREES]),
        notes=(over,) if len(linked) > MAX_WORKTREES else (),
    )


def with_claude_worktrees(guarded: Guarded, directory: str, *, make: bool) -> Guarded:
    """Let Claude Code make its worktrees, which lie beside its settings; what else is there stays
    protected.

    Args:
        directory: the working directory: the top of a repository.
        make: make the directory if even that of the settings is not there.
    """
    settings, path = (os.path.join(directory, *CLAUDE_WORKTREES[:n]) for n in (1, 2))
    absent = any(each.path == settings for each in guarded.stand_ins)
    if (settings not in guarded.read_only and not (absent and make)) or (
        os.path.lexists(path) and kind_of(path) != "directory"
    ):
        return guarded
    missing = [each for each in (settings, path) if absent or not os.path.lexists(each)]
    found = Guarded(
        held=(path,), read_only=(settings,), made=tuple((each, None) for each in missing)
    )
    kept = tuple(each for each in guarded.stand_ins if each.path != settings)
    return joined((replace(guarded, stand_ins=kept), found, of_worktrees(path)))
