"""Files on their way into the session and out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.paths import (
    WORDS,
    TransferError,
    fail_with,
    free_bytes,
    name_of,
    open_path,
    refuse_special,
    refuse_virtual,
)

MAX_NUMBER = 2**53
"""Whole numbers from here on are not exact for every reader of JSON, and no frame has them."""


def write_whole(fd: int, data: bytes | bytearray) -> None:
    """write(2) until nothing is left."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


class FileReader:
    """A file on its way out of the session, as long as it was when it was opened.

    Raise TransferError unless it is a regular file, and if the kernel makes it up.

    Attributes:
        path: without links.
        size: bytes that it had; `moved` is what has been read of them.
    """

    def __init__(self, path: str) -> None:
        self.moved = 0
        found = open_path(path)
        try:
            status = os.fstat(found)
            refuse_special(status.st_mode, path)
            if path.endswith(("/", "/.")):
                fail_with(errno.ENOTDIR)
            if status.st_size >= MAX_NUMBER:
                raise TransferError(
                    f"{path}: has {status.st_size} bytes, more than can be copied", errno.EFBIG
                )
            self.path = name_of(found)
            # The very file that was looked at. It may be under a lease (fcntl(2)), and without
            # O_NONBLOCK its holder could keep this process waiting for 45 seconds.
            self._fd = os.open(
                f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        finally:
            os.close(found)
        self.size = status.st_size
        self.permissions = status.st_mode & 0o777
        self.free_bytes: int | None = None

    def read(self, count: int) -> tuple[bytes, bool]:
        """Up to `count` bytes, and whether they are the last. What was added since is left out."""
        data = os.read(self._fd, min(count, self.size - self.moved))
        self.moved += len(data)
        return data, not data or self.moved >= self.size

    def read_at(self, offset: int, count: int) -> tuple[bytes, bool]:
        """Up to `count` bytes from a place on, and whether they are the last."""
        data = os.pread(self._fd, count, offset)
        return data, offset + len(data) >= self.size

    def duplicate(self) -> int:
        """A descriptor for whoever reads the file directly."""
        return os.dup(self._fd)

    def close(self) -> None:
        os.close(self._fd)


TEMPORARY_PREFIX = ".nsm-"
"""Beginning of the names of temporary files; 16 digits follow."""


class FileWriter:
    """A file on its way into the session. It appears, whole, when it is kept.

    Until then it has no name, so that no reader sees half of it and nothing is left behind by
    whatever ends this process; on a file system without such files it has a name of its own. Raise
    TransferError if what is there can't be replaced by a file.

    Args:
        path: absolute; what is there must be a regular file or nothing, and no link.
        permissions: the lower nine bits count; None for those of what is there, else as usual.
        overwrite: False to refuse where something is, also if it appears meanwhile.
        directory: descriptor of the directory, if it is known. Then the path is for people, but
            for its last name, and what is there is looked at when the file is kept. Ours from now
            on.
    """

    UNNAMED = os.O_TMPFILE

    def __init__(
        self,
        path: str,
        permissions: int | None,
        *,
        overwrite: bool,
        directory: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.moved = 0
        self._overwrite = overwrite
        self._whole_path = path
        self._looked = directory is None
        self._limit = limit
        self._shared = False
        self._temporary = ""
        parent, _, self._name = path.rpartition("/")
        if self._name in {"", ".", ".."}:
            raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
        self._directory = open_path(parent) if directory is None else directory
        try:
            there = self._look() if self._looked else None
            if permissions is None:
                mask = os.umask(0o077)
                os.umask(mask)
                permissions = 0o666 & ~mask if there is None else there
            self.permissions = permissions & 0o777
            self.fd = self._open()
        except BaseException:
            os.close(self._directory)
            raise

    @property
    def path(self) -> str:
        """Path of its place, without links."""
        return f"{name_of(self._directory).rstrip('/')}/{self._name}"

    @property
    def free_bytes(self) -> int | None:
        """Room on its file system; None where that has no limit of its own."""
        return free_bytes(self._directory)

    @property
    def size(self) -> int:
        """Bytes that were written, by whomever."""
        return os.fstat(self.fd).st_size if self._shared else self.moved

    def duplicate(self) -> int:
        """A descriptor for whoever writes the file directly."""
        self._shared = True
        return os.dup(self.fd)

    def _look(self) -> int | None:
        """Permissions of what is there; None if nothing is."""
        path = self._whole_path
        try:
            found = find_regular(self._directory, self._name, path)
        except FileNotFoundError:
            return None
        mode = os.fstat(found).st_mode
        os.close(found)
        if not self._overwrite:
            fail_with(errno.EEXIST)
        if not os.access(self._name, os.W_OK, dir_fd=self._directory):
            raise TransferError(
                f"{path}: is read-only: change its permissions or remove it first", errno.EACCES
            )
        return mode

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            if self.UNNAMED:
                return os.open(".", flags | self.UNNAMED, 0o600, dir_fd=self._directory)
        except OSError as error:
            # EISDIR is what kernels and file systems say that do not know of it.
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                raise
        self._temporary = self._other_name()
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, 0o600, dir_fd=self._directory)

    @staticmethod
    def _other_name() -> str:
        return f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"

    def write(self, data: bytes) -> None:
        """Write all; raise OSError as of write(2), such as ENOSPC."""
        write_whole(self.fd, data)
        self.moved += len(data)

    def date(self, modified_ns: int) -> None:
        """Set the time of the last change."""
        os.utime(self.fd, ns=(modified_ns, modified_ns))

    def keep(self) -> None:
        """Put the file, whole, in its place. Raise TransferError if it is larger than the limit."""
        if self._limit is not None and self.size > self._limit:
            raise TransferError(
                f"{self.path}: has {self.size} bytes; the limit is {self._limit}", errno.EFBIG
            )
        os.fchmod(self.fd, self.permissions)
        if self._temporary and self._overwrite:
            # Its file system may have no hard links either.
            self._replace()
            return
        try:
            self._link(self._name)
        except FileExistsError:
            if not self._overwrite:
                raise
            if not self._temporary:
                temporary = self._other_name()
                self._link(temporary)
                self._temporary = temporary
            self._replace()

    def _replace(self) -> None:
        if not self._looked:
            self._look()
        os.rename(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._temporary = ""

    def close(self) -> None:
        """Let go of the file; one that has not been kept is gone."""
        os.close(self.fd)
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)

    def _link(self, name: str) -> None:
        """Give the file a name that must be free."""
        if self._temporary:
            os.link(
                self._temporary,
                name,
                src_dir_fd=self._directory,
                dst_dir_fd=self._directory,
                follow_symlinks=False,
            )
        else:
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self._directory)


