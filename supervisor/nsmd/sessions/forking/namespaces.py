"""Namespaces and file systems of a fork, and its PID 1 until that is the fork's agent."""

from __future__ import annotations

import _socket
import fcntl
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import sandbox_agent
from nsm.jail.seccomp import filter_program
from nsmd.host.processes import pid_of
from nsmd.sessions.forking.copying import TreeCopy
from nsmd.sessions.forking.original import CannotForkError, status_of
from sandbox.limits import Limits
from sandbox.shared_page import SharedPage
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
    Filter,
    SetupError,
    call,
    clone,
    libc,
    mount,
    write_file,
)
from sandbox.template.mounts import (
    cover,
    keep_mounts,
    make_file_systems,
    show_policy,
    told_by_proc,
)
from sandbox.template.session import (
    COUNTED,
    LATE_NAMESPACES,
    UID,
    become_root,
    become_user,
    drop_privileges,
    enter_group,
    limit_resources,
    session_limits,
    start_loopback,
)

# linux/nsfs.h
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702

_CLONE_PARENT = 0x8000

_NAMESPACES = (
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
)

_SETTINGS = "/proc/sys/user"
_LIMITS = tuple(name for name in COUNTED if name.endswith("_namespaces"))

KINDS = ("mnt", "ipc", "uts", "net", "cgroup", "pid")
"""Namespaces of a session besides that of its user, in the order in which they are entered."""

MADE_AT_ONCE = 1024
"""Namespaces that a session's user may have while its fork is made, and never else."""

_GONE = "its PID 1 ended"


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
        self.inner_pid = int(status_of(worker)["NSpid"].split()[-1])

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
            settings = os.open(_SETTINGS, os.O_PATH | os.O_CLOEXEC)
            enter(self.top)
            for level in self.levels():
                restore_limits(_enter_level(level, settings))

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


def lift_limits(level: int, settings: int) -> list[int]:
    """Enter a user namespace and allow it namespaces, if none are; returns the limits' files.

    Args:
        settings: descriptor of /proc/sys/user, where each sees its own namespace's.
    """
    files = _enter_level(level, settings)
    _change_limits(files, 0, MADE_AT_ONCE)
    return files


def _enter_level(level: int, settings: int) -> list[int]:
    enter(level)
    return [os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=settings) for name in _LIMITS]


def restore_limits(files: Sequence[int]) -> None:
    """Allow no namespaces again where `lift_limits` has allowed them."""
    _change_limits(files, MADE_AT_ONCE, 0)


def _change_limits(files: Sequence[int], old: int, new: int) -> None:
    for fd in files:
        # Another limit is not nsm's: it stays.
        if int(os.pread(fd, 32, 0)) == old:
            os.pwrite(fd, str(new).encode(), 0)


