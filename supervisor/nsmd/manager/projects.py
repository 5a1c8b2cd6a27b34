"""The host directory that a session may see, and its mount point in the jail.

The client's variables and working directory come as arguments.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeVar

from nsm import below, git
from nsm.dataclass import replace
from nsm.wire.errors import BadProjectError
from nsmd.host.event_loop import BoundedReads
from nsmd.host.paths import is_within, why_private
from nsmd.model.settings import ProjectSettings
from nsmd.model.values import CheckedDirectory, ProjectMode, ProjectMount

T = TypeVar("T")

Unreadable = Callable[[str], str | None]
"""Returns why some user cannot read a path; None if it can."""

_RESERVED = (
    *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin"),
    *("/sys", "/tmp", "/usr", "/workspace"),  # noqa: S108 - names in the jail
)
"""Directories that every jail has itself."""


def choose_project(
    *,
    variables: Mapping[str, str],
    root: str | None,
    configured: str | None,
    cwd: str | None,
    mount_point: str,
    home: str,
    private: Collection[str] = (),
    unreadable: Unreadable = lambda _: None,
    mode: ProjectMode = "readonly",
) -> tuple[ProjectMount | None, str]:
    """Choose the project: the first directory that is given.

    An unusable directory also decides: falling through to the next would show code another project
    than its user expects. If the directory was named for nsm (PROJECT_DIR, `[project] path`), that
    is an error; if it was only the working directory or root, there is no project.

    Raises:
        BadProjectError: the mount point, or a directory that was named for nsm, is unusable.
    """
    check_mount_point(mount_point)
    for path, source, explicit in (
        (variables.get("PROJECT_DIR"), "PROJECT_DIR", True),
        (root, "the client's root", False),
        (variables.get("CLAUDE_PROJECT_DIR"), "CLAUDE_PROJECT_DIR", False),
        (configured, "[project] path", True),
        (cwd, "the working directory", False),
    ):
        if not path:
            continue
        try:
            mount = check_project(
                path, mount_point, home, private=private, unreadable=unreadable, mode=mode
            )
        except BadProjectError as error:
            message = f"{source}: {error.message}"
            if explicit:
                raise BadProjectError(message, hint=error.hint) from error
            return None, message
        return mount, ""
    return None, "no project directory was named"


def check_project(
    path: str,
    mount_point: str,
    home: str,
    *,
    private: Collection[str] = (),
    unreadable: Unreadable = lambda _: None,
    mode: ProjectMode = "readonly",
) -> ProjectMount:
    """Check that a jail may show a directory.

    Args:
        private: further directories that must not be shown, without links: the supervisor's own.
            Through its socket, code could start sessions that see everything.
        unreadable: returns why the jails' user cannot read a path; None if it can.

    Raises:
        BadProjectError: it must not or cannot be shown; the message says why.
    """
    check_mount_point(mount_point)
    real, found = _resolve(path, home)
    if not stat.S_ISDIR(found.st_mode):
        raise BadProjectError(f"{real} is not a directory.", hint="Name a directory.")
    reason = why_private(real, home, tuple(private))
    if reason is not None:
        raise BadProjectError(
            f"{real} {reason}; it is not shown to code in a jail.",
            hint="Name a project directory, e.g. with PROJECT_DIR.",
        )
    if not os.access(real, os.R_OK | os.X_OK):
        raise BadProjectError(
            f"{real} is not readable by the supervisor's user.",
            hint=f"Allow it, e.g. chmod u+rx {real}",
        )
    if reason := unreadable(real):
        raise BadProjectError(
            f"{real} cannot be shown: {reason}, the user that jails run as.",
            hint="Open it to that user, start nsm as the project's owner, or set [defaults] "
            "jail_uid in config.toml.",
        )
    mount = ProjectMount(
        path=real,
        mount_point=mount_point,
        device=found.st_dev,
        inode=found.st_ino,
        mode=mode,
    )
    if (shared := git.shared_directory(real)) is None:
        return mount
    return replace(mount, git=_shared_git(mount, *shared, home, tuple(private), unreadable))


def _shared_git(
    project: ProjectMount,
    path: str,
    named: str,
    home: str,
    private: tuple[str, ...],
    unreadable: Unreadable,
) -> CheckedDirectory | None:
    """Check the git directory that a linked worktree shares; None if jails cannot show it, and git
    does not work there.
    """
    place = posixpath.normpath(posixpath.join(project.mount_point, named))
    taken = (project.mount_point, *_RESERVED)
    try:
        if (
            # Below /tmp there is room in a jail of the session's own.
            (not is_within(place, "/tmp") and any(is_within(place, each) for each in taken))  # noqa: S108
            or any(is_within(each, place) for each in taken)
            or why_private(path, home, private)
            or not os.access(path, os.R_OK | os.X_OK)
            or unreadable(path)
        ):
            return None
        found = _looked_at(path)
        if found.st_uid not in (os.geteuid(), os.stat(project.path).st_uid):
            return None
    except OSError:
        return None
    return CheckedDirectory(path=path, mount_point=place, device=found.st_dev, inode=found.st_ino)


@lru_cache
def check_mount_point(mount_point: str) -> None:
    """Check that a jail can show a directory there."""
    if (
        not mount_point.startswith("/")
        or mount_point.startswith("//")
        or posixpath.normpath(mount_point) != mount_point
        or not mount_point.isprintable()
    ):
        raise BadProjectError(
            f"{mount_point!r} cannot be a mount point.",
            hint="Give an absolute path without '.', '..' or a trailing '/', such as /project.",
        )
    for reserved in _RESERVED:
        if is_within(mount_point, reserved) or is_within(reserved, mount_point):
            raise BadProjectError(
                f"{mount_point} cannot be a mount point: the jail has its own {reserved}.",
                hint="Choose another one, such as /project.",
            )


def project_mode(given: str | None) -> ProjectMode | None:
    """Read the mode that a client gives; None if it gives none."""
    match given or None:
        case None:
            return None
        case "readonly":
            return "readonly"
        case "overlay":
            return "overlay"
        case other:
            raise BadProjectError(
                f"The project's mode must be 'readonly' or 'overlay', not {other[:80]!r}.",
                hint="With overlay, code may change the project, in a copy of its session's own.",
            )


def _resolve(path: str, home: str) -> tuple[str, os.stat_result]:
    """Resolve a directory that somebody named. Returns its real path and its status."""
    expanded = home + path[1:] if path == "~" or path.startswith("~/") else path
    if not expanded.startswith("/"):
        raise BadProjectError(f"{path!r} is not an absolute path.", hint="Give the whole path.")
    with suppress(OSError, ValueError):
        found = _looked_at(expanded)
        if not stat.S_ISLNK(found.st_mode):
            return expanded, found  # usually there are no links in it
    try:
        real = os.path.realpath(expanded, strict=True)
        return real, _looked_at(real)
    except FileNotFoundError:
        raise BadProjectError(
            f"The project directory {expanded} does not exist.", hint="Check its spelling."
        ) from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL character.
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadProjectError(f"The project directory {expanded!r}: {why}.") from error


def _looked_at(real: str) -> os.stat_result:
    """Read the status of a path without links.

    The path and the status must belong together: otherwise, a link put on the way between the two
    look-ups could pass another directory off as this one.

    Raises:
        OSError: it is not there, or a link has come between.
    """
    fd = os.open(real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != real:
            raise OSError(errno.ESTALE, "it was moved while it was looked at; try again")
        return os.fstat(fd)
    finally:
        os.close(fd)


def _is_there(mount: ProjectMount) -> bool:
    """Return whether the directories are still those that were checked."""
    try:
        for each in (mount, mount.git) if mount.git else (mount,):
            status = os.stat(each.path)
            if (status.st_dev, status.st_ino) != (each.device, each.inode):
                return False
    except OSError:
        return False
    return True


def _is_known_there(mount: ProjectMount) -> bool:
    """Return whether that is known at once, without a thread that waits for a disk."""
    return all(
        below.known_identity(each.path) == (each.device, each.inode)
        for each in ((mount, mount.git) if mount.git else (mount,))
    )


class Projects:
    """Choice and checks of projects."""

    def __init__(
        self,
        settings: ProjectSettings,
        *,
        home: str,
        private: Sequence[str],
        unreadable: Unreadable,
    ) -> None:
        self._settings = settings
        self._reads = BoundedReads()
        self._home = os.path.realpath(home)
        self._private = tuple(os.path.realpath(item) for item in private)
        self._unreadable = unreadable

    def configure(self, settings: ProjectSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    def choose(
        self, *, variables: Mapping[str, str], root: str | None, cwd: str | None
    ) -> tuple[ProjectMount | None, str]:
        """Choose a project as `choose_project` does."""
        named = variables.get("PROJECT_DIR") or root or variables.get("CLAUDE_PROJECT_DIR")
        return self._read(
            named or self._settings.path or cwd or "",
            partial(
                choose_project,
                variables=variables,
                root=root,
                configured=self._settings.path,
                cwd=cwd,
                mount_point=variables.get("PROJECT_MOUNT") or self._settings.mount_point,
                home=self._home,
                private=self._private,
                unreadable=self._unreadable,
                mode=project_mode(variables.get("PROJECT_MODE")) or self._settings.mode,
            ),
        )

    def _read(self, path: str, function: Callable[[], T]) -> T:
        """Look at a project for a moment at most.

        Raises:
            BadProjectError: its disk hangs.
        """
        try:
            return self._reads.read(path, function)
        except TimeoutError as error:
            raise BadProjectError(
                f"The project directory {path} cannot be read: {error.strerror}.",
                hint="Is the machine reachable that has it? Other projects work meanwhile.",
            ) from error

    def check(
        self,
        path: str,
        mount_point: str | None = None,
        mode: ProjectMode | None = None,
        shown: ProjectMount | None = None,
    ) -> ProjectMount:
        """Check a project as `check_project` does.

        Args:
            shown: what a live session shows; not checked again if it is the same.
        """
        mount_point = mount_point or self._settings.mount_point
        mode = mode or self._settings.mode
        if shown and (shown.path, shown.mount_point, shown.mode) != (path, mount_point, mode):
            shown = None
        if shown is not None and _is_known_there(shown):
            return shown

        def look() -> ProjectMount:
            if shown is not None and _is_there(shown):
                return shown
            return check_project(
                path,
                mount_point,
                self._home,
                private=self._private,
                unreadable=self._unreadable,
                mode=mode,
            )

        return self._read(path, look)

    def current(self, mount: ProjectMount | None) -> ProjectMount | None:
        """Check a project once more: the directory may have been replaced since the first check.

        Raises:
            BadProjectError: it can or must no longer be mounted.
        """
        if mount is None or _is_known_there(mount):
            return mount
        if self._read(mount.path, partial(_is_there, mount)):
            return mount
        found = self.check(mount.path, mount.mount_point, mount.mode)
        if found.path != mount.path:
            # Anybody who may write there, for example an agent in a box, could replace it by
            # another directory.
            raise BadProjectError(
                f"{mount.path} was a directory, and is a link that leads to {found.path} now.",
                hint="Connect again, to have that one.",
            )
        return found
