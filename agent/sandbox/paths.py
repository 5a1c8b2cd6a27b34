"""Paths in the session, walked name by name as the kernel does it, and directories."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.linux import c_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn


MAX_LINKS = 40
"""Symbolic links on the way to a file; the kernel's own limit, see path_resolution(7)."""

MAX_STEPS = 1000
"""Names on the way to a file, those in links included: the walk must not hold the agent up."""


class TransferError(Exception):
    """A file can't be read or written, or not any further. The text is for whoever asked; `code` is
    the name of the error number that says the same, such as `EISDIR`, or empty."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = errno.errorcode.get(code, "")


WORDS = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of the path that should be a directory is none",
    errno.EISDIR: "is a directory: name a file",
    errno.EACCES: "the session's user has no permission",
    errno.EPERM: "the session's user has no permission",
    errno.ENOSPC: "no space is left on that file system; what was there before is unchanged",
    errno.EDQUOT: "no space is left on that file system; what was there before is unchanged",
    errno.EROFS: "is on a read-only file system: write below /workspace or /tmp",
    errno.EEXIST: "exists already, and is not to be overwritten",
    errno.ELOOP: "goes through too many links or directories",
    errno.ENAMETOOLONG: "a name in it is too long",
    errno.EMFILE: "the session has no descriptors left",
    errno.ENFILE: "the session has no descriptors left",
    errno.EAGAIN: "a program in the session holds a lease on it (fcntl): try again",
    errno.EBUSY: "is a mount point, which stays: remove what is in it",
    errno.ENOTEMPTY: "is a directory with something in it: remove that as well (recursive)",
    errno.EXDEV: "is on another file system than its new name: copy it, and remove it",
    errno.ENXIO: "is not a regular file",
    errno.ESPIPE: "is not a regular file",
}

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# Of linux/magic.h. Files there are the kernel's, and show this process what they hide from others.
VIRTUAL_FILE_SYSTEMS = {
    0x9FA0: "/proc",
    0x62656572: "/sys",
    0x27E0EB: "a cgroup",
    0x63677270: "a cgroup",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xF97CFF8C: "selinuxfs",
    0x62656570: "configfs",
    0xCAFE4A11: "bpf",
    0x6E736673: "nsfs",
    0x1CD1: "devpts",
    0x19800202: "mqueue",
    0x42494E4D: "binfmt_misc",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0x65735543: "fusectl",
    0x67596969: "rpc_pipefs",
    0x09041934: "no directory",
}


def file_system(fd: int) -> int:
    """Magic number of the file system that an open file is on, see statfs(2)."""
    import ctypes

    answer = (ctypes.c_long * 64)()  # f_type comes first; the rest has room
    if c_library().fstatfs(fd, answer) < 0:
        fail_with(ctypes.get_errno())
    return answer[0] & 0xFFFFFFFF


def open_path(path: str) -> int:
    """A descriptor with O_PATH of what an absolute path names, links followed.

    Each name is opened by itself and each link read here, so that nothing on the way is one of
    /proc's: those links lead to files by no name, and for this process to its own. Raise
    TransferError if it leads into a virtual file system.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    names = path.split("/")[::-1]
    links = steps = 0
    here = os.open("/", flags | os.O_DIRECTORY)
    try:
        while names:
            name = names.pop()
            if name in {"", "."}:
                continue
            steps += 1
            if steps > MAX_STEPS or links > MAX_LINKS:
                fail_with(errno.ELOOP)
            found = os.open(name, flags, dir_fd=here)
            try:
                refuse_virtual(found, path)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    target = os.readlink("", dir_fd=found)
                    names.extend(target.split("/")[::-1])
                    if not target.startswith("/"):
                        continue
                    root = os.open("/", flags | os.O_DIRECTORY)
                    os.close(found)
                    found = root
                here, found = found, here
            finally:
                os.close(found)
    except BaseException:
        os.close(here)
        raise
    return here