class NewJail:
    """Jail of one fork while it is made: its namespaces, and its PID 1, which waits for orders.

    Another process makes the namespaces; `wait` waits until they are there.

    Args:
        order: the request.
        channel: its agent's end of the socket to the supervisor.
        group: `cgroup.procs` of its control group; None without.

    Attributes:
        pid: host process id of its PID 1.
        theirs: descriptors for its worker: stdout, stderr, control socket, page.
        limits: files of the limits that have been lifted for it.
        user_namespaces: how many the original and its forks may make, read after the limits
            were restored; None before.
    """

    def __init__(
        self, original: Original, order: Mapping[str, Any], channel: int, group: int | None
    ) -> None:
        self._talk, self._its = (end.detach() for end in socket.socketpair())
        control, theirs = (end.detach() for end in socket.socketpair())
        page = SharedPage.make_file()
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        self.theirs = (out_write, err_write, theirs, page)
        self._adopted = (control, page, out_read, out_write, err_read, err_write)
        self.group = group
        self.pid, self.pidfd = 0, -1
        self.limits: list[int] = []
        self.user_namespaces: int | None = None
        sources = {
            path: os.open(f"/proc/{original.worker}/root{path}", os.O_RDONLY | os.O_DIRECTORY)
            for path in order["common"]["sizes"]
        }
        levels = original.levels()
        self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._maker = os.fork()
        if self._maker == 0:
            try:
                settings = os.open(_SETTINGS, os.O_PATH | os.O_CLOEXEC)
                enter(original.top)
                enter(original.below)
                enter(original.pid)
                for level in levels:
                    socket.send_fds(its, [b"limits"], lift_limits(level, settings))
                # A process makes no PID namespace after it has entered one, but its child does.
                if os.fork() == 0:
                    flags = _NAMESPACES & ~CLONE_NEWNET if order["host_network"] else _NAMESPACES
                    # CLONE_PARENT: else it would become a child of the original's agent.
                    pid = clone(flags | _CLONE_PARENT)
                    if pid == 0:
                        adopted = self._adopted
                        first = FirstProcess(order, channel, self._its, adopted, sources, group)
                        first.run(original.inner_pid)
                    socket.send_fds(its, [b"+"], [os.pidfd_open(pid)])
            except BaseException as error:  # noqa: BLE001  # somebody else raises it
                its.send(b"-" + str(error).encode())
            finally:
                os._exit(0)
        its.close()
        os.close(self._its)
        for fd in (*sources.values(), *levels):
            os.close(fd)

    def wait(self) -> None:
        """Wait for its namespaces.

        Raises:
            CannotForkError: they cannot be made.
        """
        with self._ours:
            while (received := socket.recv_fds(self._ours, 4096, 16))[0] == b"limits":
                self.limits += received[1]
        text, fds = received[:2]
        if not fds:
            words = text[1:].decode(errors="replace") or "its maker ended"
            raise CannotForkError(f"its namespaces cannot be made: {words}")
        self.pidfd = fds[0]
        self.pid = pid_of(self.pidfd) or 0

    def take_back(self) -> None:
        """End PID 1, and restore the limits that were lifted for it. May be called at any time."""
        if not self.pid and self._ours.fileno() >= 0:
            with suppress(CannotForkError):
                self.wait()
        self.restore_limits()
        self.kill()

    def restore_limits(self) -> None:
        restore_limits(self.limits)
        # The kernel counts a user namespace at every level above it, so the lowest limit holds.
        of_users = self.limits[_LIMITS.index("max_user_namespaces") :: len(_LIMITS)]
        if of_users:
            self.user_namespaces = min(int(os.pread(fd, 32, 0)) for fd in of_users)
        for fd in self.limits:
            os.close(fd)
        self.limits = []

    def ask(self, *words: object) -> str:
        """Have its PID 1 do something; returns what it says of it.

        Raises:
            CannotForkError: that failed.
        """
        try:
            os.write(self._talk, json.dumps(words).encode())
            answer = os.read(self._talk, 8192)
        except OSError:
            answer = b""
        if answer[:1] != b"+":
            words_of_it = answer[1:].decode(errors="replace") or _GONE
            raise CannotForkError(f"its file systems cannot be made: {words_of_it}")
        return answer[1:].decode()

    def namespaces(self) -> Sequence[int]:
        """Descriptors of its namespaces, in the order of entering: first the user namespace that
        owns its mounts, last its own user namespace."""
        mounts = namespace(self.pid, "mnt")
        rest = [namespace(self.pid, kind) for kind in KINDS[1:]]
        return [owner_of(mounts), mounts, *rest, namespace(self.pid, "user")]

    def begin(self, worker: int) -> None:
        """Have PID 1 become the agent.

        Args:
            worker: process id of its worker, as it is there.
        """
        os.write(self._talk, json.dumps(["begin", worker]).encode())

    def kill(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, 9)


