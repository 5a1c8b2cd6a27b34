"""Supervisor's part of the tree of control groups: itself in one group, each session in another.

    DIRECTORY              what was delegated
      supervisor           the supervisor, templates, and what it starts beside jails
      sessions
        ID                 one session

Controllers limit in a group whose parent passes them down, and a group that does so may have no
processes itself (cgroup-v2.rst, "No Internal Process Constraint"): hence the group for the
supervisor.

The files of a group each take or give one short text (cgroups(7), cgroup-v2.rst).

What a service manager has not delegated belongs to it (systemd's CGROUP_DELEGATION document), so
nsm does not divide it, even if modes would allow it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress

from nsm.dataclass import dataclass

_READ_BYTES = 65536


def read_file(directory: str, name: str) -> str:
    """Read the text of a file."""
    fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _READ_BYTES).decode(errors="replace")
    finally:
        os.close(fd)


def write_file(directory: str, name: str, text: str) -> None:
    """Write a text; OSError if the kernel refuses it."""
    fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def make_group(directory: str) -> None:
    """Make a group; the kernel puts its files into it."""
    os.mkdir(directory)


def remove_group(directory: str) -> None:
    """Remove a group, which must have no processes and no groups below."""
    os.rmdir(directory)


def read_words(directory: str, name: str) -> frozenset[str]:
    """Read the words of a file; empty if it cannot be read."""
    try:
        return frozenset(read_file(directory, name).split())
    except OSError:
        return frozenset()


def read_number(directory: str, name: str) -> int | None:
    """Read the number in a file; None if there is none, as with `max`."""
    try:
        text = read_file(directory, name).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def read_counters(directory: str, name: str) -> Mapping[str, int]:
    """Read a flat keyed file, ``KEY NUMBER`` in lines; empty if it cannot be read."""
    try:
        lines = read_file(directory, name).splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


CONTROLLERS = ("memory", "pids", "cpu")
"""Controllers that limit sessions, the most important one first."""

UNIFY = (
    "Boot with cgroup v2 alone: `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the "
    "kernel's command line."
)


class NoGroupsError(Exception):
    """No control groups for sessions: why, a clause, and what to do, a sentence or nothing."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Position of this process.

    Attributes:
        mount_point: of cgroup v2.
        directory: of our own group.
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
    """Find the position; `root` has `/proc` and `/run`, and is other than `/` in tests only. A
    `NoGroupsError` says that there is no cgroup v2, or that its controllers are elsewhere.
    """
    mount_point, directory = _directory(root, "self")
    return GroupPlace(
        mount_point=mount_point,
        directory=directory,
        unit=os.path.basename(directory) if directory != mount_point else "",
        delegated=_has_mark(directory),
        alone=read_words(directory, "cgroup.procs") <= {str(os.getpid())},
        managed=os.path.isdir(os.path.join(root, "run/systemd/system")),
    )


def directory_of(pid: int, root: str = "/") -> str:
    """Find the directory of a process's group; raises as `find_place`."""
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
    available = read_words(mount_point, "cgroup.controllers")
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


log = logging.getLogger(__name__)

OWN_WEIGHT = 1000
"""Weight of the supervisor beside all sessions together, which have 100: it has little to do, and
clients that wait for a session wait for it.
"""

OWN = "supervisor"
"""Name of the group beside the sessions."""

_PREFIX = "nsm-"


class Leftovers:
    """Remover of groups; a group that is still busy is removed with a later one.

    A process that nobody has reaped does not keep a group busy (cgroup-v2.rst); one that is just
    ending may. With the last group of an earlier supervisor, the groups around it are removed, but
    never `own`, the directory of this supervisor's groups.
    """

    def __init__(self, own: str = "") -> None:
        self._own = own
        self._waiting: set[str] = set()

    def __repr__(self) -> str:
        return f"<Leftovers: {len(self._waiting)} groups>"

    def remove(self, directory: str) -> None:
        """Remove a group whose processes have ended, and those that were busy before."""
        self._waiting.add(directory)
        for each in tuple(self._waiting):
            try:
                remove_group(each)
            except FileNotFoundError:
                self._waiting.discard(each)
            except OSError as error:
                log.debug("group %s stays for now: %s", each, error)
            else:
                self._waiting.discard(each)
                self._tidy(os.path.dirname(each))

    def _tidy(self, sessions: str) -> None:
        if sessions == self._own:
            return
        top = os.path.dirname(sessions)
        for each in (sessions, f"{top}/{OWN}", top):
            try:
                remove_group(each)
            except FileNotFoundError:
                continue
            except OSError:  # something lives there, or it is not ours
                return


