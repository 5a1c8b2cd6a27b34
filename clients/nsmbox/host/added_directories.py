"""Directories that a box shows beside its own: by `--add`, agents' options and their settings.

What the user types on the command line is asked for by the user. Settings may have been written by
anybody who worked in the project, and by an earlier box: nsm asks before it shows what they name.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from nsm.dataclass import dataclass
from nsm.git import small_file
from nsmbox.model.plan import BoxError
from nsmbox.protection import secrets
from nsmbox.protection.secrets import Known, printable, within

MAX_ADDED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDirectory:
    """A directory that a box is asked to show.

    Attributes:
        path: as it was named; relative ones begin at the working directory.
        by: the option or the file that names it.
    """

    path: str
    writable: bool
    by: str = "--add"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedDirectory:
    """A directory that the box shows.

    Attributes:
        path: absolute, all links followed; the same in the box.
    """

    path: str
    writable: bool


def parse(text: str, by: str = "--add") -> RequestedDirectory:
    """Read `DIR`, `DIR:ro` or `DIR:rw`. A name that ends so itself needs another one after it."""
    for ending, writable in ((":ro", False), (":rw", True)):
        if text.endswith(ending):
            return RequestedDirectory(path=text.removesuffix(ending), writable=writable, by=by)
    return RequestedDirectory(path=text, writable=False, by=by)


def look(
    asked: Iterable[RequestedDirectory],
    directory: str,
    known: Known,
    home: str,
    *,
    kept: Sequence[str] = (),
) -> tuple[tuple[AddedDirectory, ...], tuple[str, ...]]:
    """Find the directories that are asked for.

    Args:
        directory: the working directory: absolute, all links followed.
        kept: paths in the box of what the agent keeps, which nothing may cover.

    Returns:
        Those that give the box something, sorted, so that outer ones come first; and sentences for
        people.
    """
    found: dict[str, bool] = {}
    notes: list[str] = []
    for each in asked:
        path = _checked(each, directory, known, home, notes)
        if any(within(place, path) for place in kept):
            raise _refused(each, "holds the place of what the agent keeps")
        found[path] = found.get(path, False) or each.writable
    if len(found) > MAX_ADDED:
        raise BoxError(
            f"{len(found)} directories are to be added, and a box shows at most {MAX_ADDED}.",
            hint="Add a directory that they lie in.",
            exit_code=2,
        )
    places = {**found, directory: True}
    added = [
        AddedDirectory(path=path, writable=found[path])
        for path in sorted(found)
        if path != directory and is_writable(places, os.path.dirname(path)) != found[path]
    ]
    return tuple(added), tuple(dict.fromkeys(notes))


def is_writable(places: Mapping[str, bool], path: str) -> bool | None:
    """Return whether a box can write at a path; None if it does not show it.

    Args:
        places: real paths of the directories that it shows, with the same.
    """
    while path not in places:
        if path == "/":
            return None
        path = os.path.dirname(path)
    return places[path]


def _checked(
    asked: RequestedDirectory, directory: str, known: Known, home: str, notes: list[str]
) -> str:
    """The real path of a directory that may be added."""
    name = asked.path
    if not name or "\0" in name:
        raise _refused(asked, "names no directory")
    expanded = os.path.join(home, name[1:].lstrip("/")) if name.split("/")[0] == "~" else name
    path = os.path.join(directory, expanded)
    real = os.path.realpath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise _refused(asked, f"cannot be shown: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(asked, "is not a directory")
    if real == directory and not asked.writable:
        raise _refused(asked, "is the working directory, in which the box writes")
    if real != directory and (reason := secrets.why_refused(known, real)):
        raise _refused(asked, reason)
    if not os.access(real, os.R_OK | os.X_OK):
        raise _refused(asked, "cannot be read by you")
    if asked.writable and not os.access(real, os.W_OK):
        raise _refused(asked, "cannot be written by you; `:ro` shows it read-only")
    if os.path.normpath(path) != real:
        notes.append(f"{printable(name)} leads to {printable(real)}, and is there in the box.")
    if status.st_uid not in (os.geteuid(), 0):
        notes.append(f"{printable(name)} belongs to {_owner(status.st_uid)}, who can change it.")
    return real


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _refused(asked: RequestedDirectory, reason: str) -> BoxError:
    return BoxError(
        f"{asked.by}: {printable(asked.path)!r} {reason}.",
        hint="Name a directory of your own, with :ro or :rw: nsm box --add ../library:ro",
        exit_code=2,
    )


MAX_SETTINGS_BYTES = 1024 * 1024
MAX_NAMED = 32
"""Directories of one agent's settings that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryOptions:
    """Places where an agent names directories.

    Attributes:
        several: the option takes all words up to the next option, as with Claude Code.
        separator: between directories of one word; empty for none.
        own: its settings in the first directory that the profile keeps.
        of_project: its settings in the working directory.
        keys: ways to the list in the settings.
    """

    option: str
    several: bool = False
    separator: str = ""
    own: tuple[str, ...]
    of_project: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]


