"""Jails of forks, and the process that makes them, as the helper has them.

The maker is forked before the request is there, since a fork takes long. It enters the original's
namespaces, and waits for a word of the helper: code of the original could trace the PID 1 of a
fork until that has become its agent, so there is none before the original is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

from nsmd.host.processes import pid_of
from nsmd.sessions.forking.first_process import AgentEnds, FirstProcess, Kit, prepare_agent
from nsmd.sessions.forking.traced_session import (
    CLONE_PARENT,
    LIMITS,
    NAMESPACES,
    SETTINGS,
    Original,
    become_user_of,
    enter,
    enter_level,
    keep_only,
    lift_limits,
    rehearse,
    restore_limits,
    worker_of,
)
from sandbox.shared_page import SharedPage
from sandbox.template.kernel import CLONE_NEWNET, clone
from sandbox.tracing.fork_checks import KINDS, CannotForkError

MESSAGE_BYTES = 256 * 1024

_ENDS, _LIMITS, _BORN, _FAILED = b"e", b"l", b"b", b"-"


class NewJail:
    """Jail of one fork while it is made.

    Args:
        talk: the helper's end of a socket to its PID 1.
        theirs: descriptors for its worker: stdout, stderr, control socket, page; for a shell, the
            file with code in place of the page.
        group: `cgroup.procs` of its control group; None without.

    Attributes:
        pid: host process id of its PID 1; 0 before there is one, or if that has ended.
        namespaces: descriptors of its namespaces, in the order of entering: first the user
            namespace that owns its mounts, last its own user namespace.
    """

    def __init__(self, talk: int, theirs: Sequence[int], group: int | None) -> None:
        self._talk = socket.socket(fileno=talk)
        self.theirs, self.group = theirs, group
        self.pid, self.pidfd = 0, -1
        self.namespaces: Sequence[int] = ()
        self.project_copy: Sequence[int] = ()

    def take_first_process(self, pidfd: int) -> None:
        """Take its PID 1, which may have ended with the original; the descriptor is owned."""
        self.pid, self.pidfd = pid_of(pidfd) or 0, pidfd

    def wait_until_ready(self) -> None:
        """Wait for its namespaces and file systems."""
        fds, count = self._hear()[1], len(KINDS) + 2
        self.namespaces, self.project_copy = fds[:count], fds[count:]

    def begin_copy(self) -> None:
        """Have PID 1 copy the original's files, and give its privileges up."""
        self._say(b"copy")

    def wait_for_copy(self) -> int:
        """Wait for the end of that; returns the size of the files."""
        return int(self._hear()[0])

    def become_agent(self, worker: int) -> None:
        """Have PID 1 become the agent.

        Args:
            worker: process id of its worker, as it is there.
        """
        self._say(b"begin %d" % worker)

    def _say(self, text: bytes) -> None:
        with suppress(BrokenPipeError):  # its next answer is missing
            self._talk.send(text)

    def _hear(self) -> tuple[bytes, Sequence[int]]:
        try:
            answer, fds, _, _ = socket.recv_fds(self._talk, 8192, 16)
        except ConnectionError:
            answer, fds = b"", []
        if answer[:1] != b"+":
            words = answer[1:].decode(errors="replace") or "its PID 1 ended"
            raise CannotForkError(f"its file systems cannot be made: {words}")
        return answer[1:], fds

    def kill(self) -> None:
        """End its PID 1, and close the socket to it."""
        self._talk.close()
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class NewJails:
    """Jails of the forks of one request, and the process that makes them.

    Attributes:
        user_namespaces: how many the original and its forks may make, read after the limits
            were restored; None before.
    """

    def __init__(self, kit: Kit) -> None:
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._limits: list[int] = []
        self._groups: Sequence[int] = ()
        self.all: list[NewJail] = []
        self.user_namespaces: int | None = None
        if os.fork() == 0:
            self._line.close()
            try:
                _Maker(kit, its).run()
            except BaseException as error:  # noqa: BLE001  # the helper raises it
                with suppress(OSError):
                    its.send(_FAILED + str(error)[:4000].encode(errors="replace"))
            finally:
                os._exit(0)
        its.close()

    def begin(self, message: bytes, count: int, descriptors: Sequence[int]) -> None:
        """Have the maker enter the namespaces of the original.

        Args:
            descriptors: socket of the request, which the maker has open until it ends; sockets of
                the agents; control groups; the changes in the copy of the project.
        """
        self._groups = descriptors[1 + count : 1 + 2 * count]
        socket.send_fds(self._line, [message], descriptors)

    def begin_to_make(self, count: int) -> None:
        """Have the maker make PID 1 of each jail."""
        while len(self.all) < count:
            self._hear()
        lift_limits(self._limits)
        self._line.send(b"+")

    def wait_until_made(self) -> None:
        """Wait until the PID 1s have made their jails."""
        while any(jail.pidfd < 0 for jail in self.all):
            self._hear()
        for jail in self.all:
            jail.wait_until_ready()
        self._restore_limits()

    def _hear(self) -> None:
        """Wait until the maker reports the next thing that it has made."""
        try:
            word, fds, _, _ = socket.recv_fds(self._line, 4096, 16)
        except ConnectionError:
            word, fds = b"", []
        if word == _LIMITS:
            self._limits += fds
        elif word == _ENDS:
            group = self._groups[len(self.all)] if self._groups else None
            self.all.append(NewJail(fds[0], fds[1:], group))
        elif word == _BORN:
            jail = next(jail for jail in self.all if jail.pidfd < 0)
            jail.take_first_process(fds[0])
        else:
            words = word[1:].decode(errors="replace") or "its maker ended"
            raise CannotForkError(f"its namespaces cannot be made: {words}")

    def _restore_limits(self) -> None:
        restore_limits(self._limits)
        # The kernel counts a user namespace at every level above it, so the lowest limit holds.
        of_users = self._limits[LIMITS.index("max_user_namespaces") :: len(LIMITS)]
        if of_users:
            self.user_namespaces = min(int(os.pread(fd, 32, 0)) for fd in of_users)

    def take_back(self) -> None:
        """End all PID 1s, and restore the limits that were lifted. May be called at any time."""
        self._line.shutdown(socket.SHUT_WR)
        with suppress(CannotForkError):
            while True:  # to the end of the maker
                self._hear()
        self._restore_limits()
        for jail in self.all:
            jail.kill()


