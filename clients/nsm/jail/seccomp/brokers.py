"""The filter of system calls for brokers: programs of nsm outside of jails that read code's bytes.

It is a list of what is permitted: unlike code, these programs are known. They open no files, start
nothing, make no sockets and reach no other process; they work with the descriptors that they have
and are given. Pure.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from nsm.jail.seccomp.filter import (
    ALLOW,
    ANY_BIT,
    ARCHITECTURES,
    EQUAL,
    load_argument,
    only_of,
    refuse,
    result,
    run_if,
    run_if_one_of,
    run_unless_one_of,
)

# linux/mman.h, linux/fcntl.h, asm-generic/ioctls.h, asm-generic/socket.h, linux/tcp.h
_PROT_EXEC = 0x4
_F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 1, 2, 3, 4, 1030
_AT_EMPTY_PATH = 0x1000
_FIONBIO, _FIOCLEX = 0x5421, 0x5451
_SOL_SOCKET, _SO_LINGER, _IPPROTO_TCP, _TCP_NODELAY = 1, 13, 6, 1
_NOT_ONLY_READING = 0xFFFFFFFF & ~(0o2000000 | 0o100000 | 0o400)
"""Flags of open(2) but O_CLOEXEC, O_LARGEFILE and O_NOCTTY."""


def _only_null(argument: int) -> bytes:
    """Refuse a call with another argument than 0, a pointer to nothing."""
    refused = refuse(errno.EPERM)
    upper = load_argument(argument, upper=True) + run_unless_one_of([0], refused)
    return load_argument(argument) + run_unless_one_of([0], refused) + upper


def _without(argument: int, bits: int) -> bytes:
    return load_argument(argument) + run_if(ANY_BIT, bits, refuse(errno.EPERM))


def _one_of(argument: int, *values: int) -> bytes:
    return load_argument(argument) + run_unless_one_of(values, refuse(errno.EPERM))


_RULES: Mapping[str, bytes] = {
    # Otherwise they could run code that was sent to them.
    "mmap": _without(2, _PROT_EXEC),
    "mprotect": _without(2, _PROT_EXEC),
    # Otherwise they could send to any socket, and not to the connected peer only.
    "sendto": _only_null(4),
    # F_SETOWN would have the kernel signal any process of the user.
    "fcntl": _one_of(1, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC),
    "ioctl": _one_of(1, _FIONBIO, _FIOCLEX),
    "setsockopt": load_argument(1)
    + run_if(EQUAL, _SOL_SOCKET, _one_of(2, _SO_LINGER), result(ALLOW))
    + run_if(EQUAL, _IPPROTO_TCP, _one_of(2, _TCP_NODELAY), result(ALLOW))
    + refuse(errno.EPERM),
    # What a descriptor is; where a path comes with the flag, what kind of file that is.
    "newfstatat": load_argument(3)
    + run_if(ANY_BIT, _AT_EMPTY_PATH, result(ALLOW))
    + refuse(errno.EPERM),
}

_MEMORY_FILES: Mapping[str, bytes] = {
    "memfd_create": b"",
    # `ssl` takes certificates from files only, so from those in memory, by /proc/self/fd. Landlock
    # keeps it from all others.
    "openat": _without(2, _NOT_ONLY_READING),
}

_NUMBERS: Mapping[str, tuple[int, int]] = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "close": (3, 57),
    "lseek": (8, 62),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "shutdown": (48, 210),
    "accept4": (288, 242),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getsockopt": (55, 209),
    "setsockopt": (54, 208),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "ppoll": (271, 73),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "restart_syscall": (219, 128),
    "sched_yield": (24, 124),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "sysinfo": (99, 179),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "memfd_create": (319, 279),
    "openat": (257, 56),
}
"""Numbers on x86_64 and aarch64, by name. What has no rule is permitted."""

_OF_X86_64: Mapping[str, int] = {"poll": 7, "epoll_wait": 232, "time": 201}
"""Older calls, which newer architectures have no numbers for."""


def numbers_of(machine: str) -> dict[str, int]:
    """Numbers of all calls that some broker may make, by name."""
    if machine == "x86_64":
        return {name: number for name, (number, _) in _NUMBERS.items()} | dict(_OF_X86_64)
    return {name: number for name, (_, number) in _NUMBERS.items()}


def broker_program(machine: str, *, memory_files: bool) -> bytes | None:
    """The program as an array of `struct sock_filter`.

    Args:
        machine: as `platform.machine()` names it.
        memory_files: it makes files in memory, and opens them by their paths in /proc/self/fd.

    Returns:
        None for a machine whose system calls nobody has put into a table.
    """
    if machine not in ARCHITECTURES:
        return None
    numbers = numbers_of(machine)
    rules = {**_RULES, **_MEMORY_FILES} if memory_files else _RULES
    plain = [numbers[name] for name in numbers if name not in {**_RULES, **_MEMORY_FILES}]
    lines = [only_of(machine), run_if_one_of(plain, result(ALLOW))]
    lines += [run_if(EQUAL, numbers[name], rule, result(ALLOW)) for name, rule in rules.items()]
    return b"".join([*lines, refuse(errno.EPERM)])