_AGENTS = {
    "claude": DirectoryOptions(
        option="--add-dir",
        several=True,
        own=("settings.json",),
        of_project=(".claude/settings.json", ".claude/settings.local.json"),
        keys=(("permissions", "additionalDirectories"),),
    ),
    "codex": DirectoryOptions(
        option="--add-dir",
        own=("config.toml",),
        of_project=(".codex/config.toml",),
        keys=(("sandbox_workspace_write", "writable_roots"),),
    ),
    "gemini": DirectoryOptions(
        option="--include-directories",
        separator=",",
        own=("settings.json",),
        of_project=(".gemini/settings.json",),
        keys=(("context", "includeDirectories"), ("includeDirectories",)),
    ),
}


def in_arguments(
    agent: str, arguments: Sequence[str], directory: str
) -> tuple[tuple[str, ...], tuple[RequestedDirectory, ...]]:
    """Find the directories that an agent's arguments name.

    Returns:
        The arguments, with links in these paths followed, since the box has the directories at
        their real paths; and the directories. What is none is left to the agent.
    """
    options = _AGENTS.get(agent)
    if options is None:
        return tuple(arguments), ()
    words: list[str] = []
    found: list[RequestedDirectory] = []

    def taken(value: str) -> str:
        parts = value.split(options.separator) if options.separator else [value]
        real = [_real(directory, part) for part in parts]
        found.extend(
            RequestedDirectory(path=path, writable=True, by=options.option)
            for path in real
            if path is not None
        )
        return options.separator.join(
            part if path is None else path for part, path in zip(parts, real, strict=True)
        )

    takes, rest = False, iter(arguments)
    for word in rest:
        if word == "--":
            words += [word, *rest]
            break
        if word.startswith(f"{options.option}="):
            words.append(f"{options.option}={taken(word.partition('=')[2])}")
            takes = False
        elif takes and not word.startswith("-"):
            words.append(taken(word))
            takes = options.several
        else:
            words.append(word)
            takes = word == options.option
    return tuple(words), tuple(found)


def in_settings(agent: str, directory: str, kept: str | None) -> tuple[RequestedDirectory, ...]:
    """Find the directories that an agent's settings name, where they exist.

    Args:
        kept: on the host, what the agent keeps; None if it keeps nothing.
    """
    options = _AGENTS.get(agent)
    if options is None:
        return ()
    files = [os.path.join(kept, name) for name in options.own] if kept else []
    files += [os.path.join(directory, name) for name in options.of_project]
    found: dict[str, RequestedDirectory] = {}
    for file in files:
        for name in _named(file, options.keys):
            path = _real(directory, name)
            if path is not None and len(found) < MAX_NAMED:
                found.setdefault(path, RequestedDirectory(path=path, writable=True, by=file))
    return tuple(found.values())


def _real(directory: str, name: str) -> str | None:
    """The real path of a directory; None where there is none."""
    if not name or "\0" in name:
        return None
    path = os.path.realpath(os.path.join(directory, os.path.expanduser(name)))
    return path if os.path.isdir(path) else None


def _named(file: str, keys: tuple[tuple[str, ...], ...]) -> list[str]:
    data = small_file(file, MAX_SETTINGS_BYTES)
    if not data:
        return []
    settings: object
    try:
        if file.endswith(".toml"):
            import tomllib  # noqa: PLC0415  # of one agent alone

            settings = tomllib.loads(data.decode())
        else:
            settings = json.loads(data)
    except (ValueError, RecursionError):
        return []  # which the agent says
    names: list[str] = []
    for way in keys:
        at = settings
        for key in way:
            at = cast("dict[str, object]", at).get(key) if isinstance(at, dict) else None
        if isinstance(at, list):
            names += [name for name in cast("list[object]", at) if isinstance(name, str)]
    return names
