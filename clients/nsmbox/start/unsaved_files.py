"""Files that a box wrote into its memory, and that would vanish with it.

HOME of a box is in memory, and so are directories beside the project. An agent that puts work there
loses it. A descriptor of the box's mount namespace keeps the mounts when all its processes have
ended. So nsm then reads the files there, reports them, and keeps them for a day. It leaves out
names in HOME that begin with a dot, since programs keep their own files there.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from nsm import below, paths
from nsm.cli.render import formats
from nsm.dataclass import dataclass, field
from nsmbox.consent.readable import path as legible_path
from nsmbox.model.plan import BoxError
from nsmbox.protection.secrets import within

MAX_KEPT_BYTES = 256 * 1024 * 1024
MAX_FILES = 10_000
MAX_ENTRIES = 100_000
MAX_TOLD = 8
MAX_DEPTH = 64

DAY_S = 24 * 3600

_NS_GET_USERNS = 0xB701  # linux/nsfs.h


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file in the memory of a box."""

    path: str
    size: int


def places(home: str, directory: str) -> tuple[str, ...]:
    """Directories of a box in which work may have been put."""
    above = os.path.dirname(directory)
    temporary = ("/tmp/", "/var/tmp/")  # noqa: S108  # those of the box
    beside = above.startswith(temporary) and not within(above, home)
    return (home, above) if beside else (home,)


def keep(mounts: int, directory: str, looked_at: Sequence[str], home: str) -> str:
    """Keep what an ended box has left in its memory.

    Args:
        mounts: a descriptor of its mount namespace.

    Returns:
        Message for people; empty if there is nothing.
    """
    purge()
    found: list[WrittenFile] = []
    kept = _Kept(_place(directory))
    for path in looked_at:
        top = _opened(mounts, path)
        if top is None:
            continue
        with ExitStack() as closing:
            closing.callback(os.close, top)
            if _is_of_host(top, path):
                continue
            found += kept.take(top, path, hides_dots=path == home)
    if not found and not kept.unseen:
        return ""
    lines = [
        f"{legible_path(file.path, home)} ({formats.size(file.size)})" for file in found[:MAX_TOLD]
    ]
    if len(found) > MAX_TOLD:
        lines.append(f"and {len(found) - MAX_TOLD} more")
    lost = len(found) - kept.files
    if kept.files:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + DAY_S))
        lines.append(f"`nsm box --keep-last` here gets them back, until {until}")
    if lost:
        lines.append(f"{lost} of them could not be kept")
    if kept.unseen:
        first = legible_path(kept.unseen[0], home)
        more = f" and {len(kept.unseen) - 1} more" if len(kept.unseen) > 1 else ""
        lines.append(f"not looked into, and nothing in it was kept: {first}{more}")
    head = "the box wrote files outside of the project, which are not there any more:"
    return "\n  ".join([head, *lines])


def get_back(directory: str, target: str) -> tuple[str, int]:
    """Put what the last box in a directory has left in its memory into a new directory."""
    purge()
    source = _place(directory)
    if not os.path.isdir(source):
        raise BoxError(
            "no box that was started here has left files outside of the project within a day.",
            hint="Start it in the directory in which the box was.",
        )
    path = os.path.join(directory, target)
    try:
        # No link is followed there: the box may have put one, and another box may do so now.
        with below.opened_around(path) as (root, place):
            with below.parent_of(root, place, mounts=True) as (parent, name):
                os.mkdir(name, 0o700, dir_fd=parent)
            top = below.open_below(root, place, below.DIRECTORY, mounts=True)
        try:
            count = _put(source, top)
        finally:
            os.close(top)
    except OSError as error:
        raise BoxError(
            f"{path} cannot be made: {error.strerror or error}",
            hint="Name another directory: nsm box --keep-last DIR",
        ) from error
    shutil.rmtree(source, ignore_errors=True)
    return path, count


