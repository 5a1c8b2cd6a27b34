"""Whole directories: as tar archives in and out of the session, and their removal.

Each takes as long as there are files, so a child of the agent does it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys

from sandbox.files import FileWriter, write_whole
from sandbox.framing import READ_BYTES, from_json, to_json
from sandbox.linux import become_helper, restore_signals
from sandbox.paths import (
    WORDS,
    TransferError,
    fail_with,
    free_bytes,
    make_directory,
    make_directory_in,
    name_of,
    open_directory,
    open_parent,
)
from sandbox.processes import signal_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tarfile import TarInfo
    from typing import Any


PIPE_BYTES = 1024 * 1024

BLOCK_BYTES = 512
"""Blocks of a tar archive; two without content are its end."""


def head_of(info: TarInfo, modified_ns: int) -> bytes:
    """The header of a member, after one of pax that has the time of its last change in full."""
    import tarfile

    seconds, parts = divmod(max(0, modified_ns), 1_000_000_000)
    info.mtime, times = seconds, b""
    if parts:
        text = b" mtime=%d.%09d\n" % (seconds, parts)
        text = b"%d%s" % (len(text) + 2, text)  # its own length, which has two digits, is first
        pax = tarfile.TarInfo("times")
        pax.type, pax.size = tarfile.XHDTYPE, len(text)
        times = pax.tobuf(tarfile.USTAR_FORMAT) + text.ljust(BLOCK_BYTES, b"\0")
    return times + info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def modified_ns_of(member: TarInfo) -> int:
    """The time of the last change of a member, which may be from any program."""
    seconds, _, parts = member.pax_headers.get("mtime", "").partition(".")
    if seconds.isdecimal() and parts.isdecimal() and len(seconds) < 12:
        return int(seconds) * 1_000_000_000 + int(f"{parts:0<9.9}")
    if not 0 <= member.mtime < 10**11:  # it may be infinite, or no number
        return 0
    return int(member.mtime) * 1_000_000_000


class PipeSink:
    """An archive on its way into a pipe. Small pieces go together; the kernel moves large files."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= READ_BYTES:
            self.flush()

    def flush(self) -> None:
        write_whole(self._pipe, self._data)
        self._data.clear()

    def copy(self, file: int, size: int) -> None:
        """Send as many bytes as were announced, whatever becomes of the file meanwhile."""
        left, problem = size, None
        try:
            while left and (sent := self._send(file, left)):
                left -= sent
        except BrokenPipeError:
            raise
        except OSError as error:
            problem = error
        while left:  # it cannot be read, or has become shorter
            sent = min(left, READ_BYTES)
            self.write(bytes(sent))
            left -= sent
        self.write(bytes(-size % BLOCK_BYTES))
        if problem is not None:
            raise problem

    def _send(self, file: int, count: int) -> int:
        if count >= READ_BYTES:
            self.flush()
            try:
                return os.sendfile(self._pipe, file, None, min(count, PIPE_BYTES))  # type: ignore[call-arg, arg-type, unused-ignore]
            except OSError as error:
                if error.errno != errno.EINVAL:  # its file system cannot do that
                    raise
        data = os.read(file, min(count, READ_BYTES))
        self.write(data)
        return len(data)


