"""Interface of descriptor stores, which keep copies by name after the supervisor's end."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

log = logging.getLogger(__name__)

StoreKind = Literal["systemd", "keeper", "none"]
"""Values of `survival.kind`, which are public. "keeper" means a holder process: other names in the
code say holder, and this value stays, since programs read it.
"""

Kept = Mapping[str, Sequence[int]]
"""Descriptors that a store gave back, by name, in any order; the receiver owns them, and programs
do not inherit them. Names are 1 to 64 characters of ``A-Z a-z 0-9 . _ -``, and begin with one of
`KEPT_PREFIXES`. What was given back stays in the store until it is dropped.
"""

KEPT_PREFIXES = (
    "session-",
    "box-",
    "spec-",
    "template-",
    "state-",
    "scope",
    "http-",
    "port-",
    "relay-",
    "secrets-",
)
"""They distinguish kept descriptors from sockets that a service manager passes."""

TRY_OPTION = "--try"
"""Option of `nsm-supervisor`: load everything, check the configuration, print the version, end."""

Refill = Callable[[], Iterable[tuple[str, Sequence[int]]]]
"""Yields names and descriptors of everything to keep now: all that `keep` got and `drop` did not. A
store calls it if it lost its content or could not send at once. Descriptors are valid until the
next name. A name without descriptors has none at the moment, because there are no free descriptors:
it is asked for again. It raises nothing.
"""


class DescriptorStore(Protocol):
    """Store of descriptors by name. All methods are quick and never raise: failures are logged, and
    shown by `problem`.
    """

    @property
    def kind(self) -> StoreKind:
        """Kind of the store."""
        ...

    @property
    def problem(self) -> str:
        """Return why not everything is kept, for people; empty if it is."""
        ...

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        """Keep copies under a name, in place of or besides what is there already: each call gives
        everything for that name. The caller keeps its own descriptors.
        """

    def drop(self, name: str) -> None:
        """Close all that is kept under a name; does nothing if there is none."""

    def copies(self) -> dict[str, list[int]]:
        """Return what should be kept, from the `refill` that it runs with; empty before.

        Some of it is copied, since this process is about to become another program.
        """
        ...

    async def run(self, refill: Refill) -> None:
        """Keep everything, including what could not be sent at once, until cancelled."""

    def ensure_reachable(self) -> None:
        """Something was removed from the runtime directory: make sure that the next supervisor
        finds what is kept.
        """

    def settle(self, refill: Refill | None = None) -> None:
        """Wait until everything has arrived, or cannot; called before this process leaves.

        It may take a few seconds.
        """

    def end(self) -> None:
        """Drop everything; called after all sessions have ended.

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

    def ensure_reachable(self) -> None:
        """Do nothing."""

    def settle(self, refill: Refill | None = None) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


def copies_of(refill: Refill) -> dict[str, list[int]]:
    """Copy the descriptors of each name, so that they last: memory files may exist only for a
    moment.

    Names without a free descriptor are missing.
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
