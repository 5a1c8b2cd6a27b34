"""PID 1 of a fork, from its clone until it is the agent; it copies the original's directories."""

from __future__ import annotations

import _socket
import os
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import sandbox_agent
from nsm.jail.seccomp import filter_program
from nsm.wire.tuples import NamedTuple
from nsmd.sessions.forking.traced_session import keep_only, namespace
from sandbox.limits import Limits
from sandbox.template.kernel import Filter, SetupError, call, libc, write_file
from sandbox.template.mounts import (
    cover,
    keep_mounts,
    make_copy_on_write,
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
from sandbox.tracing.fork_checks import KINDS

PIECE = 1 << 30

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeCopy:
    """Copy of the trees of one session, hard links included."""

    def __init__(self) -> None:
        self.bytes = 0
        self._links: dict[tuple[int, int], str] = {}

    def copy(self, source: int, target: str) -> None:
        """Copy what is in a directory, and the directory's own rights and times."""
        for name in os.listdir(source):
            self._copy_entry(source, name, f"{target}/{name}")
        self._copy_attributes(source, target)
        self._finish(os.fstat(source), target)

    def _copy_entry(self, directory: int, name: str, target: str) -> None:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            known = self._links.setdefault((found.st_dev, found.st_ino), target)
            if known != target:
                os.link(known, target, follow_symlinks=False)
                return
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(target, 0o700)
            fd = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                self.copy(fd, target)
            finally:
                os.close(fd)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=directory), target)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)
        elif stat.S_ISREG(found.st_mode):
            self._copy_file(directory, name, target, found)
        elif stat.S_ISFIFO(found.st_mode):
            os.mkfifo(target)
            self._finish(found, target)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            os.mknod(target, stat.S_IFCHR)  # in an overlay: what is below is removed
        # Sockets are not copied: they lead to processes of the original.

    def _copy_file(self, directory: int, name: str, target: str, found: os.stat_result) -> None:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._copy_data(source, made, found.st_size)
                self._copy_attributes(source, made)
            finally:
                os.close(made)
        finally:
            os.close(source)
        self._finish(found, target)

    def _copy_data(self, source: int, made: int, size: int) -> None:
        """Copy the data; holes stay holes."""
        os.ftruncate(made, size)
        offset = 0
        while offset < size:
            try:
                begin = os.lseek(source, offset, os.SEEK_DATA)
            except OSError:  # ENXIO: the rest is a hole
                return
            end = os.lseek(source, begin, os.SEEK_HOLE)
            os.lseek(source, begin, os.SEEK_SET)
            os.lseek(made, begin, os.SEEK_SET)
            while begin < end:
                count = os.sendfile(made, source, None, min(end - begin, PIECE))
                if not count:
                    return
                begin += count
                self.bytes += count
            offset = end

    @staticmethod
    def _copy_attributes(source: int, target: int | str) -> None:
        with suppress(OSError):
            for attribute in os.listxattr(source):
                with suppress(OSError):  # others may be possible
                    os.setxattr(target, attribute, os.getxattr(source, attribute))

    @staticmethod
    def _finish(found: os.stat_result, target: str) -> None:
        os.chmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


class Kit(NamedTuple):
    """Parts of every fork that are the same, made once before all helpers.

    Attributes:
        last_capability: the highest number of one.
    """

    last_capability: int
    system_calls: Filter

    @staticmethod
    def make() -> Kit:
        with open("/proc/sys/kernel/cap_last_cap", encoding="utf-8") as file:
            last = int(file.read())
        program = filter_program(os.uname().machine)
        assert program is not None, "the supervisor has looked"
        return Kit(last, Filter(program))


class AgentEnds(NamedTuple):
    """Descriptors of one fork.

    Attributes:
        channel: its agent's end of the socket to the supervisor.
        group: `cgroup.procs` of its control group; None without.
        talk: PID 1's end of its socket to the helper.
        adopted: its agent's control socket to the worker, the page that it shares with that, and
            both ends of stdout and stderr.
    """

    channel: int
    group: int | None
    talk: int
    adopted: Sequence[int]


