"""Interface of descriptor stores, which keep copies by name, whatever happens to the supervisor."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

log = logging.getLogger(__name__)

StoreKind = Literal["systemd", "keeper", "none"]

Kept = Mapping[str, Sequence[int]]
"""Descriptors that a store gave back, by name, in any order; owned by whoever takes them, and not
inherited by programs. Names are 1 to 64 characters of ``A-Z a-z 0-9 . _ -``, and begin with one of
`KEPT_PREFIXES`. What was given back is still kept, until it is dropped."""

KEPT_PREFIXES = ("session-", "box-", "spec-", "template-", "state-", "scope", "http-")
"""By them, a service manager's sockets are told from what it keeps."""

TRY_OPTION = "--try"
"""Of `nsm-supervisor`: load everything, check the configuration, print the version, end."""

Refill = Callable[[], Iterable[tuple[str, Sequence[int]]]]
"""Names and descriptors of all that should be kept at this moment: what `keep` was told and `drop`
was not. A store that lost what it had, or could not be told at once, asks for them. Descriptors
are valid until the next name is asked for. A name without any is one that cannot be had at this
moment, for want of descriptors: it is asked for again. Nothing is raised."""


class DescriptorStore(Protocol):
    """Store of descriptors by name. All of it is quick and never raises: failures are logged, and
    told by `problem`."""

    @property
    def kind(self) -> StoreKind:
        """Kind of the store."""
        ...

    @property
    def problem(self) -> str:
        """Why not all that was handed over is kept, for people; empty where it is."""
        ...

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        """Keep copies under a name, in place of what is kept under it already or beside it: all
        that belongs there is given each time. The caller's own stay the caller's."""

    def drop(self, name: str) -> None:
        """Close all that is kept under a name; nothing if there is none."""

    def copies(self) -> dict[str, list[int]]:
        """Return what should be kept, by the `refill` that it runs with; empty before.

        Some of it is copied; this process is about to become another program.
        """
        ...

    async def run(self, refill: Refill) -> None:
        """Keep everything, also what could not be kept at once.

        Runs until cancelled. It returns only if this process has to restart itself to take up what
        a holder has.
        """

    def look(self) -> None:
        """Something was removed from the runtime directory: see that the next supervisor finds what
        is kept."""

    def settle(self) -> None:
        """Called before this process leaves: what was kept has arrived, or cannot.

        It may take a few seconds.
        """

    def end(self) -> None:
        """Called after all sessions have ended: nothing is kept any more.

        It may take a few seconds.
        """


class NoStore:
    """Store that keeps nothing: sessions end with the supervisor."""

    kind: StoreKind = "none"

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self._refill: Refill = tuple

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        """Keep nothing."""

    def drop(self, name: str) -> None:
        """Do nothing."""

    def copies(self) -> dict[str, list[int]]:
        return copies_of(self._refill)

    async def run(self, refill: Refill) -> None:
        import trio  # noqa: PLC0415 (reports, which import this module, are quick without it)

        self._refill = refill
        await trio.sleep_forever()

    def look(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


def copies_of(refill: Refill) -> dict[str, list[int]]:
    """Descriptors that last, of each name: files in memory may be made for the moment only.

    Names for which there is no descriptor left are missing.
    """
    found: dict[str, list[int]] = {}
    for name, descriptors in refill():
        if not descriptors:
            log.warning("%s is not handed over: there is no descriptor left for it", name)
            continue
        try:
            found[name] = [
                os.dup(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else fd for fd in descriptors
            ]
        except OSError as error:
            log.warning("%s is not handed over: %s", name, error)
    return found
