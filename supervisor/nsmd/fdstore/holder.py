"""A program that holds copies of a supervisor's descriptors, so that sessions outlive it.

It is run by path, with the standard library alone (``python -I -S holder.py LINGER_S``). It imports
nothing of nsm, so a problem of the supervisor's code is not a problem here. It knows nothing about
what it holds: a supervisor gives it descriptors under names, and the next one takes them back.
Descriptor 0 is a listening socket, descriptor 1 is connected to the first supervisor.

Messages are packets (unix(7), SOCK_SEQPACKET): a word, or a word and a name.

``supervise``  the connection is the supervisor's; the one before it is closed. Answer: ``pid N``
``give``       answered by ``has NAME`` with descriptors for all that is held, then by ``all``
``keep NAME``  keep copies of the descriptors that come with it, beside those of that name
``set NAME``   keep them instead of those of that name
``drop NAME``  close those of that name
``end``        close all, and end
``wait N``     hold everything for N seconds without a supervisor, at least, since none can start
               now; anyone may say so, and the next supervisor ends it
``count``      answered by ``count N supervised`` or ``count N alone``: how many names there are,
               and whether there is a supervisor; anyone may ask

The holder answers ``lost NAME`` if it cannot keep a descriptor, and ignores words that it does not
know. Of a small sealed memory file it keeps only the content, and gives a new file with that: one
file for each of thousands of sessions would take a third of its descriptors.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # `typing` is large
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_DESCRIPTORS = 200
"""In one message; the kernel's limit is 253 (unix(7), SCM_RIGHTS)."""

ROOM_FOR_ONE = socket.CMSG_LEN(4)
"""Buffer size for one descriptor in `recvmsg`. CMSG_SPACE adds padding, which has room for a
second.
"""

_ROOM = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
# Numbers: each operation of an enumeration is four calls, and a fork comes through here.
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)

MAX_CONNECTIONS = 32
MESSAGE_BYTES = 4096
RESERVED = 64
"""Descriptors below the limit that stay free for connections."""

MAX_CONTENT_BYTES = 64 * 1024
"""Largest memory file of which only the content is kept."""

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

STEP_S, LATE_S = 10.0, 3.0
"""Without a supervisor it counts time in such steps. A step that takes so much longer does not
count: the process was stopped then, and so perhaps was everybody who would have come.
"""

GIVE_TIMEOUT_S = 30
"""A supervisor that takes nothing for so long gets nothing more."""


def receive(
    connection: socket.socket, flags: int = 0, *, size: int = MESSAGE_BYTES, room: int = _ROOM
) -> tuple[bytes, list[int], bool]:
    """Receive a message, its descriptors, and whether there were more than room for them.

    None is inherited further. (`socket.recv_fds` of Python 3.11 takes no notice of its flags.)
    """
    message, ancillary, found, _ = connection.recvmsg(size, room, flags | _CLOSE_ON_EXEC)
    return message, descriptors_in(ancillary), bool(found & _CUT)


def receive_one(connection: socket.socket, size: int = MESSAGE_BYTES) -> tuple[bytes, int | None]:
    """Receive a message that is there, and its descriptor, if it has one."""
    message, descriptors, _ = receive(
        connection, int(socket.MSG_DONTWAIT), size=size, room=ROOM_FOR_ONE
    )
    return message, descriptors[0] if descriptors else None


def descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Descriptors of a message, from the ancillary data of recvmsg(2)."""
    return [
        fd
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for (fd,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
    ]


def identity(fd: int) -> tuple[int, int, str]:
    """Return a key that is equal for two descriptors of one thing.

    Before Linux 6.9 all pidfds are one inode; proc_pid_fdinfo(5) tells them apart.
    """
    status = os.fstat(fd)
    pid = ""
    if status.st_mode & 0o170000 == 0:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            pid = "".join(line for line in info if line.startswith("Pid:"))
    return status.st_dev, status.st_ino, pid


def content_of(fd: int) -> bytes | None:
    """Read a small memory file that nobody can change; None for anything else.

    Raises:
        OSError: it cannot be read.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return None
    if seals != SEALS or os.fstat(fd).st_size > MAX_CONTENT_BYTES:
        return None
    return os.pread(fd, MAX_CONTENT_BYTES, 0)


