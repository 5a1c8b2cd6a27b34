"""What keeps copies of descriptors by name, whatever becomes of the supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

StoreKind = Literal["systemd", "keeper", "none"]

Kept = Mapping[str, Sequence[int]]
"""Descriptors that a store gave back, by name, in any order; owned by whoever takes them, and not
inherited by programs. Names are 1 to 64 characters of ``A-Z a-z 0-9 . _ -``."""


class DescriptorStore(Protocol):
    """See the module. All of it is quick and never raises: what cannot be kept is logged, and told
    by `problem`."""

    @property
    def kind(self) -> StoreKind:
        """Who keeps them."""
        ...

    @property
    def problem(self) -> str:
        """Why not all that was handed over is kept, for people; empty where it is."""
        ...

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        """Keep copies under a name, beside what is kept under it already; the same ones may be
        given again. The caller's own stay the caller's."""

    def drop(self, name: str) -> None:
        """Close all that is kept under a name; nothing if there is none."""


class NoStore:
    """See `DescriptorStore`: keeps nothing. Sessions end with the supervisor."""

    kind: StoreKind = "none"

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        """See `DescriptorStore`."""

    def drop(self, name: str) -> None:
        """See `DescriptorStore`."""
