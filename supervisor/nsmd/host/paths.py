"""Checks of paths: may this be run, shown, trusted; and what the answer of a look-up depends on.

A path means something else as soon as one of its directories is renamed, or one of its symbolic
links exchanged. So to know whether an answer still holds, all of them must be watched; and to run a
program, each one's owner must be trusted. A `Trail` follows a path as the kernel does
(path_resolution(7)), one component after another, and notes both. All of this blocks.

To watch one directory would miss an exchanged link or a renamed directory further up, which is how
home-manager and `nix build -o` replace things. Watching recursively sees the inside of what was
found, and nothing of the way to it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache

from nsm.paths import open_linkless

SECRETS = (
    ".ansible",
    ".aws",
    ".azure",
    ".cargo/credentials.toml",
    ".claude",
    ".codex",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/google-chrome",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".docker",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".mozilla",
    ".oci",
    ".password-store",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
)
"""Directories below HOME in which programs keep keys and tokens."""

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run/user", "/sys")
"""Never shown, with everything below: the host's configuration, devices and sockets."""

_SHARED = ("/run", "/tmp", "/var/run", "/var/tmp")  # noqa: S108 - they are refused, not used
"""Not shown as a whole: other programs' sockets lie there, and a jail without network can connect
to any socket that it sees. Directories below may be shown.
"""

_HOME_MARKS = (".ssh", ".gnupg")
"""A directory that contains one of these is somebody's home, whatever HOME says."""


_READ, _SEARCH = 0o4, 0o1

_MAX_DEPTH = 100
"""Largest number of components of a path to look for."""


def printable(path: str) -> str:
    """Format a path with any bytes for people."""
    return path if path.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in path)


def is_within(path: str, directory: str) -> bool:
    """Return whether a normalised absolute path is that directory or lies below. It compares
    components, so `/work-evil` is not in `/work`.
    """
    return directory == "/" or path == directory or path.startswith(directory + "/")


