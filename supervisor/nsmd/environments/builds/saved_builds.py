"""Record of built environments, which outlives the supervisor: a small JSON file.

If it cannot be read, `nsm env add` makes everything again, quickly, since Nix's store still has the
builds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated

from nsm.dataclass import dataclass
from nsm.wire.decode import Constraint
from nsmd.environments import saved_records
from nsmd.model.packages import WantedPackages

log = logging.getLogger(__name__)


def _is_file_name(name: str) -> bool:
    return "/" not in name


def _is_key(key: str) -> bool:
    return key != "" and _is_file_name(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBuild:
    """One environment.

    Attributes:
        key: names its files.
        reference: reference to its flake, as given; or its packages, as text.
        added: added by `nsm env add`; otherwise a variable or a file names it.
        given_name: name from the user; empty for its own.
        name: last known name.
        path: path in its store; empty before it was built.
        link: file name of the garbage-collector root.
        built_s: Unix time of the build; 0 before.
        building: a build was running when this was written.
        interruptions: number of supervisors in a row that ended during a build.
        error: why the last build failed; else empty.
        failed_s: Unix time of that.
        used_s: Unix time when it was last wanted.
        packages: packages that it is made from; None for a flake.
        project: project that it belongs to; empty if it is everybody's.
        preload: as in `Building`.
    """

    key: Annotated[str, Constraint(_is_key, "a file name")]
    reference: str
    added: bool = False
    given_name: str = ""
    name: str = ""
    path: str = ""
    link: Annotated[str, Constraint(_is_file_name, "a file name")] = ""
    built_s: float = 0.0
    building: bool = False
    interruptions: int = 0
    error: str = ""
    failed_s: float = 0.0
    used_s: float = 0.0
    packages: WantedPackages | None = None
    project: str = ""
    preload: tuple[str, ...] | None = None


def load(path: str) -> tuple[SavedBuild, ...]:
    """Read the file; nothing if it is missing or broken. Blocks."""
    rows = saved_records.load(
        path, SavedBuild, "environments", cure="`nsm env add` makes its environments again"
    )
    return tuple({row.key: row for row in rows}.values())


def save(path: str, rows: Sequence[SavedBuild]) -> None:
    """Replace the file. Blocks.

    Raises:
        OSError: it cannot be written; the old one is unchanged.
    """
    saved_records.save(path, "environments", rows)
