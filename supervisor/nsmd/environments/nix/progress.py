"""How far a run of nix has come, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a run.

    Attributes:
        phase: ``evaluating``, ``fetching`` (what it evaluates), ``downloading`` (what it need not
            build) or ``building``.
        activity: what goes on, for people, e.g. ``building pandas-2.2 (checkPhase)``; may be
            empty.
        built, to_build: derivations; the second grows while nix finds out.
        copied, to_copy: store paths that come from elsewhere.
        downloaded_bytes, to_download_bytes: as far as nix knows.
    """

    phase: str = "evaluating"
    activity: str = ""
    built: int = 0
    to_build: int = 0
    copied: int = 0
    to_copy: int = 0
    downloaded_bytes: int = 0
    to_download_bytes: int = 0

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Progress:
        """From `to_plain`; what is missing has its default."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
