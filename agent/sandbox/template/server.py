"""The template: waits for requests, and forks."""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys

from sandbox.linux import DEFAULT_ACTION, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, set_handler
from sandbox.template.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    SIGCHLD,
    call,
    clone,
    libc,
    set_option,
)
from sandbox.template.preloading import (
    SCRATCH,
    fill_gaps,
    forget_lookups,
    inherit_mapped_pages,
    loaded_files,
)
from sandbox.template.session import WENT_WRONG, ForkedSession, enter_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.template.session import TemplateFacts


TEMPLATE_PROTOCOL = 2
"""Version of requests and answers (docs/contributing/agent-protocol.md, Templates). A supervisor of
another version may speak to this template."""

REQUEST_BYTES = 64 * 1024
FD_BYTES = struct.calcsize("i")

MAX_SESSIONS = 32
"""Largest number of prepared sessions, one for each different request."""

CORES_PER_FORKER = 4
"""Cores that one forker keeps busy: the fork takes a fifth of what a session's whole life takes."""

MAX_FORKERS = 4

BEHIND = 8
"""Another forker starts when so many requests in a row were followed by one that already waited."""

FONT_LISTS = "/workspace/.cache/matplotlib/fontlist-*.json"
FONT_LIST_S = 60
"""Longest time for making one; a desktop has some 1,000 fonts. Nobody waits for it."""

MAX_FONT_LIST_BYTES = 4 * 1024 * 1024

NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET


