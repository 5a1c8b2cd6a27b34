"""Devices that come, go or get another driver while the supervisor runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial

from nsm.dataclass import dataclass
from nsmd.environments.devices.device_host import DeviceHost
from nsmd.environments.devices.equipment import Equipment, Words, equip, find_equipment
from nsmd.environments.devices.libraries import CUDA
from nsmd.environments.devices.nodes import CAPABILITIES
from nsmd.host.paths import ANY, WatchedPaths
from nsmd.host.source_watcher import SourceWatcher
from nsmd.host.threads import BoundedReads
from nsmd.model.values import Environment

log = logging.getLogger(__name__)

WATCHED = ("/dev", "/dev/dri", CAPABILITIES)
"""Directories in which devices come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """Devices at one moment, and what to watch for changes."""

    equipment: Equipment
    places: WatchedPaths


class DeviceFinder:
    """Finder of the devices of environments; without such environments it looks for none.

    Args:
        host: where to look.

    Attributes:
        changed: called after each change; quick.
    """

    def __init__(self, host: DeviceHost) -> None:
        self._host = host
        self._found: dict[Words, Equipment] = {}
        self._watching: SourceWatcher | None = None
        self._reads = BoundedReads()
        self.changed: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<DeviceFinder of {len(self._found)} wishes>"

    def equip(self, environment: Environment) -> Environment:
        """Make an environment with its devices. Waits a moment when these are new."""
        words = environment.devices
        if not words:
            return environment
        found = self._found.get(words)
        if found is None:
            find = partial(find_equipment, words, self._host)
            try:
                found = self._reads.read(words, find)
            except TimeoutError:
                found = Equipment(problem="the search for them takes too long")
            self._found[words] = found
            self._watch(words)
        return equip(environment, found)

    def watch(self, watching: SourceWatcher) -> None:
        """Look again from now on whenever devices or the driver change."""
        self._watching = watching
        for words in self._found:
            self._watch(words)

    async def look(self) -> None:
        """Look again now, since somebody asks."""
        if self._watching is not None:
            await self._watching.look(*(("devices", words) for words in self._found))

    def _watch(self, words: Words) -> None:
        if self._watching is not None:
            self._watching.keep(
                ("devices", words),
                f"devices {', '.join(words)}",
                partial(self._look, words),
                partial(self._looked, words),
                lambda: _Looked(equipment=self._found[words], places={}),
            )

    def _look(self, words: Words) -> _Looked:
        equipment = find_equipment(words, self._host)
        return _Looked(equipment=equipment, places=dict(self._places(equipment)))

    def _places(self, equipment: Equipment) -> Iterator[tuple[str, frozenset[str]]]:
        for directory in WATCHED:
            if os.path.isdir(real := self._host.real(directory)):
                yield real, frozenset((ANY,))
        if equipment.libraries is not None:
            yield self._host.real(equipment.libraries.directory), frozenset((CUDA,))

    def _looked(self, words: Words, looked: _Looked, _unwatched: str | None) -> None:
        if looked.equipment != self._found[words]:
            self._found[words] = looked.equipment
            log.info("devices %s: %s", ", ".join(words), looked.equipment.problem or "changed")
            self.changed()


def _nothing() -> None:
    """Default for `changed`."""
