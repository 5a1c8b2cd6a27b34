"""Directory of the host that was checked before a jail shows it."""

from __future__ import annotations

from nsm.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDirectory:
    """A checked host directory, and its path in the jail.

    Attributes:
        path: absolute host path with symlinks resolved.
        mount_point: absolute path in the jail.
        device, inode: identity of the directory at the check; a jail is used only while the path
            still has it.
    """

    path: str
    mount_point: str
    device: int
    inode: int

    @property
    def copied(self) -> bool:
        """True if each session has an overlay of it."""
        return False
