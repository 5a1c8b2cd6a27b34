"""The session that is forked, as its helper finds it: processes, descriptors and namespaces.

Programs that run beside its interpreter stay with it. Each enters a Landlock domain of its own, so
that it cannot reach the forks. In such a domain it cannot send signals to any other program either.
So the fork is refused if a program has started others, or was started by the interpreter: they may
have to send signals.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from nsm.wire.tuples import NamedTuple
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
from sandbox.tracing.fork_checks import PAGE, CannotForkError, inner_pid, proc_text, status_of
from sandbox.tracing.ptrace import Traced, TracedEndedError

CODE = "/memfd:code (deleted)"
"""Name of the file from which a shell reads code, among its descriptors."""


REMOVED = " (deleted)"
"""Mark of /proc at the path of a file that has no name any more."""

MAX_GAPS = 64 * 1024 * 1024
"""Bytes of gaps in a file without a name that is copied. They become zeros."""


class FileToOpen(NamedTuple):
    """A file that a fork opens again: descriptor, path, flags of open(2), offset."""

    fd: int
    path: str
    flags: int
    offset: int


LOOKS, LOOK_S = 40, 0.01
"""Looks for the interpreter of a session, and seconds between them."""


class UnnamedFile(NamedTuple):
    """An open file without a name, of which a fork gets a copy.

    Attributes:
        path: as /proc has it, without what says that it is removed.
    """

    fd: int
    path: str
    flags: int
    offset: int
    inode: tuple[int, int]
    size: int


class Descriptors(NamedTuple):
    """Descriptors of a process: what is opened again or copied, and what is closed, with words for
    people.
    """

    files: list[FileToOpen]
    unnamed: list[UnnamedFile]
    closed: dict[int, str]


def worker_of(agent: int, interpreter: str) -> int:
    """Process id of the interpreter of a session."""
    for _ in range(LOOKS):
        found = _workers_of(agent, interpreter)
        if len(found) == 1:
            return found[0]
        time.sleep(LOOK_S)  # what has just been killed is not gone yet
    raise CannotForkError("no interpreter waits for code in it; run something first")


def _workers_of(agent: int, interpreter: str) -> list[int]:
    found = [pid for pid in children_of(agent) if not is_dead(pid)]
    if interpreter == "bash":
        return [pid for pid in found if code_fd_of(pid) >= 0]
    if len(found) > 1:
        # Beside it there may be checkpoints, which block all signals, and programs.
        return [pid for pid in found if has_page(pid) and not _is_frozen(pid)]
    return found


def code_fd_of(pid: int) -> int:
    """Descriptor of the file from which a shell reads code; -1 if the process is no shell.

    Code may have opened that file again, at a lower number.
    """
    found = [-1]
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == CODE:
                    found.append(int(name))
    return max(found)


def check_shell(pid: int, first: int) -> None:
    """Refuse a shell whose descriptors are not those that its agent has given it.

    Args:
        first: that of the file with code; the next one leads to /dev/null.
    """
    place = f"/proc/{pid}/fd/"
    try:
        is_intact = (
            os.readlink(f"{place}{first}") == CODE
            and os.stat(f"{place}{first + 1}").st_rdev == os.stat("/dev/null").st_rdev
        )
    except FileNotFoundError:
        is_intact = False
    if not is_intact:
        raise CannotForkError(f"code has changed descriptors from {first} on, which belong to nsm")


def has_page(pid: int) -> bool:
    """Tell whether it shares a page with the agent, as interpreters and checkpoints do."""
    try:
        return PAGE in proc_text(f"/proc/{pid}/maps")
    except OSError:  # it has ended, or nobody may look at it
        return False


def _is_frozen(pid: int) -> bool:
    never = 1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1
    lowest = (1 << 31) - 1  # the C library keeps two of the others for itself
    return not ~(int(status_of(pid)["SigBlk"], 16) | never) & lowest


def children_of(pid: int) -> set[int]:
    """Process ids of the children of all threads of a process; none if it has ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return {
            int(child)
            for task in tasks
            for child in proc_text(f"/proc/{pid}/task/{task}/children").split()
        }
    except FileNotFoundError:
        return set()