def _put(source: str, top: int) -> int:
    """Copy files into an open directory; returns how many there are."""
    count = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for folder, _, names in os.walk(source):
        inner = os.path.relpath(folder, source)
        if inner != ".":
            below.make_directories(top, inner)
        for name in names:
            place = os.path.normpath(os.path.join(inner, name))
            with (
                open(os.path.join(folder, name), "rb") as kept,
                open(below.open_below(top, place, flags, 0o600), "wb") as file,
            ):
                shutil.copyfileobj(kept, file)
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(kept.fileno()).st_mode))
            count += 1
    return count


def purge() -> None:
    """Remove what was kept longer than a day."""
    with suppress(OSError), os.scandir(_all()) as entries:
        for entry in list(entries):
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - DAY_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def _all() -> str:
    return os.path.join(paths.state_dir(), "box-last")


def _place(directory: str) -> str:
    return os.path.join(_all(), hashlib.sha256(os.fsencode(directory)).hexdigest()[:32])


def _opened(mounts: int, path: str) -> int | None:
    """Open a directory of an ended box.

    A child does it, since a process cannot leave a user namespace. Nothing of the box is run.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    ours, its = socket.socketpair()
    with ours, its:
        child = os.fork()
        if child == 0:
            try:
                user = fcntl.ioctl(mounts, _NS_GET_USERNS)
                if libc.setns(user, 0) == 0 and libc.setns(mounts, 0) == 0:
                    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                    socket.send_fds(its, [b"x"], [fd])
            except BaseException:  # noqa: BLE001, S110  # whatever it is, there is no descriptor
                pass
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        its.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(child, 0)
    return fds[0] if fds else None


def _is_of_host(top: int, path: str) -> bool:
    """Return whether a directory of an ended box is on the host's own file system: the box shows
    it, or was ended while it was made, and still had all mounts of the host."""
    try:
        return os.fstat(top).st_dev == os.stat(path).st_dev
    except OSError:
        return False


@dataclass(slots=True)
class _Kept:
    """Files that are kept of one box, in place of those of an earlier one.

    Attributes:
        room: bytes that may still be kept.
        entries: number of names that may still be looked at.
        unseen: directories that were not looked into.
    """

    place: str
    files: int = 0
    room: int = MAX_KEPT_BYTES
    entries: int = MAX_ENTRIES
    unseen: list[str] = field(default_factory=list[str])
    _made: set[str] = field(default_factory=set[str])

    def take(self, top: int, path: str, *, hides_dots: bool) -> Iterator[WrittenFile]:
        """Keep and yield the files below a directory of the box, but not what is mounted there."""
        device = os.fstat(top).st_dev
        yield from self._below(top, path, device, 0, hides_dots)

    def _below(
        self, folder: int, path: str, device: int, depth: int, hides_dots: bool
    ) -> Iterator[WrittenFile]:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            self.entries -= 1
            if self.entries < 0 or depth > MAX_DEPTH:
                self.unseen.append(path)
                return
            if hides_dots and name.startswith("."):
                continue
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if status.st_dev != device:
                continue
            inner = os.path.join(path, name)
            if stat.S_ISDIR(status.st_mode):
                try:
                    os.chmod(name, 0o700, dir_fd=folder)  # the box may have closed it
                    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                except OSError:
                    self.unseen.append(inner)
                    continue
                try:
                    yield from self._below(fd, inner, device, depth + 1, hides_dots=False)
                finally:
                    os.close(fd)
            elif stat.S_ISREG(status.st_mode):
                self._copy(folder, name, inner, status)
                yield WrittenFile(path=inner, size=status.st_size)

    def _copy(self, folder: int, name: str, path: str, status: os.stat_result) -> None:
        if status.st_size > self.room or self.files >= MAX_FILES:
            return
        with suppress(OSError):
            if not self._made:
                shutil.rmtree(self.place, ignore_errors=True)
                paths.ensure_private_dir(paths.state_dir())
            target = self.place + path
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            self._made.add(target)
            os.chmod(name, 0o600, dir_fd=folder)
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with open(source, "rb") as read, open(target, "xb") as write:
                shutil.copyfileobj(read, write)
            os.chmod(target, 0o700 if status.st_mode & 0o100 else 0o600)
            self.room -= status.st_size
            self.files += 1
