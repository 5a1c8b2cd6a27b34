"""Holders that run already: those that give back what they hold, and those that do not answer.

There is more than one if one did not answer (it is stopped, or the machine swaps) when a supervisor
started. The supervisor then serves without the sessions of that one, moves its socket aside, and
has its own sessions held by another. When the first one answers, the supervisor restarts itself and
takes over what both hold.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import trio

from nsm.dataclass import dataclass, field
from nsmd.fdstore import holder
from nsmd.host.processes import pid_of, read_proc

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
"""Time for all holders to answer: milliseconds, unless one is stopped or the machine swaps. Clients
that wait for a supervisor to start wait twice as long.
"""

SHORTEST_ANSWER_S = 0.2
"""Time for one of several holders, if others before it have used up all of it."""

ASK_AGAIN_S = 2.0
"""Pause before a silent holder is asked again if it has no room for another connection."""


_PROGRAM = b"/nsmd/fdstore/holder.py\0"
"""End of the path in a holder's command, whichever nsm started it."""


class HolderError(Exception):
    """The holder does not work; the message says what it does instead.

    Attributes:
        pidfd: descriptor of its process, owned by whoever catches this; None if that is not known.
    """

    def __init__(self, message: str, pidfd: int | None = None) -> None:
        super().__init__(message)
        self.pidfd = pidfd


@dataclass(slots=True, kw_only=True)
class RunningHolder:
    """A holder that answers.

    Attributes:
        link: non-blocking connection; this process is its supervisor.
        ended: it ended while it sent them; the rest is lost.
        lacking: names of which it holds descriptors that are not among the copies.
    """

    path: str
    link: socket.socket
    pid: int = 0
    kept: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: bool = False
    lacking: set[str] = field(default_factory=set[str])

    def close(self) -> None:
        """Close everything."""
        self.link.close()
        for descriptors in self.kept.values():
            for fd in descriptors:
                os.close(fd)
        self.kept = {}


@dataclass(frozen=True, slots=True)
class SilentHolder:
    """A holder that does not answer.

    Attributes:
        pidfd: descriptor of its process; None if that is not known.
    """

    path: str
    pidfd: int | None


class SilentHolders:
    """Holders that do not answer. Until they do, nobody knows which sessions they hold.

    Args:
        holders: one or more; their descriptors are owned from now on.

    Attributes:
        refused: why this supervisor has not restarted itself although one of them answers, and what
            to do; else empty.
    """

    def __init__(self, holders: Sequence[SilentHolder]) -> None:
        self._holders = holders
        self.refused = ""
        self._pids = [
            str(pid) for each in holders if each.pidfd is not None and (pid := pid_of(each.pidfd))
        ]

    def __repr__(self) -> str:
        return f"<SilentHolders {', '.join(each.path for each in self._holders)}>"

    @property
    def who(self) -> str:
        """Name them for people."""
        return f"process {', '.join(self._pids)}" if self._pids else "a process that nsm cannot see"

    @property
    def state(self) -> str:
        """Say what the process does, as the end of a sentence."""
        does = "answers again or has ended" if self.refused else "does not answer"
        return f"{does} ({self.who})"

    @property
    def advice(self) -> str:
        """Say what a person can do."""
        if self.refused:
            return f"{self.refused} Then run `nsm reload`."
        pids = " ".join(self._pids) or "PID"
        return (
            f"If it is stopped, continue it: kill -CONT {pids}. If it never answers, end it: "
            f"kill -KILL {pids}. That ends the sessions that it holds."
        )

    @property
    def problem(self) -> str:
        """Say what does not work meanwhile."""
        return (
            f"a holder of sessions {self.state}. Until the supervisor restarts itself and takes "
            "over sessions that it holds, they cannot be used; these and all others are kept. "
            f"{self.advice}"
        )

    async def wait(self) -> None:
        """Wait until one of them answers or ends."""
        async with trio.open_nursery() as nursery:
            for each in self._holders:
                nursery.start_soon(self._wait_for, each.path, nursery.cancel_scope)
        log.warning("a holder of sessions answers again, or has ended")

    @staticmethod
    async def _wait_for(path: str, others: trio.CancelScope) -> None:
        while True:
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                try:
                    await link.connect(path)
                    await link.send(b"count")
                    await link.recv(holder.MESSAGE_BYTES)
                except (FileNotFoundError, ConnectionError):
                    pass
                except OSError:  # its backlog is full
                    await trio.sleep(ASK_AGAIN_S)
                    continue
                others.cancel()
                return

    def end(self) -> None:
        """End them, with the sessions that they hold."""
        for each in self._holders:
            if each.pidfd is None:
                log.error("the holder at %s cannot be ended: its process is not known", each.path)
                continue
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(each.pidfd, signal.SIGKILL)
            with suppress(FileNotFoundError):
                os.unlink(each.path)
        self.close()

    def close(self) -> None:
        """Close the descriptors; the holders stay."""
        for each in self._holders:
            if each.pidfd is not None:
                os.close(each.pidfd)


