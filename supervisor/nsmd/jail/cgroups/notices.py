"""Notices of the kernel when something was counted in a session's group.

They save reading the counters after an execution that ended well: the kernel sends a notice when
the counts of memory and processes change (cgroup-v2.rst: "a file modified event"), some
milliseconds later.
"""

from __future__ import annotations

import logging

import trio

from nsmd.host.watching.inotify import IGNORED, Inotify
from nsmd.jail.cgroups.confinement import Confinement

log = logging.getLogger(__name__)

MODIFY = 0x2
"""IN_MODIFY of <sys/inotify.h>."""

COUNTERS = ("memory.events", "pids.events")


class Notices:
    """Notices of the kernel about sessions' groups; `run` is the task. Without it, groups are read
    only when something ends badly."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._of: dict[int, Confinement] = {}
        try:
            self._inotify = Inotify()
        except OSError as error:
            log.warning("limits are looked at only after what ends badly: inotify: %s", error)

    def __repr__(self) -> str:
        return f"<Notices of {len(self._of)} groups>"

    def add(self, confinement: Confinement, directory: str) -> None:
        """Report counts of a session's group to the session."""
        if self._inotify is None:
            return
        for name in COUNTERS:
            try:
                self._of[self._inotify.add_file(f"{directory}/{name}", MODIFY)] = confinement
            except FileNotFoundError:
                pass  # that controller is not delegated
            except OSError as error:
                log.debug("no notices of %s: %s", directory, error)

    async def run(self) -> None:
        """Never returns.

        Cancellation: the usual way to end it; closes the queue.
        """
        inotify = self._inotify
        if inotify is None:
            return
        try:
            while True:
                await trio.lowlevel.wait_readable(inotify.fd)
                for notice in inotify.read():
                    confinement = self._of.get(notice.watch)
                    if notice.mask & IGNORED:  # the group is gone, and its watch with it
                        self._of.pop(notice.watch, None)
                    elif confinement is not None:
                        confinement.heard()
        finally:
            inotify.close()
            self._inotify = None
