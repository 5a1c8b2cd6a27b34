"""Position of this process in the tree of control groups, and whether it may divide that part.

Dividing means: making groups below, and letting the kernel's controllers count and limit in them.
What a service manager has not delegated belongs to it (systemd's CGROUP_DELEGATION document), so
nsm does not touch it, even if modes would allow it.
"""

from __future__ import annotations

import os

from nsm.dataclass import dataclass
from nsmd.jail.cgroups.files import words

CONTROLLERS = ("memory", "pids", "cpu")
"""Controllers that limit sessions, the most important one first."""

UNIFY = (
    "Boot with cgroup v2 alone: `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the "
    "kernel's command line."
)


class NoGroupsError(Exception):
    """Sessions have no control groups here.

    Args:
        why: a clause, for people.
        fix: what to do, a sentence; empty if nothing can be done.
    """

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Position of this process.

    Attributes:
        mount_point: mount point of cgroup v2.
        directory: directory of our own group.
        unit: systemd unit of that group, by its name; empty if it is none.
        delegated: marked as a group that its processes may divide.
        alone: no other process is in it.
        managed: systemd manages the host's services.
    """

    mount_point: str
    directory: str
    unit: str
    delegated: bool
    alone: bool
    managed: bool

    @property
    def writable(self) -> bool:
        """True if the kernel would let us divide it; this does not mean that we may."""
        return os.access(f"{self.directory}/cgroup.subtree_control", os.W_OK)

    @property
    def ours(self) -> bool:
        """True if it may be divided, as far as is known without asking: it was delegated, or
        belongs to nobody else, and we are the only process in it.
        """
        return self.alone and self.writable and (self.delegated or not self.managed)


def find_place(root: str = "/") -> GroupPlace:
    """Find the position.

    Args:
        root: directory of `/proc` and `/run`; other than `/` in tests only.

    Raises:
        NoGroupsError: there is no cgroup v2, or its controllers are elsewhere.
    """
    mount_point, directory = _directory(root, "self")
    return GroupPlace(
        mount_point=mount_point,
        directory=directory,
        unit=os.path.basename(directory) if directory != mount_point else "",
        delegated=_has_mark(directory),
        alone=words(directory, "cgroup.procs") <= {str(os.getpid())},
        managed=os.path.isdir(os.path.join(root, "run/systemd/system")),
    )


def directory_of(pid: int, root: str = "/") -> str:
    """Find the directory of a process's group.

    Raises:
        NoGroupsError: as for `find_place`.
    """
    return _directory(root, str(pid))[1]


def is_frozen(pid: int, root: str = "/") -> bool:
    """Return whether a process's group, or one above it, is frozen (cgroup.freeze), so that it does
    not run.
    """
    mount, group = _mount(root), _group(root, str(pid))
    if mount is None or group is None:
        return False
    mount_point, mount_root = mount
    try:
        below = os.path.relpath(group, mount_root)
        with open(os.path.join(mount_point, below, "cgroup.events"), encoding="utf-8") as file:
            return "frozen 1" in file.read().splitlines()
    except OSError:
        return False


def _directory(root: str, process: str) -> tuple[str, str]:
    """Find the mount point of cgroup v2, and the directory of a process's group."""
    mount = _mount(root)
    if mount is None:
        raise NoGroupsError("cgroup v2 is not mounted", UNIFY)
    mount_point, mount_root = mount
    available = words(mount_point, "cgroup.controllers")
    if not available & {"memory", "pids"}:
        raise NoGroupsError(
            f"the controllers of memory and processes are not in cgroup v2 ({mount_point}), but "
            "in version 1, or off",
            UNIFY,
        )
    group = _group(root, process)
    if group is None or not f"{group}/".startswith(f"{mount_root.rstrip('/')}/"):
        raise NoGroupsError(
            "the supervisor's own group is not in the tree that is mounted",
            "Start the container with a cgroup namespace of its own (--cgroupns=private).",
        )
    directory = (mount_point + group[len(mount_root.rstrip("/")) :]).rstrip("/")
    return mount_point, directory


def _mount(root: str) -> tuple[str, str] | None:
    """Find mount point and root of the first cgroup v2 (proc_pid_mountinfo(5))."""
    try:
        with open(os.path.join(root, "proc/self/mountinfo"), encoding="utf-8") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if rest.split(" ", 1)[0] == "cgroup2":
                    _, _, _, mount_root, mount_point, *_ = fields.split(" ")
                    return mount_point, mount_root
    except OSError:
        pass
    return None


def _group(root: str, process: str) -> str | None:
    try:
        with open(os.path.join(root, f"proc/{process}/cgroup"), encoding="utf-8") as file:
            for line in file:
                if line.startswith("0::/"):
                    return line[len("0::") :].rstrip("\n")
    except OSError:
        pass
    return None


def _has_mark(directory: str) -> bool:
    """Return whether systemd (251 and newer) has marked it as delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue
    return False