def memory_file(content: bytes) -> int:
    """Make a sealed memory file with that content; the caller closes its descriptor.

    Raises:
        OSError: there is no descriptor or memory for it.
    """
    fd = os.memfd_create("nsm-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class DescriptorHolder:
    """Holder of a supervisor's descriptors.

    Args:
        linger_s: how long everything is held without one.
    """

    def __init__(self, listener: socket.socket, first: socket.socket, linger_s: float) -> None:
        self.listener = listener
        self.supervisor: socket.socket | None = first
        self.connections = {first.fileno(): first}
        self.linger_s = self.longest_s = linger_s
        self.alone_s = 0.0
        self.ended = False
        self.held: dict[str, dict[tuple[int, int, str], int]] = {}
        self.contents: dict[str, set[bytes]] = {}
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.poll.register(first, select.POLLIN)

    def run(self) -> None:
        """Run until told to end, or until nobody needs it."""
        while not self.ended and (self.supervisor or self.held or self.contents):
            began_s = time.monotonic()
            step_s = max(0.0, min(STEP_S, self.longest_s - self.alone_s))
            ready = self.poll.poll(None if self.supervisor else 1000 * step_s)
            if not self.supervisor:
                waited_s = time.monotonic() - began_s
                self.alone_s += waited_s if waited_s < step_s + LATE_S else 0.0
                if not ready and self.alone_s >= self.longest_s:
                    return
            for fd, _ in ready:
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.connections:
                    self.hear(self.connections[fd])

    def accept(self) -> None:
        """Accept a connection of the same user."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            connection.close()
            return
        if len(self.connections) >= MAX_CONNECTIONS:  # silent connections make room
            self.leave(next(c for c in self.connections.values() if c is not self.supervisor))
        seconds = struct.pack("@ll", GIVE_TIMEOUT_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self.connections[connection.fileno()] = connection
        self.poll.register(connection, select.POLLIN)

    def leave(self, connection: socket.socket) -> None:
        """Close a connection."""
        self.poll.unregister(connection)
        del self.connections[connection.fileno()]
        connection.close()
        if connection is self.supervisor:
            self.supervisor = None
            self.alone_s = 0.0

    def hear(self, connection: socket.socket) -> bool:
        """Carry out one message; False if there is none."""
        try:
            message, fds, cut = receive(connection, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            message, fds, cut = b"", [], False
        if not message:
            close(fds)
            self.leave(connection)
            return False
        word, _, name = message.decode("ascii", "replace").partition(" ")
        if word == "count":
            self.hear_out(self.supervisor, connection)  # it may be gone
            state = "supervised" if self.supervisor else "alone"
            answer(connection, f"count {len(self.names())} {state}")
        elif word == "wait" and name.isdigit():
            self.longest_s = max(self.linger_s, int(name))
        elif word == "supervise":
            self.follow(connection)
            answer(connection, f"pid {os.getpid()}")
        elif connection is self.supervisor:
            self.ended = self.ended or word == "end"
            self.obey(word, name, fds, cut=cut)
            return True
        close(fds)
        return True

    def follow(self, connection: socket.socket) -> None:
        """Handle another supervisor. It also gets what the one before it sent last."""
        self.hear_out(self.supervisor, connection)
        if self.supervisor is not None and self.supervisor is not connection:
            self.leave(self.supervisor)
        self.supervisor = connection
        self.longest_s = self.linger_s

    def hear_out(self, one: socket.socket | None, another: socket.socket) -> None:
        """Read all that one connection has sent so far, before another one is served."""
        while one is not None and one is not another and one is self.supervisor and self.hear(one):
            pass

    def obey(self, word: str, name: str, fds: list[int], *, cut: bool) -> None:
        """Carry out a supervisor's request.

        Args:
            cut: the message had descriptors for which there was no room.
        """
        if word in ("drop", "set"):
            close(self.held.pop(name, {}).values())
            self.contents.pop(name, None)
        if word == "give":
            self.give()
        if word not in ("keep", "set"):
            close(fds)
        elif cut or not fds or max(fds) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED:
            close(fds)
            answer(self.supervisor, f"lost {name}")
        else:
            try:
                self.hold(name, fds)
            except OSError:  # the system has no room for another file
                answer(self.supervisor, f"lost {name}")

    def hold(self, name: str, fds: list[int]) -> None:
        """Hold descriptors, each thing once.

        Raises:
            OSError: the kernel does not identify one of them.
        """
        while fds:
            fd = fds.pop()
            try:
                content = content_of(fd)
                if content is not None:
                    self.contents.setdefault(name, set()).add(content)
                    os.close(fd)
                    continue
                kept = self.held.setdefault(name, {}).setdefault(identity(fd), fd)
            except OSError:
                close([fd, *fds])
                raise
            if kept != fd:
                os.close(fd)

    def names(self) -> list[str]:
        """Names of everything that is held, in the order in which it came."""
        return list({**self.held, **self.contents})

    def give(self) -> None:
        """Send copies of everything that is held."""
        for name in self.names():
            files: list[int] = []
            try:
                files += map(memory_file, self.contents.get(name, ()))
            except OSError:  # the system has no room for another file
                answer(self.supervisor, f"lost {name}")
            fds = [*self.held.get(name, {}).values(), *files]
            for start in range(0, len(fds), MAX_DESCRIPTORS):
                answer(self.supervisor, f"has {name}", fds[start : start + MAX_DESCRIPTORS])
            close(files)
        answer(self.supervisor, "all")


def answer(connection: socket.socket | None, text: str, fds: list[int] | None = None) -> None:
    """Send an answer; end the connection if its peer does not read."""
    if connection is None:
        return
    try:
        socket.send_fds(connection, [text.encode()], fds or [])
    except OSError:
        connection.shutdown(socket.SHUT_RDWR)


def close(fds: Iterable[int]) -> None:
    """Close them all."""
    for fd in fds:
        os.close(fd)


def main() -> None:
    """The program."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    os.closerange(3, 1 << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener, first = socket.socket(fileno=0), socket.socket(fileno=1)
    listener.setblocking(False)
    listener.listen()  # again: clients then see this process as the peer, and not its starter
    DescriptorHolder(listener, first, float(sys.argv[1])).run()


if __name__ == "__main__":
    main()
