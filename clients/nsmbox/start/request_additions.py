"""Directories that nsm adds to a request: those that the agent's own arguments and settings name,
the whole repository, and a directory for git's worktrees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

from nsm import paths
from nsm.dataclass import replace
from nsm.git import is_repository
from nsmbox.host import added_directories
from nsmbox.host.added_directories import RequestedDirectory
from nsmbox.host.facts import BoxRequest, Facts
from nsmbox.model.plan import BoxError
from nsmbox.protection import git_repository, secrets

WORKTREES = ".worktrees"
"""Ends the name of a directory for worktrees, which is beside that of the repository."""

_MADE = "--worktrees"


def of_arguments(request: BoxRequest) -> BoxRequest:
    """Add the directories that the agent's arguments name."""
    directory = _current()
    if not request.profile.mcp or not request.command or directory is None:
        return request

    command, asked = added_directories.in_arguments(request.profile.mcp, request.command, directory)
    return replace(request, command=command, add=(*request.add, *asked))


def at_the_top(request: BoxRequest, variables: Mapping[str, str], *, ask: bool) -> BoxRequest:
    """Widen the box to the whole repository, if a person agrees: git does not work without `.git`.
    This process then changes to its top.
    """
    start = _current()
    if start is None or os.path.lexists(os.path.join(start, ".git")):
        return request
    above: str = start
    while not os.path.lexists(os.path.join(above, ".git")):
        if above == "/":
            return request
        above = os.path.dirname(above)
    home = paths.home()
    known = secrets.look(home, variables, os.geteuid(), start)
    top = git_repository.repository_above(start, known)
    if top is None or secrets.why_refused(known, start) or not _is_ours(top, known):
        return request
    from nsmbox.consent.confirm import ask_once  # noqa: PLC0415  # in a part of a repository alone
    from nsmbox.consent.readable import path  # noqa: PLC0415

    home = os.path.realpath(home)
    answer = ask_once(
        start,
        f"top {top}",
        f"This is a part of the repository {path(top, home)}, and git does not work in a part.\n"
        "Let the box have the whole repository?",
        ask=ask,
    )
    if not answer:
        return request
    os.chdir(top)
    return replace(
        request,
        start=start,
        add=tuple(replace(each, path=_absolute(start, each.path)) for each in request.add),
        hide=tuple(
            _absolute(start, text) if "/" in text.rstrip("/") else text for text in request.hide
        ),
    )


def of_worktrees(request: BoxRequest, *, make: bool) -> BoxRequest:
    """Add the directory for worktrees, if this request or an earlier one asked for it."""
    directory = _current()
    if directory is None or request.worktrees is False:
        return request
    from nsmbox.consent import agreements  # noqa: PLC0415

    if request.worktrees is None and not agreements.answer_to(directory, "worktrees"):
        return request
    path = directory + WORKTREES
    if not os.path.isdir(os.path.join(directory, ".git")):
        if request.worktrees is None:
            return request
        raise BoxError(
            "--worktrees: this is not the top of a repository.",
            hint="Start the box at its top, where its directory .git is.",
            exit_code=2,
        )
    made = False
    if not os.path.lexists(path):
        if not make:
            return request
        try:
            os.mkdir(path)
        except OSError as error:
            raise BoxError(
                f"{secrets.printable(path)}, for worktrees, cannot be made: {error.strerror}.",
                hint="Make it yourself, or use --no-worktrees.",
            ) from error
        made = True
    if os.path.islink(path):
        raise BoxError(
            f"{secrets.printable(path)}, for worktrees, is a symbolic link.",
            hint="Put a directory there, or use --no-worktrees.",
        )
    asked = RequestedDirectory(path=path, writable=True, by=_MADE if made else "for worktrees")
    return replace(request, add=(*request.add, asked))


@contextmanager
def unmade(request: BoxRequest) -> Generator[None]:
    """Remove the directory for worktrees if it was created here and no box starts."""
    try:
        yield
    except BaseException:
        for each in request.add:
            if each.by == _MADE:
                with suppress(OSError):
                    os.rmdir(each.path)
        raise


def remember_worktrees(request: BoxRequest) -> None:
    """Remember `--worktrees` or `--no-worktrees` for later boxes in this directory."""
    directory = _current()
    if directory is None or request.worktrees is None:
        return
    from nsmbox.consent import agreements  # noqa: PLC0415

    with suppress(OSError):  # it is asked for again the next time
        if request.worktrees or agreements.answer_to(directory, "worktrees"):
            agreements.remember_answer(directory, "worktrees", yes=request.worktrees)


def of_settings(
    request: BoxRequest, facts: Facts, *, ask: bool, tell: Callable[[str], None]
) -> list[RequestedDirectory]:
    """Find the directories that the agent's settings name and that a person agrees to."""
    if not request.profile.mcp:
        return []

    kept = facts.state[0].source if facts.state else None
    agreed: list[RequestedDirectory] = []
    for asked in added_directories.in_settings(request.profile.mcp, facts.directory, kept):
        if added_directories.is_writable(facts.places, asked.path) is not None:
            continue
        try:
            added_directories.look([asked], facts.directory, facts.secrets, facts.home)
        except BoxError as error:
            tell(f"not shown: {error.message}")
            continue
        if _agrees_to(asked, facts, ask=ask, tell=tell):
            agreed.append(asked)
    return agreed


def _agrees_to(
    asked: RequestedDirectory, facts: Facts, *, ask: bool, tell: Callable[[str], None]
) -> bool:
    from nsmbox.consent.confirm import ask_once  # noqa: PLC0415  # hardly one box needs it
    from nsmbox.consent.readable import path  # noqa: PLC0415

    shown, by = path(asked.path, facts.home), path(asked.by, facts.home)
    answer = ask_once(
        facts.directory,
        f"add {asked.path}",
        f"{by} names a directory that the box would not have: {shown}\n"
        "Let the box read and change it?",
        ask=ask,
    )
    if answer is None:
        tell(f"{by} names {shown}, which the box does not have; --add or `add` in [box] adds it")
    return answer is True


def _current() -> str | None:
    """The current directory; None if it was removed, which `lookup` reports."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_ours(top: str, known: secrets.Known) -> bool:
    if secrets.why_refused(known, top) is not None:
        return False
    place = os.path.join(top, ".git")
    if os.path.islink(place):
        return False
    return os.stat(top).st_uid == os.lstat(place).st_uid == os.geteuid() and (
        is_repository(place) or os.path.isfile(place)
    )


def _absolute(start: str, path: str) -> str:
    """Make a path absolute, as relative ones begin elsewhere from now on."""
    return path if not path or path.split("/", maxsplit=1)[0] == "~" else os.path.join(start, path)
