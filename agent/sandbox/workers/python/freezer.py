"""Checkpoints: copies of the worker that wait, frozen, until an undo wakes one of them.

A copy is made by fork. It is a child of the agent and not of the worker, whose code may wait for
children. Pipes, sockets and terminals are closed in it, since others may wait for their end. Files
are opened again when it wakes.
"""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import os
import stat
import struct
import sys
from importlib import import_module

from sandbox.framing import from_json
from sandbox.linux import (
    GPU_PATHS,
    clone_beside,
    go_first_without_memory,
    locked_library,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any


native_signal: Any = import_module("_signal")
"""`signal` without the enumerations around it."""

FROZEN = b"+"
NOT_FROZEN = b"-"
ASKED = b"?"
THAW = b"t"
"""First bytes of messages between the agent and a checkpoint."""

MEMORY_DEVICES = 1
"""Major number of /dev/null and the like, which copies may share."""

MAX_REASON = 300
"""Bytes of a reason why there is no checkpoint."""

THAW_BYTES = 4096

MEMORY_FILE = "/memfd:"


class CannotFreezeError(Exception):
    """No checkpoint can be made; the message says why."""


class ReopenedFile:
    """A file or directory that a checkpoint opens again when it wakes, by its path. One that has no
    name any more stays open."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.flags: int = fcntl.fcntl(fd, fcntl.F_GETFL)
        self.inheritable = os.get_inheritable(fd)
        self.offset = 0
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            self.offset = os.lseek(fd, 0, os.SEEK_CUR)

    def reopen(self) -> None:
        """Open the file again at its old number and offset."""
        if self.path:
            kept = os.O_CREAT | os.O_EXCL | os.O_TRUNC
            fd = os.open(self.path, self.flags & ~kept | os.O_NONBLOCK | os.O_CLOEXEC)
            os.dup2(fd, self.fd, self.inheritable)
            os.close(fd)
            fcntl.fcntl(self.fd, fcntl.F_SETFL, self.flags)
        if self.offset:
            os.lseek(self.fd, self.offset, os.SEEK_SET)


class Thawed:
    """Facts for a checkpoint that wakes.

    Attributes:
        order: the agent's message.
        descriptors: control socket, stdout, stderr and shared page of the worker that it is now.
        closed: pipes, sockets and terminals that were closed in it.
        lost: paths of files that could not be opened again.
        unnamed: open files without a name, whose content is not what it was.
    """

    def __init__(self, order: dict[str, Any], descriptors: list[int]) -> None:
        self.order = order
        self.descriptors = descriptors
        self.closed = 0
        self.lost: list[str] = []
        self.unnamed = 0

    def notes(self) -> list[str]:
        """Sentences on what is not as it was."""
        notes: list[str] = []
        if self.closed:
            notes.append(
                f"{self.closed} open pipes, connections or terminals are closed: open them again"
            )
        if self.lost:
            notes.append(f"open files that could not be opened again: {', '.join(self.lost)}")
        if self.unnamed:
            notes.append(f"{self.unnamed} open files without a name have the content of now")
        return notes


def freeze_worker(fd: int, private: Collection[int]) -> Thawed | None:
    """Make a checkpoint of this process.

    Return None in the worker; facts for the checkpoint in the checkpoint, once it wakes.

    Args:
        fd: socket of the checkpoint, to the agent; closed here.
        private: descriptors of the worker, which a fork closes.
    """
    worker = os.getpid()
    try:
        with SignalsBlocked() as mask:
            held = Held(fd, private)
            is_copy = _fork_parked(fd, held)
    except Exception as error:
        reason = str(error) or type(error).__name__
        with contextlib.suppress(OSError):
            os.write(fd, NOT_FROZEN + reason.encode(errors="replace")[:MAX_REASON])
        os.close(fd)
        if os.getpid() != worker:
            os._exit(1)
        return None
    if not is_copy:
        os.close(fd)
        return None
    try:
        thawed = _wait_frozen(fd, held)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(fd, NOT_FROZEN + f"{type(error).__name__}: {error}".encode()[:MAX_REASON])
        os._exit(1)
    _forget_signals()
    native_signal.pthread_sigmask(native_signal.SIG_SETMASK, mask)
    return thawed


def _fork_parked(fd: int, held: Held) -> bool:
    """Fork; return True in the copy.

    The worker goes on when the copy has closed what others may wait for the end of, and has
    told the agent of itself: so the agent knows it before code can start or kill anything.
    """
    import _thread

    count = _thread._count()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if count:
        words = "a thread" if count == 1 else f"{count} threads"
        raise CannotFreezeError(f"code has {words} of its own, which a copy would not have")
    tasks = "/proc/self/task"
    has_threads = len(os.listdir(tasks)) > 1
    parked, done = os.pipe2(os.O_CLOEXEC)
    try:
        pid = _fork_native() if has_threads else _fork_beside()
        if pid == 0:
            # Python's own steps in a child take longer than the fork: they wait until it wakes.
            held.park()
            os.setsid()
            go_first_without_memory()
            os.write(fd, FROZEN)
            return True
        os.close(done)
        done = -1
        os.read(parked, 1)
    finally:
        os.close(parked)
        if done >= 0:
            os.close(done)
    # Libraries that know forks have ended their threads for this one. GNU's OpenMP does not,
    # and waits in the copy for threads that are not there.
    if has_threads and len(os.listdir(tasks)) > 1 and _is_mapped(b"libgomp"):
        raise CannotFreezeError("a library (GNU's OpenMP) has threads that a copy would miss")
    return False


class Held:
    """Descriptors that are open in the worker and closed in a copy, where they keep their numbers.

    Offsets are noted here, in the worker: it shares them with the copy, and goes on.

    Attributes:
        files: to be opened again.
        closed: numbers of pipes, sockets and terminals.
    """

    def __init__(self, own: int, private: Collection[int]) -> None:
        """Raise CannotFreezeError if something cannot be held by a copy."""
        self.files: list[ReopenedFile] = []
        self.closed: list[int] = []
        self._private = private
        try:
            self.directory = os.getcwd()
        except FileNotFoundError:
            self.directory = ""
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd in private or fd in (own, 1, 2):
                continue
            try:
                status = os.fstat(fd)
            except OSError:  # the descriptor of the listing itself
                continue
            kind = stat.S_IFMT(status.st_mode)
            is_device = kind == stat.S_IFCHR
            if kind in (stat.S_IFREG, stat.S_IFDIR):
                path = os.readlink(f"/proc/self/fd/{fd}")
                if not path.startswith(MEMORY_FILE):
                    self.files.append(ReopenedFile(fd, path if _is_at(path, status) else ""))
            elif is_device and os.readlink(f"/proc/self/fd/{fd}").startswith(GPU_PATHS):
                raise CannotFreezeError("code uses a GPU, whose memory a copy would not have")
            elif kind in (stat.S_IFIFO, stat.S_IFSOCK) or (
                is_device and os.major(status.st_rdev) != MEMORY_DEVICES
            ):
                self.closed.append(fd)

    def park(self) -> None:
        """Close the descriptors, in the copy."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for each in self.files:
            if each.path:
                _put(null, each.fd, inheritable=each.inheritable)
        os.close(null)
        # Whoever reads `dead` sees the end, whoever writes to it an error.
        dead, other = [end.detach() for end in _socket.socketpair()]
        os.close(other)
        for fd in (1, 2, *self.closed, *self._private):
            _put(dead, fd, inheritable=os.get_inheritable(fd))
        os.close(dead)

    def reopen(self, thawed: Thawed) -> None:
        """Open files again, in a copy that wakes."""
        with contextlib.suppress(OSError):
            os.chdir(self.directory)
        thawed.closed = len(self.closed)
        for each in self.files:
            try:
                each.reopen()
            except OSError:
                thawed.lost.append(each.path)
            thawed.unnamed += not each.path


def _put(fd: int, place: int, *, inheritable: bool) -> None:
    """Put a descriptor in the place of another one."""
    try:
        os.dup2(fd, place, inheritable)
    except OSError:  # code has set a limit below that number: nothing can take it
        os.close(place)


class SignalsBlocked:
    """Block in which no handler of code runs; a copy that is made there leaves it so."""

    def __enter__(self) -> Any:
        self._mask: Any = native_signal.pthread_sigmask(
            native_signal.SIG_SETMASK, native_signal.valid_signals()
        )
        self._pid = os.getpid()
        return self._mask

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self._pid:
            native_signal.pthread_sigmask(native_signal.SIG_SETMASK, self._mask)


def _forget_signals() -> None:
    """Drop signals that came while all were blocked: they were meant for what was running."""
    while pending := native_signal.sigpending():
        if native_signal.sigtimedwait(pending, 0) is None:
            return


def _fork_beside() -> int:
    """Fork a child of this process's parent, which the C library's own fork does not make. Return
    the process id; 0 in the copy."""
    import ctypes

    ctypes.pythonapi.PyOS_BeforeFork()
    try:
        pid = clone_beside()
    except OSError as error:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        raise CannotFreezeError(f"the worker cannot be copied: {error.strerror}") from None
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _fork_native() -> int:
    """Fork twice by the C library, which has libraries with threads prepare for it. Return a
    process id; 0 in the copy."""
    import ctypes

    fork = locked_library().fork
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = fork()
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        if pid < 0:
            raise CannotFreezeError(
                f"the worker cannot be copied: {os.strerror(ctypes.get_errno())}"
            )
        with contextlib.suppress(ChildProcessError):  # code ignores SIGCHLD
            os.waitpid(pid, 0)
        if native_signal.SIGCHLD in native_signal.sigpending():
            native_signal.sigtimedwait([native_signal.SIGCHLD], 0)
        return pid
    middle = os.getpid()
    second: int = fork()
    if second:
        os._exit(0)
    while os.getppid() == middle:  # the agent is its parent once that one has ended
        os.sched_yield()
    return 0


def _become_interpreter() -> None:
    """Do in a copy that wakes what Python does in the child of a fork."""
    import ctypes

    random = sys.modules.get("random")
    state = None if random is None else random.getstate()
    ctypes.pythonapi.PyOS_AfterFork_Child()
    if random is not None:
        random.setstate(state)  # a fork gives it another one


def _wait_frozen(fd: int, held: Held) -> Thawed:
    """Wait, in the copy, until it is woken. It ends when the agent drops it."""
    link = _socket.socket(fileno=fd)
    while True:
        data, parts, _, _ = link.recvmsg(THAW_BYTES, _socket.CMSG_SPACE(4 * 4))
        if not data:
            os._exit(0)
        if data[:1] == THAW:
            break
        os.write(fd, data)
    descriptors = [
        number
        for level, kind, packed in parts
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for number in struct.unpack(f"{len(packed) // 4}i", packed)
    ]
    thawed = Thawed(from_json(data[1:].decode()), descriptors)
    link.close()
    _become_interpreter()
    held.reopen(thawed)
    return thawed


def _is_mapped(name: bytes) -> bool:
    """Return whether a library with such a name is in memory."""
    with open("/proc/self/maps", "rb") as file:
        return name in file.read()


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)