def has_below(directory: str, path: str) -> bool:
    """Return whether a directory has a file at a path below it; follows no link, opens nothing
    else.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names or "\0" in path or len(names) > _MAX_DEPTH:
        return False
    try:
        os.close(open_linkless(os.path.join(directory, *names)))
    except (OSError, UnicodeEncodeError):
        return False
    return True


def why_private(path: str, home: str, private: tuple[str, ...] = ()) -> str | None:
    """Return why a directory must not be shown in a jail.

    Args:
        private: further directories to keep to ourselves, e.g. the one of the control socket.
    """
    if reason := _why_private_by_name(path, home, private):
        return reason
    for mark in _HOME_MARKS:
        if os.access(f"{path}/{mark}", os.F_OK, follow_symlinks=False):
            return f"holds {mark}, so it seems to be a home directory"
    return None


@lru_cache
def _why_private_by_name(path: str, home: str, private: tuple[str, ...]) -> str | None:
    if path == "/":
        return "is the root of the file system"
    if path == home:
        return "is your home directory"
    if is_within(home, path):
        return f"holds your home directory, {home}"
    for directory in _SYSTEM:
        if path == directory:
            return "belongs to the system"
        if is_within(path, directory):
            return f"lies in {directory}, which belongs to the system"
    for directory in (*_SYSTEM, *_SHARED):
        if is_within(directory, path):
            return f"is or holds {directory}, where other programs keep their sockets and secrets"
    for secret in (*private, *(os.path.join(home, name) for name in SECRETS)):
        if is_within(path, secret):
            return f"is or lies in {secret}, which may hold secrets"
        if is_within(secret, path):
            return f"holds {secret}, which may hold secrets"
    return None


def trusted_owners(proc: str = "/proc") -> frozenset[int]:
    """Users whose programs we run: root and ourselves.

    In a user namespace that does not map the host's root (a rootless container, Flatpak), the
    system's files seem to belong to the overflow user (user_namespaces(7)); nobody in there can be
    that user.
    """
    owners = {0, os.geteuid()}
    try:
        with open(os.path.join(proc, "self/uid_map"), encoding="ascii") as file:
            maps_everyone = file.read().split() == ["0", "0", str(2**32 - 1)]
        if not maps_everyone:
            with open(os.path.join(proc, "sys/kernel/overflowuid"), encoding="ascii") as file:
                owners.add(int(file.read()))
    except (OSError, ValueError):
        pass  # no user namespaces here
    return frozenset(owners)


def why_untrusted(path: str, owners: Collection[int]) -> str | None:
    """Return why somebody other than these users could exchange a program; None if nobody could."""
    folder = os.path.dirname(path)
    for part in _ancestors_and_self(path):
        shared = part not in (path, folder)
        if reason := why_replaceable(part, os.stat(part), owners, may_be_shared=shared):
            return reason
    return None


def why_replaceable(
    part: str, found: os.stat_result, owners: Collection[int], *, may_be_shared: bool
) -> str | None:
    """Return why others could exchange one part of a path, or its content; None if nobody could.

    Args:
        may_be_shared: it may be a directory of many users, like /tmp or /nix/store.
    """
    if found.st_uid not in owners:
        return f"{part} belongs to user {found.st_uid}"
    # In a sticky directory such as /tmp others cannot rename our files; Nix's store is one, which
    # its builders' group may write to.
    if stat.S_ISLNK(found.st_mode) or (may_be_shared and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"{part} is writable by everyone"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid, part):
        return f"{part} is writable by group {found.st_gid}"
    return None


def why_not_run(program: str, *, configured: bool = False) -> str | None:
    """Return why somebody else may have put that program there.

    Args:
        configured: the user named it. Then it may belong to anybody, but not be writable for
            everybody.
    """
    real = os.path.realpath(program)
    listed = os.path.join(os.path.realpath(os.path.dirname(program)), os.path.basename(program))
    try:
        owners = trusted_owners()
        if configured:
            owners |= {os.stat(part).st_uid for part in (real, os.path.dirname(real))}
        return why_untrusted(listed, owners) or why_untrusted(real, owners)
    except OSError as error:
        return f"{error.strerror}"


def why_unreachable(path: str, uid: int, gid: int) -> str | None:
    """Return why a user without further groups cannot read a directory or file; None if it can.

    It reads mode bits only, no access lists.
    """
    for part in _ancestors_and_self(os.path.dirname(path)):
        if reason := _why_closed(part, uid, gid, _SEARCH):
            return reason
    return why_unreadable(path, uid, gid)


def why_unreadable(path: str, uid: int, gid: int) -> str | None:
    """Like `why_unreachable`, but without the directories on the way."""
    is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    return _why_closed(path, uid, gid, _READ | _SEARCH if is_directory else _READ)


def _ancestors_and_self(path: str) -> Iterator[str]:
    """`/`, `/a`, `/a/b` of `/a/b`."""
    yield "/"
    for end, character in enumerate(path):
        if character == "/" and end > 0:
            yield path[:end]
    if path != "/":
        yield path


def _why_closed(path: str, uid: int, gid: int, needed: int) -> str | None:
    found = os.stat(path)
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == gid else 0
    if found.st_mode >> shift & needed == needed:
        return None
    mode = stat.S_IMODE(found.st_mode)
    return f"{path} (mode {mode:04o}, owner {found.st_uid}) is closed to user {uid}"


def _is_own_group(gid: int, path: str) -> bool:
    """Return whether only we or root can write with that group's rights.

    This holds for the group with our own name (user private groups). Below /usr (Debian: /usr/local
    of group staff) a group that can write could take over everything anyway.
    """
    if gid == 0 or is_within(path, "/usr"):
        return True
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name


MAX_LINKS = 40
"""Symbolic links to follow in one path, as many as Linux does."""

ANY = ""
"""Stand-in for a name: every entry of the directory matters."""

NoWay = Callable[[str], str | None]

WatchedPaths = Mapping[str, frozenset[str]]
"""Directories, each with the entries that matter. If none matters, only changes of the directory
itself do.
"""


class DistrustError(OSError):
    """Somebody else could exchange this path; the message says who or how."""


class Trail:
    """Record of followed paths.

    Args:
        no_way: returns why the jails' user cannot reach a file; None if it can.
    """

    def __init__(self, owners: Collection[int], no_way: NoWay = lambda _: None) -> None:
        self._owners = owners
        self._no_way = no_way
        self._seen: dict[str, os.stat_result | OSError] = {}
        self._places: dict[str, set[str]] = {}

    @property
    def places(self) -> WatchedPaths:
        """Paths to watch."""
        return {place: frozenset(names) for place, names in self._places.items()}

    def list(self, directory: str) -> list[str]:
        """List the names in a directory, sorted."""
        self._note(directory, ANY)
        return sorted(os.listdir(directory))

    def follow(self, path: str, *, trusted: bool = True) -> str:
        """Follow an absolute path. Returns the path without symbolic links.

        Args:
            trusted: refuse a path that somebody else could exchange.

        Raises:
            DistrustError: somebody else could exchange it.
            OSError: nothing is there, there are too many links, or it cannot be read.
        """
        current, links = "/", 0
        rest = path.split("/")[::-1]
        if trusted:
            self._check(current, self._status(current), last=False)
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current = os.path.dirname(current)
                continue
            child = os.path.join(current, name)
            last = not any(part not in ("", ".") for part in rest)
            try:
                status = self._status(child)
                if trusted:
                    self._check(child, status, last=last)
            except OSError:
                self._note(current, name)
                raise
            if stat.S_ISDIR(status.st_mode):
                self._note(child)
                current = child
                continue
            self._note(current, name)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(child)
                rest += target.split("/")[::-1]
                current = "/" if target.startswith("/") else current
                continue
            if not last:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), child)
            current = child
        return current

    def why_closed(self, path: str) -> str | None:
        """Return why jails could not use the target of a path from `follow`; None if they can."""
        return self._no_way(path)

    def status(self, path: str) -> os.stat_result:
        """Read the status of a path from `follow`."""
        return self._status(path)

    def _status(self, path: str) -> os.stat_result:
        # Each is read once, so that all paths of one look agree, and common beginnings are free.
        found = self._seen.get(path)
        if found is None:
            try:
                found = os.lstat(path)
            except OSError as error:
                found = error
            except ValueError:  # no name of a file: a lone surrogate from a client's JSON
                found = OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self._seen[path] = found
        if isinstance(found, OSError):
            raise found
        return found

    def _check(self, part: str, status: os.stat_result, *, last: bool) -> None:
        shared = stat.S_ISDIR(status.st_mode) and not last
        if reason := why_replaceable(part, status, self._owners, may_be_shared=shared):
            raise DistrustError(errno.EPERM, reason, part)

    def _note(self, directory: str, name: str | None = None) -> None:
        names = self._places.setdefault(directory, set())
        if name is not None:
            names.add(name)


def file_stamp(path: str, *, links: bool = True) -> tuple[int, ...]:
    """Value that changes when a file is changed or replaced; empty if there is none.

    Args:
        links: follow a symbolic link at its end.
    """
    try:
        found = os.stat(path, follow_symlinks=links)
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns
