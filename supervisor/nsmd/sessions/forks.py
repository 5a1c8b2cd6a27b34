"""Forks of one session, which end with it: their namespaces lie below those of its jail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsmd.sessions.session import Session

TOLD_FORKS = 20
"""Names in the reason of an end."""


class ForkedSessions:
    """Forks of one session that live, or have ended with it."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks: list[Session] = []

    @property
    def live(self) -> list[Session]:
        """Forks that live."""
        return [fork for fork in self._forks if fork.live]

    def add(self, fork: Session) -> None:
        """Add a fork that has just been made."""
        self._forks = [*self.live, fork]

    def end(self, label: str, reason: str) -> str:
        """End them, since the session ends.

        Args:
            label: the session.
            reason: why it ends.

        Returns:
            The reason, and which forks end with it.
        """
        self._forks = self.live
        for fork in self._forks:
            fork.end(f"session {label}, of which it is a fork, ended ({reason})")
        names = [repr(fork.name) if fork.name else fork.id for fork in self.below()]
        if not names:
            return reason
        told, more = ", ".join(names[:TOLD_FORKS]), len(names) - TOLD_FORKS
        return f"{reason}; with it ended its forks {told}{f' and {more} more' if more > 0 else ''}"

    def below(self) -> Iterator[Session]:
        """These forks, and their forks."""
        for fork in self._forks:
            yield fork
            yield from fork.forks.below()
