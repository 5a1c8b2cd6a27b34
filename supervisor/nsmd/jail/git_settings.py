"""git's configuration in jails: the user's name and address, and trust in any owner's files."""

from __future__ import annotations

import os
from collections.abc import Mapping

import trio

from nsm import git, paths
from nsmd.model.values import ProjectMount

MAX_KEPT = 256
"""Projects whose answer is kept: git takes some 6 ms."""

KEPT_S = 60.0
"""Time for which it is. Only git knows which files it has read (`include`)."""


class GitSettings:
    """Content of `GIT_SETTINGS_PATH` for jails.

    Args:
        search_path: value of PATH to find git on.
        variables: the user's, by which git finds the user's configuration.
    """

    def __init__(self, search_path: str, variables: Mapping[str, str]) -> None:
        self._search_path = search_path
        self._variables = variables
        self._known: dict[str, tuple[float, str]] = {}  # until when, and what git has said

    async def of(self, project: ProjectMount | None) -> str:
        """Settings for a project; the user may have another address for it (`includeIf`)."""
        place = "" if project is None else project.path
        until, said = self._known.get(place, (0.0, ""))
        if trio.current_time() >= until:
            said = await trio.to_thread.run_sync(self._ask, place)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[place] = (trio.current_time() + KEPT_S, said)
        return said

    def _ask(self, place: str) -> str:
        program = paths.which("git", self._search_path, *([place] if place else []))
        if program is None or "HOME" not in self._variables:
            return git.jail_settings({})
        own = os.path.join(place, ".git") if place else ""
        return git.jail_settings(git.identity(program, self._variables, own))
