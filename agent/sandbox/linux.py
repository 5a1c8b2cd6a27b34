"""Linux and C library calls that Python has no functions for, or slow ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import socket
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")


set_handler: Callable[[int, Any], Any] = import_module("_signal").signal

DEFAULT_ACTION: int = import_module("_signal").SIG_DFL
"""`signal.signal` without the enumerations around it, which take ten times as long as what they
wrap, and whose objects every fork would have its own copies of."""

# linux/landlock.h, and the numbers of its system calls, which are the same on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446

LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL = 1, 2

LANDLOCK_SCOPES = 6
"""Version of the kernel's interface that has scopes."""

PRIVATE_FD = 200
"""Private descriptors are moved here or higher, out of the way of user code."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def shut_abstract_sockets() -> None:
    """Keep this process and all that it starts from abstract Unix sockets of others, which belong
    to a network namespace (unix(7)); where the kernel cannot do that, they stay open.
    """
    if c_library().syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) >= LANDLOCK_SCOPES:
        enter_scope(LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)


def leave_forks_alone() -> None:
    """Keep this process and all that it starts from tracing, reading and signalling processes that
    it has not started: forks of its session.
    """
    enter_scope(LANDLOCK_SCOPE_SIGNAL)


def enter_scope(scope: int) -> None:
    """Enter a Landlock domain with nothing of files and ports, and one scope."""
    call = c_library().syscall
    attributes = landlock_attributes(scope)
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0 or call(LANDLOCK_RESTRICT_SELF, ruleset, 0) < 0:
        raise OSError("the kernel does not let this process shut itself in (Landlock)")
    os.close(ruleset)


def landlock_attributes(scope: int) -> bytes:
    """`struct landlock_ruleset_attr` with one scope."""
    return b"".join(field.to_bytes(8, sys.byteorder) for field in (0, 0, scope))


def listen_on_loopback(port: int) -> socket.socket:
    """A listening socket of the session's loopback, on that port or, if it is taken, another."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            listener.bind(("127.0.0.1", 0))
        listener.listen(1024)  # beyond that, clients try again, each time after twice as long
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


@functools.cache
def c_library() -> Any:
    """The C library; once for a process and its forks, since each makes types of its own."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    # With types, arguments need no objects around them, which each fork would have to make.
    library.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return library


def prctl(option: int, value: int) -> None:
    """Raise OSError if the kernel refuses."""
    _checked(f"prctl({option}, {value})", c_library().prctl(option, value, 0, 0, 0))


def _checked(what: str, result: int) -> int:
    """Return the result of a call."""
    if result < 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


@functools.cache
def locked_library() -> Any:
    """The C library, called with Python's lock held all the time."""
    import ctypes

    library = ctypes.PyDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.syscall.argtypes = (ctypes.c_long,) * 6
    return library


CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x20_0000, 0x100_0000
PR_GET_TID_ADDRESS = 40

CLONE_CALLS = {"x86_64": (56, False), "aarch64": (220, True)}
"""Number of clone(2) by machine, and whether its last two arguments are the other way round."""


@functools.cache
def _sibling_clone() -> tuple[int, ...]:
    """Arguments of the system call that makes a sibling."""
    import ctypes

    call, swapped = CLONE_CALLS.get(os.uname().machine, (-1, False))
    flags, place = CLONE_PARENT | int(signal.SIGCHLD), ctypes.c_ulong()
    if "CS_GNU_LIBC_VERSION" in os.confstr_names:  # others note no thread id there
        c_library().prctl(PR_GET_TID_ADDRESS, ctypes.addressof(place), 0, 0, 0)
    if place.value:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    last = (0, place.value) if swapped else (place.value, 0)
    return (call, flags, 0, 0, *last)


def clone_beside() -> int:
    """Fork a child of this process's parent; this process has one thread.

    What the C library and Python do in a fork beyond that is for the sake of other threads, but for
    the thread id that the former notes in memory. The kernel does that here. Return the process id;
    0 in the child. Raise OSError if there can be none.
    """
    return _checked("clone", locked_library().syscall(*_sibling_clone()))


PIDFD_OPEN, PIDFD_SEND_SIGNAL = 434, 424
"""Numbers of system calls, which are the same on every architecture."""


def open_pidfd(pid: int) -> int:
    """Open a descriptor of a process, also with a Python that was built for an older Linux."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked("pidfd_open", c_library().syscall(PIDFD_OPEN, pid, 0))


def signal_pidfd(pidfd: int, number: int) -> None:
    """Signal the process of a descriptor."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        sent = c_library().syscall(PIDFD_SEND_SIGNAL, pidfd, number, None, 0)
        _checked("pidfd_send_signal", sent)


FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def punch_hole(fd: int, place: int, length: int) -> None:
    """Give back the memory of a part of a file; nothing happens where the kernel cannot."""
    import ctypes

    flags = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    c_library().fallocate(fd, flags, ctypes.c_longlong(place), ctypes.c_longlong(length))


IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals for other programs to have again: one that ignores SIGPIPE misses broken pipes."""


def restore_signals() -> None:
    for number in IGNORED_BY_PYTHON:
        set_handler(number, DEFAULT_ACTION)


def become_helper(kept: set[int], parent: int) -> None:
    """Begin in a fork of the agent that serves the session, and runs no code of it. The agent takes
    it along; as PID 1 in any case."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    set_handler(signal.SIGCHLD, DEFAULT_ACTION)
    if parent != 1:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    close_others(kept)


def close_others(kept: set[int]) -> None:
    """Close all descriptors of this process except these."""
    first = 0
    for fd in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        if first < fd:  # closerange(0, 0) would close everything
            os.closerange(first, fd)
        first = max(first, fd + 1)


def go_first_without_memory() -> None:
    """Have the kernel kill this process before the agent when memory runs out, if it can be."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"1000")
    except OSError:
        return
    finally:
        os.close(fd)


def with_pipes(make: Callable[[], T]) -> T:
    """Call a function while descriptors 1 and 2 are pipes, as they are for an interpreter."""
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    pipe = os.pipe()
    try:
        for fd in saved:
            os.dup2(pipe[1], fd)
        return make()
    finally:
        for fd, kept in saved.items():
            os.dup2(kept, fd)
        for fd in (*pipe, *saved.values()):
            os.close(fd)


def enter_directory(path: str) -> bool:
    """Change to a directory; return whether it is there."""
    try:
        os.chdir(path)
    except OSError:
        return False
    return True


def dup_high(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    except OSError:  # above the limit of descriptors, which may be set from outside at any moment
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables, and have what a Python that runs reads of them at its start read again."""
    os.environ.update(variables)
    if "TZ" in variables:
        import_module("time").tzset()
    if any(name == "LANG" or name.startswith("LC_") for name in variables):
        locale = import_module("_locale")
        with contextlib.suppress(locale.Error):  # one that is not there: the other one stays
            locale.setlocale(locale.LC_CTYPE, "")


GPU_PATHS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg")
"""Beginnings of the paths of GPUs in jails."""


def gpu_of(pid: int | str) -> str:
    """Path of a GPU that a process, or ``self``, has open or in its memory; empty if it uses none.

    Its state belongs to one process: no fork and no copy has it. A context of CUDA, ROCm or Vulkan
    keeps at least one device open.
    """
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            if path.startswith(GPU_PATHS):
                return path
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, _, _, _, _, *mapped = line.rstrip("\n").split(None, 5)
            if mapped and mapped[0].startswith(GPU_PATHS):
                return mapped[0]
    return ""
