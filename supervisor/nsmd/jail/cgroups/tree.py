"""The supervisor's own part of the tree: itself in one group, each session in another.

    DIRECTORY              what was delegated
      supervisor           the supervisor, templates, and what it starts beside jails
      sessions
        ID                 one session

Controllers limit in a group whose parent passes them down, and a group that does so may have no
processes itself (cgroup-v2.rst, "No Internal Process Constraint"): hence the group for the
supervisor.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from nsmd.jail.cgroups import files
from nsmd.jail.cgroups.discovery import CONTROLLERS, GroupPlace, NoGroupsError

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
    ending may. With the last group of an earlier supervisor, the groups around it are removed.

    Args:
        own: directory of this supervisor's groups, which stays; empty if it has none.
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
                files.remove(each)
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
                files.remove(each)
            except FileNotFoundError:
                continue
            except OSError:  # something lives there, or it is not ours
                return


class GroupTree:
    """Part of the group tree that belongs to the supervisor.

    Args:
        directory: directory that we may divide.
        pid: process in it that has to make room for sessions: 0 for this one. None for a tree that
            was divided already.
        own: name of that process's group.

    Attributes:
        controllers: controllers that limit sessions.
        sessions: directory of their groups.

    Raises:
        NoGroupsError: it cannot be divided, or nothing would limit memory or processes.
    """

    def __init__(self, directory: str, *, pid: int | None = 0, own: str = OWN) -> None:
        self.directory = directory
        self.sessions = f"{directory}/sessions"
        available = files.words(directory, "cgroup.controllers")
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
                files.write(home, "cgroup.procs", str(pid or os.getpid()))
            _make(self.sessions)
            for name in wanted:
                files.write(directory, "cgroup.subtree_control", f"+{name}")
                files.write(self.sessions, "cgroup.subtree_control", f"+{name}")
        except OSError as error:
            if pid is not None:
                self._undo(home, pid or os.getpid())
            raise NoGroupsError(f"{directory} cannot be divided: {error.strerror}") from error
        # Read back: only that says what applies.
        self.controllers = files.words(self.sessions, "cgroup.subtree_control") & set(wanted)
        with suppress(OSError):
            files.write(home, "cpu.weight", str(OWN_WEIGHT))
        self._leftovers = Leftovers(self.sessions)
        self._sweep()

    def __repr__(self) -> str:
        return f"<GroupTree {self.directory}>"

    @property
    def there(self) -> bool:
        """True while groups can still be made in it."""
        return os.path.isdir(self.sessions)

    def make(self, name: str) -> str:
        """Make a group for a session; returns its directory.

        Raises:
            OSError: it cannot be made.
        """
        directory = f"{self.sessions}/{name}"
        files.make(directory)
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
                files.write(self.directory, "cgroup.subtree_control", f"-{name}")
        with suppress(OSError):
            files.write(self.directory, "cgroup.procs", str(pid))
        for each in (self.sessions, home):
            with suppress(OSError):
                files.remove(each)


def divided_around(place: GroupPlace) -> str | None:
    """Find the part of the tree that is divided around this process's group; None if none is."""
    around, name = os.path.split(place.directory)
    ours = name == OWN and os.access(f"{around}/sessions/cgroup.procs", os.W_OK)
    return around if ours else None


def make_own_directory(place: GroupPlace) -> str:
    """Make a part of the tree for root, if nobody manages the tree.

    Raises:
        NoGroupsError: it cannot be made.
    """
    top = place.mount_point
    _sweep_old(top)
    directory = f"{top}/{_PREFIX}{os.getpid()}"
    try:
        for name in CONTROLLERS:
            if name in files.words(top, "cgroup.controllers"):
                files.write(top, "cgroup.subtree_control", f"+{name}")
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
                    files.remove(folder)


def _make(directory: str) -> None:
    with suppress(FileExistsError):
        files.make(directory)