class TemplateServer:
    """Server of a template: it waits for requests and forks.

    Where there are many cores, it forks itself once it cannot keep up. All these processes, the
    forkers, read the same control socket, so that whichever is free takes the next request. They
    end when the first of them ends.

    Attributes:
        failed: modules that could not be preloaded, and why.
        imported: the others, and the seconds that each import took.
        lists_fonts: it has matplotlib make a list of fonts, if there is none.
    """

    def __init__(self, control: socket.socket, template: TemplateFacts) -> None:
        self._template = template
        self.failed: Mapping[str, str] = {}
        self.imported: Mapping[str, float] = {}
        self.lists_fonts = False
        self._control = control
        self._message = bytearray(REQUEST_BYTES)
        self._sessions: dict[bytes, ForkedSession] = {}
        self._fillers: Sequence[object] = ()
        self._first = self._listing_fonts = -1  # pidfds
        self._forkers: set[int] = set()  # pidfds
        self._poll = select.poll()
        self._most_forkers = min(MAX_FORKERS, len(os.sched_getaffinity(0)) // CORES_PER_FORKER)
        self._behind = 0

    def serve(self) -> tuple[ForkedSession, int, bytes, int]:
        """Fork whenever asked, until nobody can ask any more; then exit.

        Returns in a fork only: its session, its socket, the part of the request that no other fork
        is to have, and its control group or -1. Code of users is not to run on top of the
        template's frames.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        # Nobody asks how its children ended: the kernel reaps them (sigaction(2)).
        signal.signal(SIGCHLD, signal.SIG_IGN)
        # Orphans come here, not to bwrap's init.
        set_option("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
        inherit_mapped_pages()
        forget_lookups()
        gc.collect()
        self._fillers = fill_gaps()
        gc.freeze()  # what all forks share is never touched by their garbage collectors
        self._announce()
        if self.lists_fonts:
            self._listing_fonts = start_font_list()
        while (taken := self._serve()) is None:
            pass  # a new forker begins
        return taken

    def _serve(self) -> tuple[ForkedSession, int, bytes, int] | None:
        """Serve requests. Returns in a fork only: as `serve`, or None in a new forker."""
        control = self._control.fileno()
        self._poll = select.poll()
        for number in (self._listing_fonts, control, self._first):
            if number >= 0:
                self._poll.register(number, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._first:
                    os._exit(0)
                elif fd == self._listing_fonts:
                    self._poll.unregister(fd)
                    os.close(fd)
                    self._listing_fonts = -1
                    self._template.font_lists = read_font_lists()
                elif fd in self._forkers:
                    self._forkers.remove(fd)
                    self._poll.unregister(fd)
                    os.close(fd)
                elif (taken := self._take()) is not None:
                    return taken
                elif self._is_behind() and self._fork_forker():
                    return None

    def _is_behind(self) -> bool:
        """Return whether requests come too fast, so that one more forker may help."""
        if len(self._forkers) + 1 >= self._most_forkers:
            return False
        waiting = select.select([self._control], (), (), 0)[0]
        self._behind = self._behind + 1 if waiting else 0
        return self._behind >= BEHIND

    def _fork_forker(self) -> bool:
        """Fork another forker; return whether this is it."""
        self._behind = 0
        first = os.pidfd_open(os.getpid())
        try:
            pid = clone(0)
        except OSError:  # processes or memory are short: it goes on alone
            pid = -1
        if pid == 0:
            self._first, self._most_forkers = first, 0
            self._forget_forkers()
            return True
        os.close(first)
        if pid > 0:
            with contextlib.suppress(OSError):  # it has ended already
                forker = os.pidfd_open(pid)
                self._forkers.add(forker)
                self._poll.register(forker, select.POLLIN)
        return False

    def _forget_forkers(self) -> None:
        for fd in self._forkers:
            os.close(fd)
        self._forkers.clear()

    def _announce(self) -> None:
        """Say that requests are served, with a handle on this process."""
        pidfd = os.pidfd_open(os.getpid())
        told = {
            "ready": True,
            "protocol": TEMPLATE_PROTOCOL,
            "pid": os.getpid(),
            "failed": self.failed,
            "imported": self.imported,
            "loaded": loaded_files(),
        }
        ready = json.dumps(told).encode()
        socket.send_fds(self._control, [ready], [pidfd])
        os.close(pidfd)

    def _take(self) -> tuple[ForkedSession, int, bytes, int] | None:
        """One request: a message with one or two descriptors. Returns something in a fork only."""
        try:
            size, fds = self._receive()
        except BlockingIOError:  # another forker has it
            return None
        if not size:
            os._exit(0)
        end = self._message.find(0, 0, size)
        session = self._session(bytes(memoryview(self._message)[:end])) if end > 0 else None
        if session is not None and len(fds) in (1, 2) and self._fork(fds[0]):
            group = -1
            for group in fds[1:]:
                enter_group(group)
            return session, fds[0], bytes(memoryview(self._message)[end + 1 : size]), group
        # It may have variables of a client. Other forks have all that is in this memory.
        self._message[:size] = bytes(size)
        for fd in fds:
            os.close(fd)
        return None

    def _session(self, asked: bytes) -> ForkedSession | None:
        """The session of a request, prepared when the first such request comes.

        None if the request is not valid. The supervisor then sees the end of the session's socket.
        """
        session = self._sessions.get(asked)
        if session is None:
            try:
                session = ForkedSession(json.loads(asked), self._template)
            except (ValueError, LookupError, TypeError):
                return None
            if len(self._sessions) >= MAX_SESSIONS:
                self._sessions.clear()
            self._sessions[asked] = session
            gc.freeze()
        return session

    def _receive(self) -> tuple[int, Sequence[int]]:
        """The size of a message, which is in the one buffer for all, and its descriptors."""
        room = socket.CMSG_SPACE(4 * FD_BYTES)
        size, parts, _, _ = self._control.recvmsg_into([self._message], room, socket.MSG_DONTWAIT)
        fds: list[int] = []
        for level, kind, data in parts:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                count = len(data) // FD_BYTES
                fds += struct.unpack(f"{count}i", data[: count * FD_BYTES])
        return size, fds

    def _fork(self, fd: int) -> bool:
        """Fork; return whether this is the fork."""
        try:
            with_network = NAMESPACES & ~CLONE_NEWNET
            return clone(with_network if self._template.host_network else NAMESPACES) == 0
        except OSError as error:
            with contextlib.suppress(OSError):  # whoever asked may not wait any more
                os.write(fd, WENT_WRONG + f"clone: {error.strerror}".encode())
            return False


def start_font_list() -> int:
    """Have matplotlib, where it is installed, make its list of fonts, for which each fresh session
    would need seconds. Another process does it, beside the first sessions: forks are not to have
    what code did not import, nor to wait. Return a pidfd that tells when it is done; -1 if there is
    nothing to do."""
    if not os.access(SCRATCH[0], os.W_OK) or glob.glob(FONT_LISTS):
        return -1
    if importlib.util.find_spec("matplotlib") is None:
        return -1
    try:
        child = os.fork()
    except OSError:  # processes or memory are short
        return -1
    if child == 0:
        try:
            signal.alarm(FONT_LIST_S)  # which ends it
            os.nice(10)
            set_handler(SIGCHLD, DEFAULT_ACTION)
            call("unshare", libc.unshare(CLONE_NEWUSER))  # without rights over the sessions
            set_option("parent death signal", PR_SET_PDEATHSIG, signal.SIGKILL)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.closerange(3, 256)
            program = "import matplotlib.font_manager"
            os.execv(sys.executable, [sys.executable, "-I", "-c", program])
        finally:
            os._exit(1)
    try:
        return os.pidfd_open(child)
    except OSError:  # it has ended already, or descriptors are short
        return -1


def read_font_lists() -> Mapping[str, bytes]:
    """Return the lists that matplotlib has made, by path."""
    found: dict[str, bytes] = {}
    for path in glob.glob(FONT_LISTS):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            content = file.read(MAX_FONT_LIST_BYTES + 1)
            if len(content) <= MAX_FONT_LIST_BYTES:
                found[path] = content
    return found
