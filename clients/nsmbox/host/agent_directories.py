"""Directories that an agent's own options and settings name beside its working directory.

What the user types on the command line is asked for by the user. Settings may have been written by
anybody who worked in the project, and by an earlier box: nsm asks before it shows what they name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import cast

from nsm.dataclass import dataclass
from nsm.git import small_file
from nsmbox.host.added_directories import RequestedDirectory

MAX_SETTINGS_BYTES = 1024 * 1024
MAX_NAMED = 32
"""Directories of one agent's settings that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryOptions:
    """Places where an agent names directories.

    Attributes:
        option: of its command line.
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

    Args:
        agent: as in `Profile.mcp`.
        arguments: the user's.
        directory: the working directory; relative paths begin there.

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
        agent: as in `Profile.mcp`.
        directory: the working directory.
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