class GroupTree:
    """Part of the group tree that belongs to the supervisor: a directory that it may divide;
    `sessions` is that of their groups, which these controllers limit.

    A process in it has to make room for sessions, and gets a group of its own: this one (0),
    another one, or none (None) where it was divided already.

    Raises `NoGroupsError` if it cannot be divided, or nothing would limit memory or processes.
    """

    def __init__(self, directory: str, *, pid: int | None = 0, own: str = OWN) -> None:
        self.directory = directory
        self.sessions = f"{directory}/sessions"
        available = read_words(directory, "cgroup.controllers")
        wanted = [name for name in CONTROLLERS if name in available]
        if not {"memory", "pids"} & set(wanted):
            raise NoGroupsError(
                f"{directory} was delegated without the controllers of memory and processes",
                "Have `DelegateControllers=` or `Delegate=` name `memory pids cpu`.",
            )
        home = f"{directory}/{own}"
        try:
            if pid is not None:
                _make(home)
                write_file(home, "cgroup.procs", str(pid or os.getpid()))
            _make(self.sessions)
            for name in wanted:
                write_file(directory, "cgroup.subtree_control", f"+{name}")
                write_file(self.sessions, "cgroup.subtree_control", f"+{name}")
        except OSError as error:
            if pid is not None:
                self._undo(home, pid or os.getpid())
            raise NoGroupsError(f"{directory} cannot be divided: {error.strerror}") from error
        # Read back: only that says what applies.
        self.controllers = read_words(self.sessions, "cgroup.subtree_control") & set(wanted)
        with suppress(OSError):
            write_file(home, "cpu.weight", str(OWN_WEIGHT))
        self._leftovers = Leftovers(self.sessions)
        self._sweep()

    def __repr__(self) -> str:
        return f"<GroupTree {self.directory}>"

    @property
    def there(self) -> bool:
        """True while groups can still be made in it."""
        return os.path.isdir(self.sessions)

    def make(self, name: str) -> str:
        """Make a group for a session; returns its directory."""
        directory = f"{self.sessions}/{name}"
        make_group(directory)
        return directory

    def remove(self, directory: str) -> None:
        """Remove a group whose processes have ended (`Leftovers`)."""
        self._leftovers.remove(directory)

    def _sweep(self) -> None:
        """Remove groups that a killed supervisor left; groups of live sessions stay."""
        with suppress(OSError):
            for name in os.listdir(self.sessions):
                if os.path.isdir(f"{self.sessions}/{name}"):
                    self.remove(f"{self.sessions}/{name}")

    def _undo(self, home: str, pid: int) -> None:
        """Restore everything as it was, as far as possible."""
        for name in CONTROLLERS:
            with suppress(OSError):
                write_file(self.directory, "cgroup.subtree_control", f"-{name}")
        with suppress(OSError):
            write_file(self.directory, "cgroup.procs", str(pid))
        for each in (self.sessions, home):
            with suppress(OSError):
                remove_group(each)


def divided_around(place: GroupPlace) -> str | None:
    """Find the part of the tree that is divided around this process's group; None if none is."""
    around, name = os.path.split(place.directory)
    ours = name == OWN and os.access(f"{around}/sessions/cgroup.procs", os.W_OK)
    return around if ours else None


def make_own_directory(place: GroupPlace) -> str:
    """Make a part of the tree for root, if nobody manages the tree, or raise NoGroupsError."""
    top = place.mount_point
    _sweep_old(top)
    directory = f"{top}/{_PREFIX}{os.getpid()}"
    try:
        for name in CONTROLLERS:
            if name in read_words(top, "cgroup.controllers"):
                write_file(top, "cgroup.subtree_control", f"+{name}")
        _make(directory)
    except OSError as error:
        raise NoGroupsError(
            f"root's own part of {top} cannot be made: {error.strerror}",
            "In a container, give it a writable cgroup tree whose root has no processes, or run "
            "the supervisor as its only one.",
        ) from error
    return directory


def _sweep_old(top: str) -> None:
    """Remove groups that earlier supervisors left."""
    with suppress(OSError):
        for name in os.listdir(top):
            number = name.removeprefix(_PREFIX)
            if name == number or not number.isdigit() or os.path.exists(f"/proc/{number}"):
                continue
            for folder, _, _ in os.walk(f"{top}/{name}", topdown=False):
                with suppress(OSError):  # a session lives on in it
                    remove_group(folder)


def _make(directory: str) -> None:
    with suppress(FileExistsError):
        make_group(directory)