class FirstProcess:
    """PID 1 of a fork, from its clone until it becomes the agent; in namespaces of its own.

    Args:
        sources: directories of the original, by their paths in a session.
        changes: directory of the changes in its copy of the project; None without a copy.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        kit: Kit,
        ends: AgentEnds,
        sources: Mapping[str, int],
        changes: int | None,
        agent: Any,
    ) -> None:
        self._order, self._kit, self._ends, self._sources = order, kit, ends, sources
        self._changes = changes
        self._layers: Sequence[int] = ()
        self._tree = TreeCopy()
        self._agent = agent
        self._talk = _socket.socket(fileno=ends.talk)

    def run(self, original_pid: int) -> NoReturn:
        """Make the file systems, do what the helper asks for, and become the agent.

        Args:
            original_pid: process id of the original's worker, which no process here is to have:
                some random number generators know a fork by its process id.
        """
        try:
            self._make(original_pid)
            owner = namespace(1, "user")
            self._shut_in()
            self._tell_ready(owner)
            limit_resources(session_limits(self._order["common"]["limits"]))
            self._wait_for(b"copy")
            copied = self._copy()
            drop_privileges(*self._kit)
            self._talk.send(b"+" + str(copied).encode())
            agent = self._agent or prepare_agent(self._order)
            worker = int(self._wait_for(b"begin"))
            self._become_agent(agent, worker)
        except BaseException as error:  # noqa: BLE001  # somebody else raises it
            with suppress(OSError):
                self._talk.send(b"-" + f"{error}"[:4000].encode(errors="replace"))
        finally:
            os._exit(1)

    def _wait_for(self, word: bytes) -> bytes:
        """Wait for an order; returns its argument."""
        text = self._talk.recv(100)
        if not text:
            os._exit(0)  # the helper has given up
        found, _, argument = text.partition(b" ")
        assert found == word, text
        return argument

    def _make(self, original_pid: int) -> None:
        common, ends = self._order["common"], self._ends
        os.setsid()
        if ends.group is not None:
            enter_group(ends.group)
        kept = {0, 1, 2, ends.channel, ends.talk, *ends.adopted, *self._sources.values()}
        keep_only(kept if self._changes is None else kept | {self._changes})
        become_root(UID, UID)
        call("unshare", libc.unshare(LATE_NAMESPACES))
        keep_mounts()
        told = told_by_proc()
        if self._changes is not None:
            self._copy_project(common["overlay"])
        make_file_systems(common["sizes"])
        cover(told)
        policy = self._order["policy"].encode(errors="surrogateescape")
        if policy and os.path.exists("/run/nsm/policy.json"):
            show_policy(policy, next(iter(self._sources)))
        _socket.sethostname(common["hostname"])
        if not self._order["host_network"]:
            start_loopback(names=bool(common.get("names")))
        with suppress(SetupError):  # CONFIG_CHECKPOINT_RESTORE
            write_file("/proc/sys/kernel/ns_last_pid", str(original_pid + 1))
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)

    def _copy_project(self, overlay: Mapping[str, Any]) -> None:
        """Have a copy of the project with the changes of the original's."""
        changes = self._changes
        assert changes is not None, "the caller has looked"
        os.umask(0)
        self._layers = make_copy_on_write(
            overlay["path"], overlay["size_mb"], lambda place: self._tree.copy(changes, place)
        )
        os.umask(0o022)
        os.close(changes)

    def _shut_in(self) -> None:
        """Become an ordinary user, that can get nothing else than it has from now on.

        It keeps its capabilities until it has copied files: some may be readable to nobody.
        """
        become_user()
        for name, value in COUNTED.items():
            write_file(f"/proc/sys/user/{name}", str(value))

    def _tell_ready(self, owner: int) -> None:
        """Give the helper the namespaces, in the order of entering, and the copy of the project.

        Before descriptors are limited: one in flight counts against that limit, too.

        Args:
            owner: the user namespace that owns all but the last, which is that of its user.
        """
        fds = [owner, *(namespace(1, kind) for kind in (*KINDS, "user"))]
        copy = self._layers[:2]  # of the changes, and of what code sees
        socket.send_fds(self._talk, [b"+"], [*fds, *copy])  # type: ignore[arg-type]
        for fd in fds:
            os.close(fd)

    def _copy(self) -> int:
        os.umask(0)
        for path, source in self._sources.items():
            self._tree.copy(source, path)
            os.close(source)
        os.umask(0o022)
        return self._tree.bytes

    def _become_agent(self, agent: Any, worker: int) -> NoReturn:
        order, ends = self._order, self._ends
        self._talk.close()
        os.chdir("/workspace")
        adopted = (worker, *ends.adopted)
        layers = self._layers if order["limits"].get("undo") else ()
        if agent is not None:
            sandbox_agent.serve(
                agent,
                ends.channel,
                ends.channel,
                prestart=order["interpreter"],
                host_network=order["host_network"],
                adopted=adopted,
                layers=[layers] if layers else (),
            )
        for fd in (*ends.adopted, *layers):
            os.set_inheritable(fd, True)
        os.dup2(ends.channel, 0)
        os.dup2(ends.channel, 1)
        words = [*order["command"], "--adopt", ",".join(map(str, adopted))]
        if layers:
            words += ["--layers", ",".join(map(str, layers))]
        os.execve(words[0], words, dict(order["variables"]))  # noqa: S606


def prepare_agent(order: Mapping[str, Any]) -> Any:
    """Make the agent of a fork, in its PID 1 or before that is forked.

    Returns:
        The agent, made of the modules that this process has imported. None if the session has
        another Python than this process: then PID 1 executes the agent's program.
    """
    if not order["same_python"]:
        return None
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
    agent.session.file = order["agent_file"]
    return agent