def find_holders(path: str) -> tuple[list[RunningHolder], SilentHolders | None]:
    """Find the holders of earlier supervisors, and take copies of all that they hold.

    Afterwards the path is free, or the first of those that answer listens there.

    Raises:
        OSError: a socket cannot be moved.
    """
    running: list[RunningHolder] = []
    silent: list[SilentHolder] = []
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    for each in (path, *_moved_aside(path)):
        try:
            found = take_copies(
                each, timeout_s=max(SHORTEST_ANSWER_S, deadline_s - time.monotonic())
            )
        except HolderError as error:
            log.warning("%s; what it holds stays there", error)
            silent.append(SilentHolder(_move_aside(path) if each == path else each, error.pidfd))
            continue
        if found is not None:
            running.append(found)
        elif each != path:
            os.unlink(each)
    if running and running[0].path != path:
        os.rename(running[0].path, path)
        running[0].path = path
    return running, SilentHolders(silent) if silent else None


def _moved_aside(path: str) -> list[str]:
    """Return the paths of sockets that were moved aside."""
    directory, own = os.path.split(path)
    others = (name for name in os.listdir(directory) if name.startswith(f"{own}."))
    return [os.path.join(directory, name) for name in sorted(others)]


def _move_aside(path: str) -> str:
    """Move a holder's socket, so that another holder can listen; clients reach it as before."""
    others, number = _moved_aside(path), 1
    while (aside := f"{path}.{number}") in others:
        number += 1
    os.rename(path, aside)
    return aside


def take_copies(path: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> RunningHolder | None:
    """Connect to the holder at a path, and take copies of all that it holds; None if there is none.

    Raises:
        HolderError: there is one, but it does not answer.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found = RunningHolder(path=path, link=link)
    try:
        found.link.settimeout(timeout_s)
        found.link.connect(path)
        found.link.send(b"supervise")
        found.link.send(b"give")
        while _receive(found):
            pass
    except (FileNotFoundError, ConnectionError):
        found.link.close()
        if not found.kept:
            return None  # or it held nothing any more, and has ended
        log.warning("the holder of sessions has ended while it gave them: some may be lost")
        found.ended = True
        return found
    except OSError as error:
        pidfd = _process_of(link)
        found.close()
        why = "does not answer" if isinstance(error, TimeoutError) else f"fails ({error})"
        raise HolderError(f"the holder of sessions at {path} {why}", pidfd) from error
    found.link.setblocking(False)
    return found


def _receive(found: RunningHolder) -> bool:
    """Take one message; False for the last one.

    Raises:
        ConnectionError: it has ended.
    """
    message, fds, cut = holder.receive(found.link)
    word, _, name = message.decode(errors="replace").partition(" ")
    if cut or word == "lost":  # there is no room here for descriptors, or there for another file
        found.lacking.add(name)
    if not message:
        raise ConnectionResetError
    if word == "pid":
        found.pid = int(name)
    elif word == "has":
        found.kept.setdefault(name, []).extend(fds)
    return word != "all"


def _process_of(link: socket.socket) -> int | None:
    """Open a pidfd of the holder at the other end; None if that is not known."""
    try:
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        pidfd = os.pidfd_open(pid)
    except OSError:  # it has ended, or is not to be seen from here
        return None
    with suppress(OSError):
        # A holder that was stopped before it listened has its starter's id here, which may be
        # another process's by now.
        if _PROGRAM in read_proc(f"/proc/{pid}/cmdline"):
            return pidfd
    os.close(pidfd)
    return None
