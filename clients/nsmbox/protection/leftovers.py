"""Leftovers of a box in git's directories that git on the host would run: reported when it has
ended.

An agent rebases, makes repositories and linked worktrees; that cannot be kept from it as a hook can
(`nsmbox.protection.guarded_files`). But the list of a rebase that was not brought to its end may
have `exec` lines, which the next `git rebase --continue` runs, and a repository that was not there
before has a configuration and hooks of its own, which `git status` obeys. So what is there after a
box and was not there before is said in plain words. Files are read here, and git is not run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nsmbox.protection import git_repository, guarded_files, submodules
from nsmbox.protection.secrets import printable

MAX_LIST_BYTES = 1024 * 1024
MAX_LOOKED_AT = 256
MAX_TOLD = 8
MAX_SHOWN_CHARS = 120

REBASE_LIST = "rebase-merge/git-rebase-todo"
"""Path in a git directory; git's only list that contains commands (git-rebase(1))."""

# Not compiled here, which takes longer than all else before a box: hardly one needs them.
_EXEC = rb"[ \t]*(?:exec|x)[ \t]+(.*\S)"
_SECTION = r'\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]'
_ENTRY = r"\s*([A-Za-z][\w-]*)\s*(?:=\s*(.*?))?\s*$"

_RUNS = (
    r"core\.(fsmonitor|hookspath|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)"
    r"|include\.path|includeif\..*\.path|sequence\.editor|interactive\.difffilter"
    r"|diff\.(external|.*\.(command|textconv))|filter\..*\.(clean|smudge|process)|merge\..*\.driver"
    r"|(merge|diff)tool\..*\.(cmd|path)|credential\.(.*\.)?helper|gpg\.(.*\.)?program|pager\..*"
    r"|remote\..*\.(uploadpack|receivepack|vcs)|submodule\..*\.update|trailer\..*\.(command|cmd)"
    r"|tar\..*\.command|sendemail\..*cmd|extensions\.worktreeconfig|alias\..*"
)
"""Entries of a configuration that name programs or lead to others (git-config(1))."""

_HARMLESS = ("true", "false", "yes", "no", "on", "off", "1", "0", "")


class Before(NamedTuple):
    """State when a box began.

    Attributes:
        directory: the working directory.
        common: its repository; None where it had none.
        repositories: git directories that its files of protection hold for.
        lists: commands in lists of rebases, by the lists' paths.
    """

    directory: str
    common: str | None
    repositories: frozenset[str]
    lists: Mapping[str, tuple[str, ...]]


def before(directory: str, common: str | None) -> Before:
    """Record the present state.

    Args:
        directory: the working directory: absolute, all links followed.
        common: its repository, as in `git_repository.GitFacts`.
    """
    found = guarded_files.git_directories(directory, common)
    lists = {path: commands(os.path.join(path, REBASE_LIST)) for path in found}
    return Before(
        directory=directory,
        common=common,
        repositories=frozenset(found),
        lists={path: lines for path, lines in lists.items() if lines},
    )


def told(was: Before) -> str:
    """Describe what has come since, for people; empty if there is nothing to tell."""
    lines = list(_lines(was))
    if not lines:
        return ""
    head = (
        f"before you use git in {printable(was.directory)}, look at what the box has left there; "
        "git would run it here:"
    )
    more = [f"and {len(lines) - MAX_TOLD} more"] if len(lines) > MAX_TOLD else []
    return "\n  ".join([head, *lines[:MAX_TOLD], *more])


def under_way(was: Before) -> str:
    """Describe what was there already, for people; empty if there is nothing to tell."""
    found = [
        f"{_relative(path, was)}/{REBASE_LIST}: {_short(line)}"
        for path, lines in was.lists.items()
        for line in lines
    ]
    if not found:
        return ""
    more = [f"and {len(found) - MAX_TOLD} more"] if len(found) > MAX_TOLD else []
    head = "a rebase is under way here whose next `git rebase --continue` runs commands:"
    return "\n  ".join([head, *found[:MAX_TOLD], *more])


def _lines(was: Before) -> Iterator[str]:
    for path in _git_directories(was):
        shown = _relative(path, was)
        earlier = was.lists.get(path, ())
        for command in commands(os.path.join(path, REBASE_LIST)):
            if command not in earlier:
                yield f"{shown}/{REBASE_LIST}: `git rebase --continue` runs {_short(command)}"
        if path not in was.repositories:
            for name in ("config", "config.worktree"):
                for entry in entries(os.path.join(path, name)):
                    yield f"{shown}/{name}: {_short(entry)}"
            for name in hooks(os.path.join(path, "hooks")):
                yield f"{shown}/hooks/{printable(name)}"


def _git_directories(was: Before) -> Iterator[str]:
    """Yield the git directories of now: near the top, and those of submodules, by the index of
    each, since `git status` visits them wherever they are."""
    waiting = list(guarded_files.git_directories(was.directory, was.common))
    seen: set[str] = set()
    while waiting and len(seen) < MAX_LOOKED_AT:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path
        if path == was.common:
            worktree = was.directory
        elif path.endswith("/.git"):
            worktree = os.path.dirname(path)
        else:
            continue
        waiting += submodules.git_directories(os.path.join(path, "index"), worktree)


def commands(path: str) -> tuple[str, ...]:
    """Commands in a list of git's of what is still to do."""
    data = git_repository.small_file(path, MAX_LIST_BYTES) or b""
    if not data:
        return ()
    found = (re.fullmatch(_EXEC, line.rstrip(b"\r")) for line in data.split(b"\n"))
    return tuple(os.fsdecode(match[1]) for match in found if match)


def entries(path: str) -> Iterator[str]:
    """Entries of a file of git's configuration by which it runs programs, or reads other files.

    Values that go on in a next line are not put together: what begins them is told.
    """
    data = git_repository.small_file(path, guarded_files.MAX_CONFIG_BYTES) or b""
    section = ""
    for line in os.fsdecode(data).removeprefix("\ufeff").splitlines():
        text = line
        while header := re.match(_SECTION, text):
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            text = text[header.end() :]
        entry = re.match(_ENTRY, text)
        if entry is None:
            continue
        key, value = f"{section}.{entry[1].lower()}", entry[2] or ""
        if not re.fullmatch(_RUNS, key, re.ASCII):
            continue
        if key.startswith("alias.") and not value.strip('"').startswith("!"):
            continue
        if key.startswith("core.fsmonitor") and value.lower() in _HARMLESS:
            continue
        yield f"{key} = {value}"


def hooks(folder: str) -> Iterator[str]:
    """Names of hooks that git runs: programs, and no samples."""
    try:
        with os.scandir(folder) as found:
            names = sorted(
                entry.name
                for entry in found
                if not entry.name.endswith(".sample") and os.access(entry.path, os.X_OK)
            )
    except OSError:
        return
    yield from names


def _relative(path: str, was: Before) -> str:
    return printable(os.path.relpath(path, was.directory))


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}..."
