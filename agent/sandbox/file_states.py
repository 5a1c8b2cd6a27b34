"""Files as they were: copies of what changed in a session's directories, and the way back.

A file that has the inode, size and change time that it had at the last look has not changed; code
cannot set a change time. But a file that is mapped into memory changes without a trace, so that one
is always copied.

Every name is looked up in an open directory, and no link is followed: code of the session may
rename things meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.capture import SpillFile
from sandbox.linux import punch_hole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping


DEEPEST_REMOVED = 150
"""Directories around a file that is removed; each takes a descriptor."""

ATTRIBUTES = ("user.", "system.posix_acl_")
"""Beginnings of the names of extended attributes that code can change."""

OVERLAY_ATTRIBUTES = "user.overlay."
"""Beginning of the names of those that the kernel keeps in an overlay's layer and does not show."""

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def attributes_of(fd: int) -> dict[str, bytes]:
    """Extended attributes of an open file or directory, as code can change them."""
    try:
        names = [name for name in os.listxattr(fd) if name.startswith(ATTRIBUTES)]
        return {
            name: os.getxattr(fd, name) for name in names if not name.startswith(OVERLAY_ATTRIBUTES)
        }
    except OSError:  # its file system has none
        return {}


def set_facts(fd: int, mode: int, modified: int, attributes: Mapping[str, bytes]) -> None:
    """Give an open file or directory its attributes, permissions, and time of the last change."""
    now = attributes_of(fd)
    for name in now.keys() - attributes.keys():
        os.removexattr(fd, name)
    missing = {name: value for name, value in attributes.items() if now.get(name) != value}
    # A list of users who may use a file has its permissions in it, so that it comes after these.
    # Other attributes need the permission to write.
    lists = {name for name in missing if not name.startswith("user.")}
    for name in missing.keys() - lists:
        os.setxattr(fd, name, missing[name])
    status = os.fstat(fd)
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(mode):
        os.fchmod(fd, stat.S_IMODE(mode))
    for name in lists:
        os.setxattr(fd, name, missing[name])
    if status.st_mtime_ns != modified:
        os.utime(fd, ns=(modified, modified))


def check_socket(inode: int, mode: int, status: os.stat_result | None) -> None:
    """Check that a socket is still there, by the status of what has its name now: no undo can bring
    one back."""
    if status is None or (status.st_ino, status.st_mode) != (inode, mode):
        raise OSError(0, "is gone: only its process can make a socket")


@contextlib.contextmanager
def opened_again(directory: int, name: bytes, flags: int, mode: int) -> Generator[int, None, None]:
    """Open for reading a file whose mode may forbid that, and leave its mode as it was."""
    needed = 0o500 if flags & os.O_DIRECTORY else 0o400
    closed = mode & needed != needed
    if closed:
        os.chmod(name, stat.S_IMODE(mode) | needed, dir_fd=directory)
    try:
        fd = os.open(name, flags, dir_fd=directory)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        if closed:
            os.chmod(name, stat.S_IMODE(mode), dir_fd=directory)


@contextlib.contextmanager
def opened_to_change(
    directory: int, name: bytes, flags: int, mode: int
) -> Generator[int, None, None]:
    """Open a file whose mode may forbid to change it. The caller sets the mode within the block."""
    if mode & stat.S_IRWXU != stat.S_IRWXU and not flags & os.O_CREAT:
        os.chmod(name, stat.S_IMODE(mode) | stat.S_IRWXU, dir_fd=directory)
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether a file is an overlay's mark for a removed one."""
    return stat.S_ISCHR(status.st_mode) and not status.st_rdev


