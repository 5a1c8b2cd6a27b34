"""Namespaces of the original, their limits, and how a process enters them."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
from collections.abc import Sequence
from typing import Any

from sandbox.carrying.looking import CannotForkError, inner_pid, status_of
from sandbox.linux import PR_SET_DUMPABLE
from sandbox.template.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REMOUNT,
    call,
    libc,
    mount,
)
from sandbox.template.session import COUNTED

# linux/nsfs.h
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702

CLONE_PARENT = 0x8000

NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET

SETTINGS = "/proc/sys/user"
LIMITS = tuple(name for name in COUNTED if name.endswith("_namespaces"))

MADE_AT_ONCE = 1024
"""Namespaces that a session's user may have while its fork is made, and never else."""


def enter(fd: int, kind: int = 0) -> None:
    """setns(2).

    Raises:
        SetupError: the kernel refuses.
    """
    call("setns", libc.setns(fd, kind))


def namespace(pid: int, kind: str) -> int:
    """A descriptor of a process's namespace."""
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def owner_of(fd: int) -> int:
    """The user namespace that owns a namespace."""
    return fcntl.ioctl(fd, _NS_GET_USERNS)


def in_child(action: Any) -> None:
    """Run something in a child process, since entering a user namespace cannot be taken back.

    Raises:
        CannotForkError: it failed.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  # somebody else raises it
            os.write(write, str(error).encode())
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as told:
        text = told.read().decode(errors="replace")
    if os.waitpid(pid, 0)[1]:
        raise CannotForkError(text or "a helper process ended")


class Original:
    """Namespaces of the session that is forked.

    Args:
        agent: its PID 1.
        worker: the process that is to be forked.
        template: PID 1 of the jail in which all of them are.
    """

    def __init__(self, agent: int, worker: int, template: int) -> None:
        self.agent, self.worker = agent, worker
        self.user, self.pid = namespace(worker, "user"), namespace(worker, "pid")
        self.mounts = namespace(worker, "mnt")
        # Nothing is mounted over /proc there: only then does the kernel allow a new /proc.
        self.below = namespace(template, "mnt")
        self.top = owner_of(self.below)
        self.inner_pid = inner_pid(status_of(worker))

    def levels(self) -> Sequence[int]:
        """User namespaces from the one below the template's down to its own."""
        levels = [os.dup(self.user)]
        top = os.fstat(self.top).st_ino
        while (above := fcntl.ioctl(levels[-1], _NS_GET_PARENT)) and os.fstat(above).st_ino != top:
            levels.append(above)
        os.close(above)
        return levels[::-1]

    def restore_limits(self) -> None:
        """Restore the limits that a helper had lifted when it was killed.

        Raises:
            CannotForkError: the kernel refuses.
        """

        def restore() -> None:
            settings = os.open(SETTINGS, os.O_PATH | os.O_CLOEXEC)
            enter(self.top)
            for level in self.levels():
                restore_limits(enter_level(level, settings))

        in_child(restore)

    def hide_others(self) -> None:
        """Have its /proc show only what its processes may trace.

        Raises:
            CannotForkError: the kernel refuses.
        """
        with open(f"/proc/{self.worker}/mountinfo", encoding="utf-8") as file:
            if any("hidepid=ptraceable" in line for line in file):
                return  # it has been forked before

        def remount() -> None:
            enter(owner_of(self.mounts))
            enter(self.mounts)
            flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC
            mount("proc", "/proc", "proc", flags, "hidepid=ptraceable")

        in_child(remount)


def enter_level(level: int, settings: int) -> list[int]:
    """Enter a user namespace; returns files of its limits.

    Args:
        settings: descriptor of /proc/sys/user, where each sees its own namespace's.
    """
    enter(level)
    return [os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=settings) for name in LIMITS]


def lift_limits(files: Sequence[int]) -> None:
    """Allow namespaces where none are."""
    _change_limits(files, 0, MADE_AT_ONCE)


def restore_limits(files: Sequence[int]) -> None:
    """Allow no namespaces again where `lift_limits` has allowed them."""
    _change_limits(files, MADE_AT_ONCE, 0)


def _change_limits(files: Sequence[int], old: int, new: int) -> None:
    for fd in files:
        # Another limit is not nsm's: it stays.
        if int(os.pread(fd, 32, 0)) == old:
            os.pwrite(fd, str(new).encode(), 0)


def keep_only(kept: set[int]) -> None:
    """Close all descriptors but these."""
    begin = 0
    for fd in sorted(kept):
        if begin < fd:  # Python would close all descriptors otherwise
            os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def become_user_of(agent: int) -> None:
    """Become the jails' user, if this is root."""
    if os.geteuid() == 0:
        uid = int(status_of(agent)["Uid"].split()[0])
        gid = int(status_of(agent)["Gid"].split()[0])
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # Its children write to their /proc/self.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def rehearse() -> None:
    """Do things that a request will take, so that this process has memory of its own for them."""
    status_of(os.getpid())
    json.loads(json.dumps({"order": [1, {"2": "3"}]}))
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        socket.send_fds(ours, [b"+"], [its.fileno()])
        for fd in socket.recv_fds(its, 16, 1)[1]:
            os.close(fd)
