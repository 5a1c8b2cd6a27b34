"""A session's share of the processor: less of it for as long as it works for long.

The kernel shares equally, so beside ten sessions that compute, an eleventh that is asked something
every second would have to wait for its turn like each of them. Whoever computes for long gets less,
beside others who do not: it takes whatever is left, and that one notices little of it. Where all
compute for long, all have the same fraction, and what was configured holds between them.

Nobody can compute for less than a look of the watchdog and pay for it, and nobody is held to less
by what it did before: each execution begins with all of it.
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
    """Processor share of one session. A change takes a write and a read, some 20 us, and no
    waiting.

    Args:
        group: the session's.

    Attributes:
        lowered: it has the fraction now.
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
        """An execution begins. What was left behind before is older than it."""
        self._seen = self._behind
        if self.lowered:
            self._restore()

    def ended(self) -> None:
        """End the session's part; sessions that the last look found beside it may go on."""
        if self.lowered and not self._behind:
            self._restore()

    def looked(self, *, runs: bool, processes: int) -> None:
        """The watchdog has been there: a second look at the same work makes it long.

        Args:
            runs: an execution is under way.
            processes: of the session.
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
        """The weight that the kernel has; None if it is gone."""
        return files.number(self._group.directory, _FILE)

    def _lower(self) -> None:
        # Also where the kernel does not take it: it is not asked again at each look.
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
