"""A store of descriptors that holds copies, as a holder does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsmd.fdstore.store import NoStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsmd.fdstore.store import StoreKind


class Held(NoStore):
    """Descriptor store; a name may have several descriptors, as with systemd."""

    kind: StoreKind = "keeper"

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, list[int]] = {}

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        self.held.setdefault(name, []).extend(os.dup(each) for each in descriptors)

    def drop(self, name: str) -> None:
        for descriptor in self.held.pop(name, ()):
            os.close(descriptor)

    def duplicates(self) -> dict[str, list[int]]:
        """Return what the next supervisor receives."""
        return {name: [os.dup(each) for each in fds] for name, fds in self.held.items()}

    @property
    def sessions(self) -> dict[str, list[int]]:
        return {name: fds for name, fds in self.held.items() if name.startswith("session-")}

    def close(self) -> None:
        for name in list(self.held):
            self.drop(name)
