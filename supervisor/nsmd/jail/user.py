"""The host user that jails run as."""

from __future__ import annotations

import grp
import os
from typing import NamedTuple

from nsmd.host.paths import why_unreachable, why_unreadable
from nsmd.jail.mounts import PrivateMounts


class Credentials(NamedTuple):
    """Arguments of `subprocess.Popen`; None for no change."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


class OtherGroupError(PermissionError):
    """A directory of this user belongs to a group that is not the supervisor's first one.

    Files of such a group can be read and written, and not copied within an overlay: an ordinary
    user's namespace has the number of one group, that of its process (user_namespaces(7)).

    Args:
        group: number of the directory's group.
        own: number of the supervisor's.

    Attributes:
        hint: what the user can do.
    """

    def __init__(self, group: int, own: int) -> None:
        name, ours = _group_name(group), _group_name(own)
        self.hint = (
            f"Start the supervisor in the project's group (`nsm shutdown`, then "
            f"`sg {name} -c 'nsm env'`), or give the project to {ours} (`chgrp -R {ours}`)."
        )
        super().__init__(
            f"its group is {name}, and an overlay can only copy files of the supervisor's group, "
            f"{ours}"
        )


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


class JailUser:
    """The host user that jails run as: an ordinary one if the supervisor runs as root, else its
    own.

    Even inside a user namespace, host uid 0 owns what the kernel protects by owner, such as
    /proc/sys, so a jail cannot hold it.

    Args:
        uid: user and group of jails, if the supervisor runs as root; else ignored.
        mounts: paths to directories that this user cannot reach.

    Raises:
        ValueError: jails would run as root.
    """

    def __init__(self, uid: int | None, mounts: PrivateMounts | None = None) -> None:
        self._changes = os.geteuid() == 0
        if self._changes and not uid:
            raise ValueError(
                "a supervisor that runs as root needs the id of an ordinary user to run jails as; "
                "set [defaults] jail_uid"
            )
        self.uid = uid if self._changes and uid else os.geteuid()
        self.gid = self.uid if self._changes else os.getegid()
        self._mounts = mounts

    def __repr__(self) -> str:
        return f"<JailUser {self.uid}>"

    @property
    def has_mounts(self) -> bool:
        """True if there can be paths to directories that this user cannot reach."""
        return self._mounts is not None

    def credentials(self) -> Credentials:
        """Return the arguments with which `subprocess.Popen` starts a program as this user."""
        if not self._changes:
            return Credentials(user=None, group=None, extra_groups=None)
        return Credentials(user=self.uid, group=self.uid, extra_groups=[])

    def why_impossible(self, proc: str = "/proc") -> str | None:
        """Why root cannot become this user here; None if it probably can.

        Args:
            proc: directory of procfs; other than `/proc` in tests only.
        """
        if not self._changes:
            return None
        try:
            with open(f"{proc}/self/uid_map", encoding="ascii") as file:
                ranges = [[int(field) for field in line.split()] for line in file]
            with open(f"{proc}/self/setgroups", encoding="ascii") as file:
                groups_denied = file.read().strip() == "deny"
        except (OSError, ValueError):
            return None
        if not any(first <= self.uid < first + count for first, _, count in ranges):
            return f"this user namespace has no user {self.uid}"
        return "this user namespace denies setgroups" if groups_denied else None

    def why_unreadable(self, path: str) -> str | None:
        """Why this user cannot read a directory or file; None if it can.

        Args:
            path: absolute, symlinks resolved.
        """
        try:
            if not self._changes:
                readable = os.access(path, os.R_OK)
                return None if readable else f"{path} is not readable"
            if self._mounts is not None:
                return why_unreadable(path, self.uid, self.uid)
            return why_unreachable(path, self.uid, self.uid)
        except OSError as error:
            return f"{path}: {error.strerror}"

    def can_use(self, device: str) -> bool:
        """Return whether this user can read and write a device.

        Access lists count for an ordinary user only: root would have to open the device to know.
        """
        if not self._changes:
            return os.access(device, os.R_OK | os.W_OK)
        found = os.stat(device)
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return found.st_mode >> shift & 0o6 == 0o6

    def why_no_way(self, path: str) -> str | None:
        """Why this user cannot reach a file by its own path; None if it can, or if there is no
        file.

        Args:
            path: absolute, symlinks resolved.
        """
        if not self._changes:
            return None  # the attempt will show
        try:
            return why_unreachable(path, self.uid, self.uid)
        except OSError:
            return None

    def give(self, path: str) -> None:
        """Make this user the owner of a directory.

        Raises:
            OSError: that fails.
        """
        if self._changes:
            os.chown(path, self.uid, self.uid)

    def way_to_own(self, directory: str) -> str:
        """Return a path by which the files of a directory's owner belong to this user.

        In a user namespace no other user's files can be changed in an overlay: their owners have no
        number there.

        Raises:
            PermissionError: there is none; the message names the owner.
            OSError: the directory is not there, or its file system does not translate owners.
        """
        found = os.stat(directory)
        if (found.st_uid, found.st_gid) == (self.uid, self.gid):
            return self.way_to(directory)
        whose = f"it belongs to user {found.st_uid}, group {found.st_gid}"
        if not self._changes:
            if found.st_uid == self.uid and found.st_gid in os.getgroups():
                raise OtherGroupError(found.st_gid, self.gid)
            raise PermissionError(f"{whose}, and you are user {self.uid}, group {self.gid}")
        if self._mounts is None:
            raise PermissionError(
                f"{whose}, jails run as user {self.uid}, and the kernel lets this supervisor mount "
                "nothing that would translate the one to the other"
            )
        if reason := why_unreadable(directory, self.uid, self.uid):
            raise PermissionError(f"{reason}, the user that jails run as")
        return self._mounts.expose(directory, self.uid)

    def way_to(self, directory: str) -> str:
        """Return a path by which this user reaches a directory; the path itself if the user can use
        it.

        Raises:
            OSError: there is none.
        """
        if not self._changes:
            return directory
        reason = why_unreachable(directory, self.uid, self.uid)
        if reason is None:
            return directory
        if self._mounts is None or why_unreadable(directory, self.uid, self.uid):
            raise PermissionError(f"{reason}, the user that jails run as")
        return self._mounts.expose(directory)
