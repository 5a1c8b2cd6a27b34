"""A session's share of the processor: it gets less while it computes for long.

The kernel shares equally. So beside ten sessions that compute, an eleventh that gets a request
every second would have to wait like each of them. A session that computes for long gets less than
others that do not: it uses what is left, and the others notice little of it. If all compute for
long, all have the same fraction, and the configured weights apply between them.

An execution shorter than one look of the watchdog never pays, and an earlier execution never
reduces a later one: each begins with the whole share.
"""

from __future__ import annotations

import logging

from nsmd.jail.cgroups import files
from nsmd.jail.cgroups.group import Group

log = logging.getLogger(__name__)

PART = 20
"""Divisor of a session's weight while it computes for long; docs/contributing/limits.md."""

AT_REST = 2
"""Processes of a session that runs nothing: the agent, and one interpreter."""

_FILE = "cpu.weight"


class Share:
    """Processor share of one session. A change takes a write and a read, some 20 us, and does not
    wait.

    Args:
        group: group of the session.

    Attributes:
        lowered: it has only the fraction now.
    """

    __slots__ = ("_behind", "_full", "_group", "_low", "_seen", "lowered")

    def __init__(self, group: Group) -> None:
        weight = group.limits.cpu_weight
        self._group = group
        self._full, self._low = weight, max(1, weight // PART)
        self._seen = False
        self._behind = False
        self.lowered = False

    def __repr__(self) -> str:
        return f"<Share {self._low if self.lowered else self._full} of {self._group.directory}>"

    def begun(self) -> None:
        """Note that an execution begins. Processes that were left behind before are older."""
        self._seen = self._behind
        if self.lowered:
            self._restore()

    def ended(self) -> None:
        """Note that the execution ended."""
        if self.lowered and not self._behind:
            self._restore()

    def looked(self, *, runs: bool, processes: int) -> None:
        """Note a look of the watchdog: work that it sees twice counts as long.

        Args:
            runs: an execution is under way.
            processes: number of processes of the session.
        """
        self._behind = processes > AT_REST
        if not runs and not self._behind:
            self._seen = False
            if self.lowered:
                self._restore()
        elif not self._seen:
            self._seen = True
        elif not self.lowered:
            self._lower()

    def now(self) -> int | None:
        """The present weight in the kernel; None if the group is gone."""
        return files.number(self._group.directory, _FILE)

    def _lower(self) -> None:
        # Also if the kernel refuses, so that it is not asked again at each look.
        self.lowered = True
        self._set(self._low)

    def _restore(self) -> None:
        self.lowered = False
        self._set(self._full)

    def _set(self, weight: int) -> None:
        if "cpu" not in self._group.holds:
            return
        if why := self._group.set(_FILE, str(weight)):
            log.warning("%r: %s: %s", self._group, _FILE, why)
