"""Calls of the kernel that Python has no functions for."""

from __future__ import annotations

import ctypes
import os
import signal

# sched.h, sys/mount.h, sys/prctl.h, linux/capability.h, linux/sockios.h, net/if.h
CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 1 << 14, 1 << 18
MNT_DETACH = 2
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x2008_0522
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40

MOUNT_SETATTR = 442
"""Number of mount_setattr(2), on every architecture; Linux 5.12."""
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, AT_FDCWD, AT_RECURSIVE = 1, 2, -100, 0x8000

CLOSE_RANGE = 436
"""Number of close_range(2), on every architecture; Linux 5.9."""

SIGCHLD = int(signal.SIGCHLD)
"""A plain number: the enumeration's operators are functions of Python."""

libc = ctypes.CDLL(None, use_errno=True)
for _name in ("capset", "ioctl", "mount", "pivot_root", "prctl", "syscall", "umount2", "unshare"):
    getattr(libc, _name)  # makes an object that each fork would have to make otherwise
# With types, arguments need no objects around them, which each fork would have to make.
libc.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
holding_lock = ctypes.PyDLL(None, use_errno=True)
"""The same; calls of it do not let go of Python's lock."""
holding_lock.syscall.argtypes = (ctypes.c_long,) * 6

CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)
"""Number of clone(2) here; what follows the flags is zero, whatever its order is."""


def clone(namespaces: int) -> int:
    """clone(2): a fork that is in namespaces of its own from its first instant.

    The C library's way takes a fork, an unshare and a fork, a third more time. It would also run
    what Python and libraries want to have run after a fork for the sake of threads: there are none
    here, and the agent starts interpreters with `os.fork`, which does it. The child's C library
    takes the thread id of its parent for its own; only raise(3) and abort(3) use it, and the latter
    ends the process in another way then. Return the process id; 0 in the child.
    """
    pid: int = holding_lock.syscall(CLONE, namespaces | SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return pid


class SetupError(Exception):
    """A step of a fork's set-up failed; the message says which, and what the kernel said."""


def call(what: str, result: int) -> None:
    """Raise SetupError if a function of the C library returned -1."""
    if result < 0:
        raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")


def set_option(what: str, option: int, value: int, other: int = 0) -> None:
    call(what, libc.prctl(option, value, other, 0, 0))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call(
        f"mount {kind or source or 'private'} on {target}",
        libc.mount(
            source.encode() or None,
            target.encode(),
            kind.encode() or None,
            flags,
            options.encode() or None,
        ),
    )


def write_file(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error


class Filter:
    """A seccomp filter: a program in classic BPF, as the kernel takes it, an array of `struct
    sock_filter`."""

    class _Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    def __init__(self, program: bytes) -> None:
        if not program or len(program) % 8:
            raise SetupError(f"the system call filter has {len(program)} bytes")
        self._instructions = ctypes.create_string_buffer(program, len(program))
        self._program = self._Program(len(program) // 8, ctypes.addressof(self._instructions))

    def install(self) -> None:
        """Install the filter for good in this process and all that it starts."""
        set_option("seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._program))
