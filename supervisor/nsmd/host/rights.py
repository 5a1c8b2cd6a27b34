"""Rights that brokers give up: processes of nsm outside of jails that read the bytes of code.

Otherwise a hole in what reads them would give code all rights of the user. As it is, whoever takes
a broker over has the descriptors of the broker, and nothing else.
"""

from __future__ import annotations

import ctypes
import os

from nsm.jail import landlock
from nsm.jail.seccomp.brokers import broker_program

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def give_up_rights(*, memory_files: bool = False) -> None:
    """Give up, for good, to open files, start programs, make sockets and reach other processes.

    Call it once everything is imported: no module can be read afterwards. A kernel without Landlock
    leaves it to the filter alone, a machine whose system calls are in no table to Landlock alone.

    Args:
        memory_files: it makes files in memory, and opens them by their paths in /proc/self/fd.
            Without Landlock, it can then read other files, too.

    Raises:
        OSError: the kernel refuses.
    """
    assert len(os.listdir("/proc/self/task")) == 1, "other threads would stay free"
    program = broker_program(os.uname().machine, memory_files=memory_files)
    landlock.close_all()
    if program is None:
        return
    library = ctypes.CDLL(None, use_errno=True)
    filled = _Program(len(program) // 8, program)
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filled), 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"a filter of system calls: {os.strerror(number)}")