class FirstProcess:
    """PID 1 of a fork, from its clone until it becomes the agent; in namespaces of its own."""

    def __init__(
        self,
        order: Mapping[str, Any],
        channel: int,
        talk: int,
        adopted: Sequence[int],
        sources: Mapping[str, int],
        group: int | None,
    ) -> None:
        self._order, self._channel, self._talk = order, channel, talk
        self._adopted, self._sources, self._group = adopted, sources, group

    def run(self, original_pid: int) -> NoReturn:
        """Do what the helper asks for, and become the agent.

        Args:
            original_pid: process id of the original's worker, which no process here is to have:
                some random number generators know a fork by its process id.
        """
        try:
            self._make(original_pid)
            while True:
                text = os.read(self._talk, 8192)
                if not text:
                    os._exit(0)  # the helper has given up
                word, *arguments = json.loads(text)
                if word == "begin":
                    self._become_agent(*arguments)
                answer = self._copy() if word == "copy" else self._drop()
                os.write(self._talk, b"+" + answer)
        except BaseException as error:  # noqa: BLE001  # somebody else raises it
            with suppress(OSError):
                os.write(self._talk, b"-" + f"{error}"[:4000].encode(errors="replace"))
        finally:
            os._exit(1)

    def _make(self, original_pid: int) -> None:
        common = self._order["common"]
        kept = {self._channel, self._talk, *self._adopted, *self._sources.values()}
        os.setsid()
        if self._group is not None:
            enter_group(self._group)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in kept:
                with suppress(OSError):
                    os.close(int(name))
        become_root(UID, UID)
        call("unshare", libc.unshare(LATE_NAMESPACES))
        keep_mounts()
        sizes = common["sizes"]
        told = told_by_proc()
        make_file_systems(sizes)
        cover(told)
        _socket.sethostname(common["hostname"])
        if not self._order["host_network"]:
            start_loopback()
        with suppress(SetupError):  # CONFIG_CHECKPOINT_RESTORE
            write_file("/proc/sys/kernel/ns_last_pid", str(original_pid + 1))
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (0, 1, 2):
            os.dup2(null, number)

    def _copy(self) -> bytes:
        copy = TreeCopy()
        os.umask(0)
        for path, source in self._sources.items():
            copy.copy(source, path)
            os.close(source)
        os.umask(0o022)
        policy = self._order["policy"].encode(errors="surrogateescape")
        if policy and os.path.exists("/run/nsm/policy.json"):
            show_policy(policy, next(iter(self._sources)))
        return str(copy.bytes).encode()

    def _drop(self) -> bytes:
        become_user()
        for name, value in COUNTED.items():
            write_file(f"/proc/sys/user/{name}", str(value))
        limit_resources(session_limits(self._order["common"]["limits"]))
        with open("/proc/sys/kernel/cap_last_cap", encoding="utf-8") as file:
            last = int(file.read())
        program = filter_program(os.uname().machine)
        assert program is not None, "the supervisor has looked"
        drop_privileges(last, Filter(program))
        return str(last).encode()

    def _become_agent(self, worker: int) -> NoReturn:
        os.close(self._talk)
        os.chdir("/workspace")
        if self._order["same_python"]:
            self._serve((worker, *self._adopted))
        for fd in self._adopted:
            os.set_inheritable(fd, True)
        os.dup2(self._channel, 0)
        os.dup2(self._channel, 1)
        numbers = ",".join(map(str, (worker, *self._adopted)))
        words = [*self._order["command"], "--adopt", numbers]
        os.execve(words[0], words, dict(self._order["variables"]))  # noqa: S606

    def _serve(self, adopted: Sequence[int]) -> NoReturn:
        """Become the agent without executing a Python: its modules are imported already."""
        order = self._order
        os.environ.clear()
        os.environ.update(order["variables"])
        sys.path[:] = [path for path in sys.path if path.startswith(sys.base_prefix)]
        # Else a Python that starts again would be a fork of this one, which has another set-up.
        sys.executable = ""
        interpreter = order["interpreter"]
        agent = sandbox_agent.prepare(
            programs={interpreter: order["program"]},
            workspace="/workspace",
            limits=Limits(order["limits"]),
        )
        agent.file = order["agent_file"]
        sandbox_agent.serve(
            agent,
            self._channel,
            self._channel,
            prestart=interpreter,
            host_network=order["host_network"],
            adopted=adopted,
        )