def is_opaque(directory: int) -> bool:
    """Return whether an overlay's directory hides the one below it."""
    try:
        return os.getxattr(directory, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def status_in(directory: int, name: bytes) -> os.stat_result | None:
    """Status of what has a name in a directory; None if nothing has, or there is no directory."""
    if directory >= 0:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
    return None


def make_special(directory: int, name: bytes, mode: int, target: bytes, modified: int) -> None:
    """Make a link or a FIFO; nobody but its process can make a socket."""
    if stat.S_ISLNK(mode):
        os.symlink(target, name, dir_fd=directory)
    elif stat.S_ISFIFO(mode):
        os.mkfifo(name, stat.S_IMODE(mode), dir_fd=directory)
    else:
        return
    os.utime(name, ns=(modified, modified), dir_fd=directory, follow_symlinks=False)


def remove(directory: int, name: bytes, depth: int = 0) -> None:
    """Remove a file, or a directory and all below it."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    if depth > DEEPEST_REMOVED:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    with opened_to_change(directory, name, OPEN_DIRECTORY, status.st_mode) as fd:
        for below in os.listdir(fd):
            remove(fd, os.fsencode(below), depth + 1)
    os.rmdir(name, dir_fd=directory)


def transfer(source: int, start: int, sink: int, place: int, length: int) -> None:
    """Copy a part of a file into another one."""
    os.lseek(sink, place, os.SEEK_SET)
    end = start + length
    while start < end:
        copied = os.sendfile(sink, source, start, end - start)
        if not copied:
            return  # it was made shorter meanwhile
        start += copied


MAX_ENTRIES = 50_000
"""Files and directories; each takes some 15 us to look at."""

DEEPEST_KEPT = 64
"""Directories around a file; each takes a descriptor."""

MAX_LINKED = 64
"""Files with several names that are linked again; each takes a descriptor. Others become copies."""

OWN_DIRECTORY = SpillFile.DIRECTORY
"""In the workspace, and not code's: results say what is in it."""

BLOCK = 512
"""Bytes of the unit in which stat(2) counts."""

PAGE = os.sysconf("SC_PAGE_SIZE")

OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

MAX_ATTRIBUTE_BYTES = 4 * 1024 * 1024
"""Extended attributes of all files. They are in the agent's own memory."""


class UnkeptError(Exception):
    """The files cannot be kept; the message says why."""


class ContentStore:
    """Store of contents, in memory that has no name."""

    def __init__(self) -> None:
        self.bytes = 0
        self._end = 0
        self._fd = os.memfd_create("kept", os.MFD_CLOEXEC)

    def copy(self, fd: int) -> Content:
        """Keep the content of a file."""
        content = Content(self, os.fstat(fd).st_size)
        place = 0
        while True:
            try:
                start = os.lseek(fd, place, os.SEEK_DATA)
                place = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError:  # nothing but a hole is left
                return content
            here, length = self._end, place - start
            content.extents.append((start, length, here))
            self._end += -(-length // PAGE) * PAGE
            self.bytes += length
            transfer(fd, start, self._fd, here, length)

    def write(self, content: Content, fd: int) -> None:
        """Give an open file a content that was kept."""
        os.ftruncate(fd, 0)
        for start, length, place in content.extents:
            transfer(self._fd, place, fd, start, length)
        os.ftruncate(fd, content.size)

    def forget(self, content: Content) -> None:
        """Free the memory of a content."""
        for _, length, place in content.extents:
            self.bytes -= length
            punch_hole(self._fd, place, -(-length // PAGE) * PAGE)


class Content:
    """Content of a file at one moment; it is forgotten when nobody has this object any more."""

    __slots__ = ("_store", "extents", "size")

    def __init__(self, store: ContentStore, size: int) -> None:
        self._store = store
        self.size = size
        self.extents: list[tuple[int, int, int]] = []

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._store.forget(self)


class Entry:
    """A file, directory or link as it was.

    Attributes:
        is_mapped: it may have changed without a trace.
        is_linked: it has several names.
        is_opaque: a directory of an overlay's upper layer that hides the one below it.
    """

    __slots__ = (
        "attributes",
        "changed",
        "content",
        "entries",
        "inode",
        "is_linked",
        "is_mapped",
        "is_opaque",
        "mode",
        "modified",
        "target",
    )

    def __init__(self, status: os.stat_result) -> None:
        self.attributes: dict[str, bytes] = {}
        self.entries: dict[bytes, Entry] = {}
        self.content: Content | None = None
        self.target = b""
        self.is_mapped = self.is_opaque = False
        self.is_linked = status.st_nlink > 1
        self.mode = status.st_mode
        self.modified = status.st_mtime_ns
        self.note(status)

    def note(self, status: os.stat_result) -> None:
        self.inode = status.st_ino
        self.changed = status.st_ctime_ns

    def is_same(self, status: os.stat_result) -> bool:
        size = status.st_size if self.content is None else self.content.size
        return not self.is_mapped and (self.inode, self.changed, self.mode, size) == (
            status.st_ino,
            status.st_ctime_ns,
            status.st_mode,
            status.st_size,
        )


class FileLook:
    """One look at directories and all below them.

    Args:
        limit: bytes of content that may be kept.
        mapped: inodes of files that are mapped into memory.

    Attributes:
        total_bytes: size of all files that were seen.
        lacks_room: not all of them are kept.
    """

    def __init__(self, contents: ContentStore, limit: int, mapped: Collection[int]) -> None:
        self._contents = contents
        self._limit = limit
        self._mapped = mapped
        self._count = self._attribute_bytes = 0
        self._is_layer = False
        self.total_bytes = 0
        self.lacks_room = False

    def layer(self, directory: int, before: Entry | None) -> Entry:
        """The same for the upper layer of an overlay, with what marks deletions in it.

        Raise UnkeptError if there is too much.
        """
        self._is_layer = True
        entry = Entry(os.fstat(directory))
        self._below(directory, entry, before, 0)
        self._is_layer = False
        return entry

    def at(self, path: str, before: Entry | None) -> Entry:
        """Look at a directory, of which an earlier look has found `before`. Raise UnkeptError if
        there is too much."""
        fd = os.open(path, OPEN_DIRECTORY)
        try:
            entry = Entry(os.fstat(fd))
            self._below(fd, entry, before, 0)
        finally:
            os.close(fd)
        return entry

    def _below(self, directory: int, found: Entry, before: Entry | None, depth: int) -> None:
        if depth > DEEPEST_KEPT:
            raise UnkeptError(f"there are directories below {DEEPEST_KEPT} others")
        known = {} if before is None else before.entries
        found.is_opaque = self._is_layer and is_opaque(directory)
        self._take_attributes(directory, found)
        for name in os.listdir(directory):
            if not depth and name == OWN_DIRECTORY and not self._is_layer:
                continue
            self._count += 1
            if self._count > MAX_ENTRIES:
                raise UnkeptError(f"there are more than {MAX_ENTRIES} files")
            place = os.fsencode(name)
            with contextlib.suppress(FileNotFoundError):  # it was just removed
                entry = self._one(directory, place, known.get(place), depth)
                if entry is not None:
                    found.entries[place] = entry

    def _one(self, directory: int, name: bytes, before: Entry | None, depth: int) -> Entry | None:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self.total_bytes += status.st_blocks * BLOCK
            # In a layer, inodes have other numbers than those that processes see.
            is_mapped = bool(self._mapped) if self._is_layer else status.st_ino in self._mapped
            if before is not None and before.content and before.is_same(status) and not is_mapped:
                self._count_attributes(before)
                return before
            return self._file(directory, name, status, is_mapped)
        entry = Entry(status)
        if kind == stat.S_IFLNK:
            entry.target = os.readlink(name, dir_fd=directory)
        elif kind == stat.S_IFDIR:
            with opened_again(directory, name, OPEN_DIRECTORY, status.st_mode) as fd:
                self._below(fd, entry, before, depth + 1)
        elif kind not in {stat.S_IFIFO, stat.S_IFSOCK} and not (
            self._is_layer and is_whiteout(status)
        ):
            return None
        return entry

    def _take_attributes(self, fd: int, entry: Entry) -> None:
        entry.attributes = attributes_of(fd)
        self._count_attributes(entry)

    def _count_attributes(self, entry: Entry) -> None:
        self._attribute_bytes += sum(map(len, entry.attributes.values()))
        if self._attribute_bytes > MAX_ATTRIBUTE_BYTES:
            raise UnkeptError(
                f"extended attributes of files have more than {MAX_ATTRIBUTE_BYTES >> 20} MiB"
            )

    def _file(self, directory: int, name: bytes, status: os.stat_result, is_mapped: bool) -> Entry:
        room = self._limit - self._contents.bytes
        self.lacks_room = self.lacks_room or status.st_blocks * BLOCK > room
        if self.lacks_room:
            return Entry(status)
        with opened_again(directory, name, os.O_RDONLY | OPEN_FILE, status.st_mode) as fd:
            entry = Entry(os.fstat(fd))
            entry.mode = status.st_mode
            entry.is_mapped = is_mapped
            entry.content = self._contents.copy(fd)
            self._take_attributes(fd, entry)
        if not status.st_mode & stat.S_IRUSR:  # its mode was another one for a moment
            entry.note(os.stat(name, dir_fd=directory, follow_symlinks=False))
        return entry


class FileReturn:
    """The way back: makes a directory what it was."""

    def __init__(self, contents: ContentStore, mapped: Collection[int]) -> None:
        self.failed: list[str] = []
        self._contents = contents
        self._mapped = mapped
        self._linked: dict[int, int] = {}

    def to(self, path: str, entry: Entry) -> None:
        """Raise OSError if the directory cannot be opened."""
        fd = os.open(path, OPEN_DIRECTORY)
        try:
            self._directory(fd, entry, kept=OWN_DIRECTORY.encode())
        finally:
            os.close(fd)
            for linked in self._linked.values():
                os.close(linked)
            self._linked.clear()

    def _directory(self, directory: int, entry: Entry, kept: bytes = b"") -> None:
        for name in map(os.fsencode, os.listdir(directory)):
            if name not in entry.entries and name != kept:
                self._try(remove, directory, name)
        for name, wanted in entry.entries.items():
            self._try(self._one, directory, name, wanted)
        set_facts(directory, entry.mode, entry.modified, entry.attributes)

    def _try(
        self, step: Callable[..., None], directory: int, name: bytes, *arguments: object
    ) -> None:
        try:
            step(directory, name, *arguments)
        except OSError as error:
            self.failed.append(f"{os.fsdecode(name)} ({error.strerror})")

    def _one(self, directory: int, name: bytes, wanted: Entry) -> None:
        status = status_in(directory, name)
        kind = stat.S_IFMT(wanted.mode)
        if kind == stat.S_IFSOCK:
            check_socket(wanted.inode, wanted.mode, status)
            return
        if status is not None and stat.S_IFMT(status.st_mode) != kind:
            remove(directory, name)
            status = None
        if kind == stat.S_IFDIR:
            if status is None:
                os.mkdir(name, 0o700, dir_fd=directory)
            mode = stat.S_IRWXU if status is None else status.st_mode
            with opened_to_change(directory, name, OPEN_DIRECTORY, mode) as fd:
                self._directory(fd, wanted)
        elif kind == stat.S_IFREG:
            if status is None or not wanted.is_same(status) or status.st_ino in self._mapped:
                self._file(directory, name, wanted, status)
        elif status is None or not wanted.is_same(status):
            if status is not None:
                os.unlink(name, dir_fd=directory)
            make_special(directory, name, wanted.mode, wanted.target, wanted.modified)
            wanted.note(os.stat(name, dir_fd=directory, follow_symlinks=False))

    def _file(
        self, directory: int, name: bytes, wanted: Entry, status: os.stat_result | None
    ) -> None:
        assert wanted.content is not None, "a file has content"
        was = wanted.inode
        if was in self._linked:
            other = self._linked[was]
            if status is not None and status.st_ino != os.fstat(other).st_ino:
                os.unlink(name, dir_fd=directory)
                status = None
            if status is None:
                os.link(f"/proc/self/fd/{other}", name, dst_dir_fd=directory)
            wanted.note(os.stat(name, dir_fd=directory, follow_symlinks=False))
            return
        if status is not None and status.st_ino != was:
            os.unlink(name, dir_fd=directory)
            status = None
        flags = os.O_WRONLY | OPEN_FILE | (os.O_CREAT | os.O_EXCL if status is None else 0)
        mode = stat.S_IRWXU if status is None else status.st_mode
        with opened_to_change(directory, name, flags, mode) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "was replaced meanwhile")
            self._contents.write(wanted.content, fd)
            set_facts(fd, wanted.mode, wanted.modified, wanted.attributes)
            wanted.note(os.fstat(fd))
            if wanted.is_linked and len(self._linked) < MAX_LINKED:
                self._linked[was] = os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