class PipeSource:
    """An archive that comes out of a pipe, as a file that tarfile can read, forward only."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._data = b""
        self._taken = 0  # of the data
        self._place = 0

    def tell(self) -> int:
        return self._place

    def seek(self, place: int) -> None:
        """Raise ValueError if it is behind us."""
        if place < self._place:
            raise ValueError("it leads back")
        while self._place < place and self.read(min(place - self._place, READ_BYTES)):
            pass

    def read(self, count: int) -> bytes:
        """Read so many bytes, fewer at the end."""
        pieces = [self._take(count)]
        left = count - len(pieces[0])
        while left > 0:
            self._data, self._taken = os.read(self._pipe, READ_BYTES), 0
            if not self._data:
                break
            pieces.append(self._take(left))
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _take(self, count: int) -> bytes:
        data = self._data[self._taken : self._taken + count]
        self._taken += len(data)
        self._place += len(data)
        return data

    def move(self, file: int, count: int) -> int:
        """Write so many bytes to a file; returns their number, smaller at the end."""
        data = self._take(count)
        write_whole(file, data)
        left = count - len(data)
        while left and (moved := _splice(self._pipe, file, left)):
            left -= moved
            self._place += moved
        return count - left


def _splice(pipe: int, file: int, count: int) -> int:
    """Move bytes from a pipe to a file; returns their number, 0 at the end."""
    if hasattr(os, "splice"):  # from Python 3.10 on
        try:
            return os.splice(pipe, file, count)
        except OSError as error:
            if error.errno != errno.EINVAL:  # its file system cannot do that
                raise
    data = os.read(pipe, min(count, READ_BYTES))
    write_whole(file, data)
    return len(data)


DEEPEST = 400
"""Directories around a file; each takes a descriptor."""

MAX_SKIPPED = 100
"""Names that are told of what is left out of an archive."""

MAX_SKIPPED_CHARS = 1000
"""Characters of such a name, and of the reason."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_NO_WAIT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ArchiveProcess:
    """A child that archives a directory, unpacks an archive into one, or removes one.

    Raise TransferError if it is not a directory.

    Args:
        mode: ``archive``, ``unpack`` or ``remove``.
        path: absolute, of the directory. To unpack, it is made if it is missing.

    Attributes:
        path: without links.
    """

    size = permissions = moved = 0

    def __init__(self, mode: str, path: str, limit: int | None) -> None:
        self.has_ended = False
        self._status = 0
        self._ours = -1
        self._has_made = False
        with contextlib.ExitStack() as here, contextlib.ExitStack() as undo:
            if mode == "remove":
                directory, name = open_parent(path)
                here.callback(os.close, directory)
                self.path = f"{name_of(directory).rstrip('/')}/{name}"
                pipe = -1
            else:
                if mode == "unpack":
                    self._has_made = make_directory(path)
                name, directory = "", open_directory(path)
                here.callback(os.close, directory)
                self.path = name_of(directory)
                read_end, write_end = os.pipe2(os.O_CLOEXEC)
                outgoing = mode == "archive"
                pipe, self._ours = (write_end, read_end) if outgoing else (read_end, write_end)
                here.callback(os.close, pipe)
                undo.callback(os.close, self._ours)
                _widen(pipe)
            self.free_bytes = free_bytes(directory) if mode == "unpack" else None
            self._answer = os.memfd_create("answer", os.MFD_CLOEXEC)
            undo.callback(os.close, self._answer)
            parent = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    become_helper({directory, pipe, self._answer} - {-1}, parent)
                    restore_signals()
                    sys.setrecursionlimit(10 * DEEPEST)
                    answer = DirectoryTree(directory, self.path, limit).answer(mode, name, pipe)
                    os.write(self._answer, to_json(answer).encode("utf-8", "backslashreplace"))
                    os._exit(0)
                finally:
                    os._exit(126)
            undo.pop_all()

    def claim(self) -> int:
        """The end of the pipe that the archive leaves or enters through; the caller's from now."""
        descriptor, self._ours = self._ours, -1
        return descriptor

    def ended(self, wait_status: int) -> None:
        """Take the end of the process."""
        self.has_ended, self._status = True, wait_status

    def outcome(self) -> dict[str, Any]:
        """Size, number of entries, and what was left out. Raise TransferError if it failed."""
        said = os.pread(self._answer, os.fstat(self._answer).st_size, 0)
        answer: dict[str, Any] = from_json(said.decode()) if self._status == 0 and said else {}
        if "size" not in answer:
            number = answer.get("errno", 0)
            reason = answer.get("error") or "its process was ended in the session"
            raise TransferError(f"{self.path}: {reason}", number)
        return answer

    def close(self) -> None:
        """End the process, if it still works; a directory that it was to fill goes, if empty."""
        if not self.has_ended:
            signal_child(self.pid, signal.SIGKILL)
            if self._has_made:
                with contextlib.suppress(OSError):
                    os.rmdir(self.path)
        if self._ours >= 0:
            os.close(self._ours)
        os.close(self._answer)


