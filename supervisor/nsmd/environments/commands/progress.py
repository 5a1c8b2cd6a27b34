"""Progress of a build, as a value."""

from __future__ import annotations

from nsm.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgress:
    """Progress of a build at one moment.

    Attributes:
        phase: of Nix: ``evaluating``, ``fetching`` (inputs of the evaluation), ``downloading``
            (packages that need no build) or ``building``. Of packages: ``resolving``,
            ``installing``, ``compiling`` or ``publishing``.
        activity: present activity, for people, e.g. ``building pandas-2.2 (checkPhase)``; may be
            empty.
        built, to_build: numbers of derivations; the second grows while Nix finds more.
        copied, to_copy: numbers of store paths from elsewhere.
        downloaded_bytes, to_download_bytes: as far as known.
    """

    phase: str = "evaluating"
    activity: str = ""
    built: int = 0
    to_build: int = 0
    copied: int = 0
    to_copy: int = 0
    downloaded_bytes: int = 0
    to_download_bytes: int = 0