def is_temporary(name: str) -> bool:
    """Return whether a name is like those of temporary files."""
    return name.startswith(TEMPORARY_PREFIX) and len(name) == len(TEMPORARY_PREFIX) + 16


def find_regular(directory: int, name: str, path: str) -> int:
    """A descriptor with O_PATH of a regular file that may be written to, which no link names. Raise
    TransferError if it is something else."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        mode = os.fstat(found).st_mode
        refuse_link(found, mode, path)
        refuse_virtual(found, path)
        refuse_special(mode, path)
    except BaseException:
        os.close(found)
        raise
    return found


def refuse_link(found: int, mode: int, path: str) -> None:
    """Raise TransferError if it is a symbolic link."""
    if stat.S_ISLNK(mode):
        target = os.readlink("", dir_fd=found)
        raise TransferError(
            f"{path}: is a symbolic link to {target!r}: name the file that is meant", errno.ELOOP
        )


def append_to(path: str, data: bytes, permissions: int | None) -> tuple[str, int]:
    """Add bytes at the end of a file, or make it of them; return its path and size. Raise
    TransferError if it is not a regular file."""
    parent, _, name = path.rpartition("/")
    if name in {"", ".", ".."}:
        raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
    directory = open_path(parent)
    try:
        try:
            found = find_regular(directory, name, path)
        except FileNotFoundError:
            writer = FileWriter(path, permissions, overwrite=False, directory=os.dup(directory))
            try:
                writer.write(data)
                writer.keep()
                return writer.path, writer.size
            finally:
                writer.close()
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(f"/proc/self/fd/{found}", flags)
            whole_path = name_of(found)
        finally:
            os.close(found)
        try:
            before, left = os.fstat(fd).st_size, memoryview(data)
            try:
                while left:
                    left = left[os.write(fd, left) :]
            except OSError:
                if os.fstat(fd).st_size == before + len(data) - len(left):
                    os.ftruncate(fd, before)
                raise
            return whole_path, os.fstat(fd).st_size
        finally:
            os.close(fd)
    finally:
        os.close(directory)