def _widen(pipe: int) -> None:
    """Make room in a pipe, if its user may have so much."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which Python has from 3.10 on


class DirectoryTree:
    """A directory whose content is archived, unpacked or removed. It follows no link below it.

    Args:
        directory: its descriptor, or that of the directory around it.
        path: its path, for people.
    """

    def __init__(self, directory: int, path: str, limit: int | None) -> None:
        self._directory = directory
        self._parent = -1
        self._parents: list[str] | None = None
        self._path = path
        self._limit = limit
        self._size = self._entries = 0
        self._skipped: list[list[str]] = []
        self._made: list[tuple[list[str], int, int]] = []
        self._left_out = 0

    def answer(self, mode: str, name: str, pipe: int) -> dict[str, Any]:
        """Do it, and say what came of it."""
        try:
            if mode == "archive":
                self._archive(pipe)
            elif mode == "unpack":
                self._unpack(pipe)
            else:
                self._remove(self._directory, name, 0)
                os.rmdir(name, dir_fd=self._directory)
                self._entries += 1
        except OSError as error:
            number = error.errno or 0
            return {"error": WORDS.get(number, os.strerror(number)), "errno": number}
        except TransferError as error:
            return {"error": str(error)}
        return {
            "size": self._size,
            "entries": self._entries,
            "skipped": self._skipped,
            "left_out": self._left_out,
        }

    def _skip(self, path: str, why: str) -> None:
        self._left_out += 1
        if len(self._skipped) < MAX_SKIPPED:
            self._skipped.append([path[:MAX_SKIPPED_CHARS], why[:MAX_SKIPPED_CHARS]])

    # Out of the session.

    def _archive(self, pipe: int) -> None:
        top = os.open(f"/proc/self/fd/{self._directory}", _DIRECTORY & ~os.O_NOFOLLOW)
        sink = PipeSink(pipe)
        self._archive_below(top, "", sink)
        sink.write(bytes(2 * BLOCK_BYTES))
        sink.flush()

    def _archive_below(self, directory: int, path: str, sink: PipeSink) -> None:
        """Archives what is in a directory, and closes it."""
        try:
            if path.count("/") > DEEPEST:
                fail_with(errno.ELOOP)
            for name in sorted(os.listdir(directory)):
                whole = f"{path}{name}"
                try:
                    self._archive_one(directory, name, whole, sink)
                except FileNotFoundError:
                    pass  # it has gone meanwhile
                except BrokenPipeError:
                    raise
                except OSError as error:
                    number = error.errno or 0
                    self._skip(whole, WORDS.get(number, os.strerror(number)))
        finally:
            os.close(directory)

    def _archive_one(self, directory: int, name: str, whole: str, sink: PipeSink) -> None:
        import tarfile

        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        info = tarfile.TarInfo(whole)
        if stat.S_ISDIR(status.st_mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            info.type = tarfile.DIRTYPE
            self._head(info, status, sink)
            self._archive_below(below, f"{whole}/", sink)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
            self._head(info, status, sink)
        elif not stat.S_ISREG(status.st_mode):
            self._skip(whole, "is not a file, directory or link")
        else:
            file = os.open(name, os.O_RDONLY | _NO_WAIT, dir_fd=directory)
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    self._skip(whole, "is no longer a file")
                    return
                if self._limit is not None and status.st_size > self._limit:
                    # It may be one gap, of which a tar archive has each byte.
                    self._skip(whole, f"has {status.st_size} bytes; the limit is {self._limit}")
                    return
                info.size = status.st_size
                self._head(info, status, sink)
                sink.copy(file, info.size)
            finally:
                os.close(file)

    def _head(self, info: TarInfo, status: os.stat_result, sink: PipeSink) -> None:
        info.mode = status.st_mode & 0o777
        sink.write(head_of(info, status.st_mtime_ns))
        self._entries += 1
        self._size += info.size

    # Into the session.

    def _unpack(self, pipe: int) -> None:
        import tarfile

        source: Any = PipeSource(pipe)
        try:
            tar = tarfile.TarFile(fileobj=source, encoding="utf-8", errors="surrogateescape")
            while (member := tar.next()) is not None:
                try:
                    self._unpack_one(source, member)
                except OSError as error:
                    number = error.errno or 0
                    if number in {errno.ENOSPC, errno.EDQUOT}:
                        raise
                    self._skip(member.name, WORDS.get(number, os.strerror(number)))
                except TransferError as error:
                    self._skip(member.name, str(error))
                tar.members.clear()  # type: ignore[attr-defined, unused-ignore]
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise TransferError(f"the archive cannot be read: {error}") from None
        while source.read(READ_BYTES):
            pass  # what pads the archive
        # Now, since each file that is written changes its directory, and needs the right to.
        for names, mode, modified_ns in reversed(self._made):
            with contextlib.suppress(OSError, OverflowError, TransferError):
                directory, name = self._parent_of(names), names[-1]
                self._date(directory, name, modified_ns)
                os.chmod(name, mode, dir_fd=directory)

    @staticmethod
    def _date(directory: int, name: str, modified_ns: int) -> None:
        times = (modified_ns, modified_ns)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)

    def _unpack_one(self, source: PipeSource, member: TarInfo) -> None:
        if member.name.startswith("/") or "\0" in member.name:
            raise TransferError("its name is absolute, or none that a file could have")
        names = [name for name in member.name.split("/") if name not in {"", "."}]
        if ".." in names:
            raise TransferError("its name leads out of the directory")
        if not names:
            return
        directory, name = self._parent_of(names), names[-1]
        if member.isreg():
            self._unpack_file(source, member, directory, name)
        elif member.isdir():
            if make_directory_in(directory, name):
                self._made.append((names, member.mode & 0o777, modified_ns_of(member)))
        elif member.issym():
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISLNK(there.st_mode):
                    os.unlink(name, dir_fd=directory)
            os.symlink(member.linkname, name, dir_fd=directory)
            with contextlib.suppress(OSError, OverflowError):
                self._date(directory, name, modified_ns_of(member))
        elif member.islnk():
            self._link(member.linkname, directory, name)
        else:
            raise TransferError("is not a file, directory or link")
        self._entries += 1

    def _parent_of(self, names: list[str]) -> int:
        """The directory that a name is in, until the next call."""
        if names[:-1] != self._parents:
            parent = self._open_parent(names)
            if self._parent >= 0:
                os.close(self._parent)
            self._parent, self._parents = parent, names[:-1]
        return self._parent

    def _open_parent(self, names: list[str]) -> int:
        """A descriptor of the directory that a name is in, which is made where it is missing."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = os.dup(self._directory)
        try:
            for name in names[:-1]:
                try:
                    found = os.open(name, flags, dir_fd=here)
                except FileNotFoundError:
                    os.mkdir(name, dir_fd=here)
                    found = os.open(name, flags, dir_fd=here)
                except NotADirectoryError:
                    raise TransferError("its name leads through a link or a file") from None
                os.close(here)
                here = found
        except BaseException:
            os.close(here)
            raise
        return here

    def _link(self, target: str, directory: int, name: str) -> None:
        """Make a second name of a file that the archive had before."""
        names = [part for part in target.split("/") if part not in {"", "."}]
        if target.startswith("/") or ".." in names or not names:
            raise TransferError("is a hard link that leads out of the directory")
        other = self._open_parent(names)
        try:
            os.link(names[-1], name, src_dir_fd=other, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(other)

    def _unpack_file(self, source: PipeSource, member: TarInfo, directory: int, name: str) -> None:
        if self._limit is not None and member.size > self._limit:
            raise TransferError(f"has {member.size} bytes; the limit is {self._limit}")
        path = f"{self._path}/{name}"
        sparse: Any = member.sparse  # offsets and sizes of its parts, if it has gaps
        writer = FileWriter(path, member.mode, overwrite=True, directory=os.dup(directory))
        try:
            for offset, size in sparse or [(0, member.size)]:
                if not 0 <= offset <= offset + size <= member.size:
                    raise TransferError("its parts are not in it")
                if sparse:
                    os.lseek(writer.fd, offset, os.SEEK_SET)
                if source.move(writer.fd, size) < size:
                    raise TransferError("the archive ends in the middle of it")
            if sparse:
                os.ftruncate(writer.fd, member.size)
            with contextlib.suppress(OSError, OverflowError):
                writer.date(modified_ns_of(member))
            writer.keep()
        finally:
            writer.close()
        self._size += member.size

    # Out of this world.

    def _remove(self, around: int, name: str, depth: int) -> None:
        """Remove what is in a directory."""
        if depth > DEEPEST:
            fail_with(errno.ELOOP)
        directory = os.open(name, _DIRECTORY, dir_fd=around)
        try:
            for below in os.listdir(directory):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(below, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        self._remove(directory, below, depth + 1)
                        os.rmdir(below, dir_fd=directory)
                    else:
                        os.unlink(below, dir_fd=directory)
                    self._entries += 1
        finally:
            os.close(directory)
