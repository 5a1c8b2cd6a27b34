"""Environments of the host's interpreters, which are asked again when somebody needs one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from nsmd.model.settings import Settings
from nsmd.model.values import Environment

log = logging.getLogger(__name__)


class HostEnvironments:
    """Environments of the host's interpreters.

    An interpreter that could not be used is no verdict for good: the user may have been out of
    processes or memory, it may have been killed, or it is installed only now.

    Args:
        find: finds them for settings; blocks.
        settings: present settings.

    Attributes:
        found: what was found last.
        settings: settings for which that was.
        changed: called after each change.
    """

    def __init__(
        self, find: Callable[[Settings], Sequence[Environment]], settings: Settings
    ) -> None:
        self._find = find
        self._looks = 0
        self._one_at_a_time = trio.Lock()
        self.settings = settings
        self.found: Sequence[Environment] = ()
        self.changed: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<HostEnvironments {len(self.found)}>"

    async def begin(self) -> None:
        """Find them for the first time."""
        self.found = await trio.to_thread.run_sync(self._find, self.settings)

    def put(self, settings: Settings, found: Sequence[Environment]) -> None:
        """Take others, which were found for new settings."""
        self.settings, self.found = settings, found
        self.changed()

    async def look(self) -> None:
        """Ask all interpreters again if one could not be used; all who come meanwhile wait."""
        if all(environment.problem is None for environment in self.found):
            return
        before = self._looks
        async with self._one_at_a_time:
            if self._looks != before:
                return
            settings = self.settings
            try:
                found = await trio.to_thread.run_sync(self._find, settings, abandon_on_cancel=True)
            except RuntimeError as error:  # threading's own, if there is no room for a thread
                log.warning("the interpreters of the host are not asked again: %s", error)
                return
            self._looks += 1
            if settings is self.settings and found != self.found:
                self.put(settings, found)


def _nothing() -> None:
    """Default for `changed`."""