def fail_with(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


def refuse_virtual(fd: int, path: str) -> None:
    """Raise TransferError if the file is one that the kernel makes up."""
    name = VIRTUAL_FILE_SYSTEMS.get(file_system(fd))
    if name is not None:
        raise TransferError(
            f"{path}: is or leads through {name}, which holds no files", errno.EPERM
        )


def refuse_special(mode: int, path: str) -> None:
    """Raise TransferError if it is not a regular file."""
    if stat.S_ISDIR(mode):
        raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise TransferError(f"{path}: is {kind}: only regular files are copied", errno.EINVAL)


def free_bytes(fd: int) -> int | None:
    """Room on the file system that a descriptor is on; None where that has no limit of its own."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def open_directory(path: str) -> int:
    """A descriptor with O_PATH of a directory, links followed. Raises: as `open_path`."""
    found = open_path(path)
    try:
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            fail_with(errno.ENOTDIR)
    except BaseException:
        os.close(found)
        raise
    return found


def absolute_path(workspace: str, path: object) -> str:
    """The absolute path that a request means; TransferError for one that no file could have."""
    if not isinstance(path, str) or not path:
        raise TransferError("path must be a text that is not empty", errno.EINVAL)
    whole = os.path.join(workspace, path)
    if "\0" in path or len(os.fsencode(whole)) >= 4096:  # PATH_MAX
        raise TransferError("the path is too long or has a NUL in it", errno.ENAMETOOLONG)
    return whole


def open_parent(path: str) -> tuple[int, str]:
    """A descriptor of the directory that something is in, and its name there. Raise TransferError
    if a name is missing, or as `open_path`."""
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in {"", ".", ".."}:
        raise TransferError(f"{path}: has no name of its own here", errno.EINVAL)
    return open_directory(parent or "/"), name


def make_directories(path: str) -> None:
    """Make a directory and those around it that are missing, less the umask.

    Links on the way are followed, and the last name must be no link.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    names = [name for name in path.split("/") if name not in {"", "."}]
    if len(names) > MAX_STEPS:
        fail_with(errno.ELOOP)
    here, links = open_path("/"), 0
    try:
        for number, name in enumerate(names):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            found = os.open(name, flags, dir_fd=here)
            try:
                refuse_virtual(found, path)
                mode = os.fstat(found).st_mode
                if stat.S_ISLNK(mode) and number < len(names) - 1:
                    links += 1
                    if links > MAX_LINKS:
                        fail_with(errno.ELOOP)
                    other = open_directory("/" + "/".join(names[: number + 1]))
                    os.close(found)
                    found = other
                elif not stat.S_ISDIR(mode):
                    fail_with(errno.EEXIST if number == len(names) - 1 else errno.ENOTDIR)
                here, found = found, here
            finally:
                os.close(found)
    finally:
        os.close(here)


def make_directory(path: str) -> bool:
    """Make a directory by its path, as `make_directory_in` does."""
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in {"", ".", ".."}:
        return False
    directory = open_directory(parent or "/")
    try:
        return make_directory_in(directory, name)
    finally:
        os.close(directory)


def make_directory_in(directory: int, name: str) -> bool:
    """Make a directory, less the umask, if it is not there; no link is taken for one. Return
    whether it was made."""
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
        return False
    return True


MAX_PAGE = 1000
"""Entries of a directory in one answer, if their details are wanted."""

MAX_SCANNED = 1_000_000
"""Entries that one page is chosen from: the agent does nothing else meanwhile."""


def page_of(fd: int, after: str, count: int) -> tuple[list[list[object]], bool]:
    """Entries of a directory, by name: those behind a name, and whether more follow.

    Raise TransferError if it has too many entries.
    """
    import heapq

    scanned = 0

    def names() -> Iterator[str]:
        nonlocal scanned
        for entry in found:
            scanned += 1
            if scanned > MAX_SCANNED:
                raise TransferError(f"has more than {MAX_SCANNED} entries", errno.EFBIG)
            if entry.name > after:
                yield entry.name

    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(f"/proc/self/fd/{fd}", flags)
    entries: list[list[object]] = []
    try:
        with os.scandir(directory) as found:
            chosen = heapq.nsmallest(count + 1, names())
        for name in chosen[:count]:
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                entries.append(entry_of(name, status))
    finally:
        os.close(directory)
    return entries, len(chosen) > count


def entry_of(name: str, status: os.stat_result) -> list[object]:
    """Name, kind, size, permissions and time of the last change (microseconds)."""
    mode, modified_us = status.st_mode, status.st_mtime_ns // 1000
    if stat.S_ISREG(mode):
        kind = "file"
    elif stat.S_ISDIR(mode):
        kind = "directory"
    else:
        kind = "link" if stat.S_ISLNK(mode) else "other"
    size = status.st_size if kind == "file" else 0
    return [name, kind, min(size, 2**53), mode & 0o7777, max(0, min(modified_us, 2**53))]


def name_of(fd: int) -> str:
    """The path by which the kernel knows an open file."""
    return os.readlink(f"/proc/self/fd/{fd}")