def is_dead(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        status = status_of(pid)
        # A program whose main thread has ended looks dead while its other threads go on.
        return status.get("State", "X")[0] in "ZX" and int(status.get("Threads", "0")) <= 1
    except OSError:
        return True


def descriptors_of(pid: int, private: set[int]) -> Descriptors:
    """Look at its descriptors."""
    files: list[FileToOpen] = []
    unnamed: list[UnnamedFile] = []
    closed: dict[int, str] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        fd = int(name)
        if fd in private:
            continue
        path = os.readlink(f"/proc/{pid}/fd/{name}")
        status = os.stat(f"/proc/{pid}/fd/{name}")
        kind = status.st_mode
        facts = dict(
            line.split(":", 1) for line in proc_text(f"/proc/{pid}/fdinfo/{name}").splitlines()
        )
        reopens = stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISCHR(kind)
        flags, offset = int(facts["flags"], 8), int(facts["pos"])
        is_removed = path.endswith(REMOVED) and not _is_at(f"/proc/{pid}/root{path}", status)
        is_file = stat.S_ISREG(kind) and path != PAGE
        if is_removed and is_file and status.st_size - 512 * status.st_blocks < MAX_GAPS:
            inode = status.st_dev, status.st_ino
            path = path.removesuffix(REMOVED)
            unnamed.append(UnnamedFile(fd, path, flags, offset, inode, status.st_size))
        elif reopens and path.startswith("/") and not is_removed:
            files.append(FileToOpen(fd, path, flags, offset))
        else:
            closed[fd] = path
    return Descriptors(files, unnamed, closed)


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


_ROUNDS = 50
"""Looks at a program that makes threads while it is being stopped, one after another."""


class OtherPrograms:
    """Programs that run in a session beside its interpreter, stopped."""

    def __init__(self, agent: int, own: set[int]) -> None:
        self._agent, self._own = agent, own
        self._names: dict[int, str] = {}
        self.threads: list[Traced] = []

    @property
    def names(self) -> Sequence[str]:
        """Names of the programs, without those that are checkpoints."""
        return [
            f"program {name!r}, which stays with the original"
            for pid, name in self._names.items()
            if not has_page(pid)
        ]

    def stop(self) -> None:
        """Stop all of them."""
        for _ in range(_ROUNDS):
            known = {thread.pid for thread in self.threads}
            fresh = [thread for thread in self._look() if thread not in known]
            if not fresh:
                return
            for thread in fresh:
                with suppress(ProcessLookupError, TracedEndedError):
                    self._stop(thread)
        raise CannotForkError("a program that runs in it makes threads all the time")

    def _stop(self, thread: int) -> None:
        try:
            traced = Traced.seize(thread)
        except PermissionError:
            name = proc_text(f"/proc/{thread}/comm").strip()
            raise CannotForkError(f"a program that runs in it ({name}) cannot be traced") from None
        self.threads.append(traced)
        try:
            traced.interrupt()
        except TracedEndedError:
            self.threads.remove(traced)
            raise

    def _look(self) -> Iterator[int]:
        """Threads of all of them.

        Raises:
            CannotForkError: one has started others, or was started by the interpreter.
        """
        for pid in children_of(self._agent):
            if pid in self._own:
                parent, others = "its interpreter", children_of(pid) - self._own
            elif is_dead(pid):
                continue
            else:
                with suppress(FileNotFoundError):
                    self._names[pid] = proc_text(f"/proc/{pid}/comm").strip()
                    yield from map(int, os.listdir(f"/proc/{pid}/task"))
                parent, others = self._names.get(pid, "a program"), children_of(pid)
            others = {each for each in others if not is_dead(each)}
            if others:
                names = sorted({proc_text(f"/proc/{each}/comm").strip() for each in others})
                raise CannotForkError(
                    f"{parent} has started other programs ({', '.join(names)[:200]}), which cannot "
                    "be kept from the fork without keeping them from each other"
                )

    def let_go(self) -> None:
        """Let all of them run."""
        for thread in self.threads:
            thread.let_go()


# linux/nsfs.h
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702

CLONE_PARENT = 0x8000

NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET

SETTINGS = "/proc/sys/user"
LIMITS = tuple(name for name in COUNTED if name.endswith("_namespaces"))

MADE_AT_ONCE = 1024
"""Namespaces that a session's user may have while its fork is made, and never else."""


def enter(fd: int, kind: int = 0) -> None:
    """Enter a namespace, as setns(2)."""
    call("setns", libc.setns(fd, kind))


def namespace(pid: int, kind: str) -> int:
    """A descriptor of a process's namespace."""
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def owner_of(fd: int) -> int:
    """The user namespace that owns a namespace."""
    return fcntl.ioctl(fd, _NS_GET_USERNS)


def in_child(action: Any) -> None:
    """Run something in a child process, since entering a user namespace cannot be taken back."""
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
        """Restore the limits that a helper had lifted when it was killed."""

        def restore() -> None:
            settings = os.open(SETTINGS, os.O_PATH | os.O_CLOEXEC)
            enter(self.top)
            for level in self.levels():
                restore_limits(enter_level(level, settings))

        in_child(restore)

    def hide_others(self) -> None:
        """Have its /proc show only what its processes may trace."""
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