class _Maker:
    """The process that makes jails."""

    def __init__(self, kit: Kit, line: socket.socket) -> None:
        self._kit, self._line = kit, line

    def run(self) -> None:
        """Make the jails of one request."""
        keep_only({0, 1, 2, self._line.fileno()})
        rehearse()
        message, fds, _, _ = socket.recv_fds(self._line, MESSAGE_BYTES, 64)
        if not fds:
            return  # the helper has ended
        order = json.loads(message)
        become_user_of(order["agent"])
        original = Original(
            order["agent"], worker_of(order["agent"], order["interpreter"]), order["template"]
        )
        original.hide_others()
        sources = {
            path: os.open(f"/proc/{original.worker}/root{path}", os.O_RDONLY | os.O_DIRECTORY)
            for path in order["common"]["sizes"]
        }
        count = order["count"]
        changes = fds.pop() if order["common"]["overlay"] else None
        channels, groups = fds[1 : 1 + count], fds[1 + count :]
        levels = original.levels()
        settings = os.open(SETTINGS, os.O_PATH | os.O_CLOEXEC)
        enter(original.top)
        enter(original.below)
        enter(original.pid)
        for level in levels:
            files = enter_level(level, settings)
            socket.send_fds(self._line, [_LIMITS], files)
            for fd in (*files, level):
                os.close(fd)
        all_ends = [
            self._make_ends(channel, groups[number] if groups else None, order["interpreter"])
            for number, channel in enumerate(channels)
        ]
        # A process makes no PID namespace after it has entered one, but its child does.
        # Both end with the helper: the end of a process takes a millisecond, for which others wait.
        if pid := os.fork():
            os.waitpid(pid, 0)
            return
        # Several have it in common; a single one makes it when nothing waits for that.
        agent = prepare_agent(order) if count > 1 else None
        if self._line.recv(1):
            for ends in all_ends:
                flags = NAMESPACES & ~CLONE_NEWNET if order["host_network"] else NAMESPACES
                # CLONE_PARENT: else it would become a child of the original's agent.
                pid = clone(flags | CLONE_PARENT)
                if pid == 0:
                    first = FirstProcess(order, self._kit, ends, sources, changes, agent)
                    first.run(original.inner_pid)
                pidfd = os.pidfd_open(pid)
                socket.send_fds(self._line, [_BORN], [pidfd])
                os.close(pidfd)
            self._line.recv(1)

    def _make_ends(self, channel: int, group: int | None, interpreter: str) -> AgentEnds:
        """Make the descriptors of one fork; the helper gets its own, and those of the worker."""
        talk, its = (end.detach() for end in socket.socketpair(type=socket.SOCK_SEQPACKET))
        control, theirs = (end.detach() for end in socket.socketpair())
        if interpreter == "bash":
            page = os.memfd_create("code", os.MFD_CLOEXEC)
        else:
            page = SharedPage.make_file()
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        given = [talk, out_write, err_write, theirs, page]
        socket.send_fds(self._line, [_ENDS], given)
        os.close(talk)
        os.close(theirs)
        return AgentEnds(
            channel, group, its, (control, page, out_read, out_write, err_read, err_write)
        )
