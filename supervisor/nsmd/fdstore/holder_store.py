"""Descriptors kept by a small process beside the supervisor, where no service manager does it.

That process is `nsmd.fdstore.holder`, started when there is first something to keep. What it
cannot be told at once, because its socket is full or it is gone, is a set of names that are behind:
when it listens again, it gets all that these names have by then. So nothing is copied in order to
wait, and nothing piles up.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import trio

from nsmd.fdstore import holder
from nsmd.fdstore.store import NoStore, Refill, StoreKind, copies_of

log = logging.getLogger(__name__)

LINGER_S = 600.0
"""How long sessions live on without a supervisor."""

ANSWER_TIMEOUT_S = 5.0
"""For a keeper to say something: milliseconds, unless it is stopped or the machine swaps. Clients
that wait for a supervisor to start wait for twice as long."""

ASK_AGAIN_S = 2.0
"""Seconds between two questions to a holder that did not answer at the start."""

END_TIMEOUT_S = 1.0
"""From the end of its connection to the keeper's own: less than 1 ms."""

RETRY_S = 1.0
"""Until descriptors are tried again that the kernel had no room for on their way."""

SHORTEST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 60.0
"""Between the starts of keepers that end again; doubled each time."""


class HolderError(Exception):
    """The keeper does not do its work; the message says what it does instead."""


@dataclass(slots=True, kw_only=True)
class Found:
    """A keeper that is there already.

    Attributes:
        link: connected to it; this process is its supervisor. Non-blocking.
        pid: its process id.
        kept: copies of what it holds.
        ended: it ended while it gave them; what it had not given by then is lost.
    """

    link: socket.socket
    pid: int = 0
    kept: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: bool = False

    def close(self) -> None:
        """Close everything."""
        self.link.close()
        for descriptors in self.kept.values():
            for fd in descriptors:
                os.close(fd)
        self.kept = {}


class HolderStore:
    """Descriptor store in a small process beside the supervisor.

    Args:
        path: of the keeper's socket, in a directory that is ours alone; held by one supervisor at
            a time.
        linger_s: how long the keeper holds all without a supervisor.
        found: a keeper that is there already, from `take`.
    """

    kind: StoreKind = "keeper"

    def __init__(
        self, path: str, *, linger_s: float = LINGER_S, found: Found | None = None
    ) -> None:
        self._path = path
        self._linger_s = linger_s
        there = found if found is not None and not found.ended else None
        self._link = there.link if there else None
        self._pid = there.pid if there else 0
        self._place = _identity(path) if there else None
        self._refill: Refill = tuple
        self._behind: dict[str, None] = {}
        self._lost: set[str] = set()
        self._trouble = ""
        # Another one is to be told of all that the one which has ended had given.
        self._pause_s = SHORTEST_PAUSE_S if found is not None and found.ended else 0.0
        self._changed = trio.Event()
        self._waiting = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<KeeperStore pid={self._pid} behind={len(self._behind)} lost={len(self._lost)}>"

    @property
    def pid(self) -> int:
        """Process id of the holder; 0 where there is none."""
        return self._pid

    @property
    def problem(self) -> str:
        if self._trouble:
            return self._trouble
        if self._link is None and self._pause_s:
            return "the holder of sessions has ended, and another is being started"
        if self._lost:
            return (
                f"the holder has no room for {len(self._lost)} of the things that it should hold, "
                "which end with the supervisor: raise the hard limit on open files"
            )
        if self._behind:
            return f"the holder (pid {self._pid}) has not taken {len(self._behind)} things yet"
        return ""

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        if self._link is None and not self._pause_s:
            self._start()
        self._tell("set", name, descriptors)

    def drop(self, name: str) -> None:
        self._lost.discard(name)
        if self._link is not None:
            self._tell("drop", name)

    def copies(self) -> dict[str, list[int]]:
        return copies_of(self._refill)

    def _tell(self, word: str, name: str, descriptors: Sequence[int] = ()) -> None:
        if name in self._behind or not self._send(word, name, descriptors):
            self._behind[name] = None
            self._changed.set()

    def _send(self, word: str, name: str, descriptors: Sequence[int] = ()) -> bool:
        """Return whether it is on its way."""
        if self._link is None:
            return False
        try:
            socket.send_fds(self._link, [f"{word} {name}".encode()], descriptors)
        except OSError:
            # Full, or gone, which its end of file tells, or too much is on its way (unix(7),
            # ETOOMANYREFS). What is no longer there will not be among what is told again.
            return False
        return True

    def _start(self) -> bool:
        """Start a keeper; whether it worked."""
        try:
            self._link, self._pid = start_holder(self._path, self._linger_s)
        except OSError as error:
            self._trouble = f"the holder of sessions cannot be started: {error}"
            log.warning("%s; sessions would end with this process", self._trouble)
            self._pause_s = max(self._pause_s, SHORTEST_PAUSE_S)
            self._changed.set()
            return False
        self._place = _identity(self._path)
        self._trouble = ""
        self._changed.set()  # its end is to be noticed from now on
        return True

    async def run(self, refill: Refill) -> None:
        self._refill = refill
        while True:
            while self._link is None and not self._pause_s:
                await self._woken()
            if self._link is None:
                await trio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
                current = dict.fromkeys(name for name, _ in self._refill())
                if current and not self._start():
                    continue
                self._behind = current
                self._lost.clear()
                self._changed.set()
            if self._link is None:  # there is nothing to keep any more
                self._pause_s = 0.0
                continue
            started_s = trio.current_time()
            await self._while_there(self._link)
            if trio.current_time() - started_s > LONGEST_PAUSE_S:
                self._pause_s = 0.0
            self._gone()

    async def _woken(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    async def _while_there(self, link: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._catch_up, link)
            while await self._listen(link):
                pass
            nursery.cancel_scope.cancel()

    async def _listen(self, link: socket.socket) -> bool:
        """Take one message; False at the end."""
        await trio.lowlevel.wait_readable(link)
        try:
            message = link.recv(holder.MESSAGE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        word, _, name = message.decode(errors="replace").partition(" ")
        if word == "lost":
            if not self._lost:
                log.error("the holder has no room for %s: sessions would end with us", name)
            self._lost.add(name)
        return bool(message)

    async def _catch_up(self, link: socket.socket) -> None:
        while True:
            while not self._behind:
                await self._woken()
            await trio.lowlevel.wait_writable(link)
            if not self._flush():
                await trio.sleep(RETRY_S)
            self._waiting.unpark_all()

    async def caught_up(self) -> None:
        """Until a keeper has been told all."""
        while self._behind or (self._link is None and self._pause_s):
            await self._waiting.park()

    def _flush(self) -> bool:
        """Tell of what is behind; whether any of it went."""
        before = len(self._behind)
        later: set[str] = set()
        for name, descriptors in self._refill():
            if name in self._behind:
                if not descriptors:
                    later.add(name)
                    continue
                if not self._send("set", name, descriptors):
                    return len(self._behind) < before
                del self._behind[name]
        for name in self._behind.keys() - later:  # these are no longer to be kept
            if not self._send("drop", name):
                break
            del self._behind[name]
        return len(self._behind) < before

    def _gone(self) -> None:
        log.warning("the holder of sessions (pid %d) has ended; another is started", self._pid)
        self._close()
        self._pause_s = max(self._pause_s, SHORTEST_PAUSE_S)

    def _close(self) -> None:
        assert self._link is not None
        self._link.close()
        self._link = None
        _reap(self._pid)
        self._pid = 0

    def look(self) -> None:
        if self._link is None or self._place in (None, _identity(self._path)):
            return
        log.warning("%s was removed: another holder of sessions is started", self._path)
        self._place = None
        with suppress(OSError):  # its end of file has `run` start the other
            self._link.send(b"end")

    def close(self) -> None:
        """Close the connection, as the end of this process does: what is kept stays."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def settle(self) -> None:
        if self._link is not None and self._behind:
            self._link.settimeout(ANSWER_TIMEOUT_S)
            self._flush()
            self._link.setblocking(False)
        if self._behind:
            log.error("%s; they end with this process", self.problem)

    def end(self) -> None:
        if self._link is None:
            return
        try:
            self._link.settimeout(ANSWER_TIMEOUT_S)
            self._link.send(b"end")
            while self._link.recv(holder.MESSAGE_BYTES):
                pass
        except TimeoutError:
            log.warning("the holder (pid %d) does not answer; it is killed", self._pid)
            os.kill(self._pid, signal.SIGKILL)  # the connection lasts, so it is there
        except OSError:
            log.debug("the holder has ended before")
        self._close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)


class SilentHolder(NoStore):
    """Store that keeps nothing, since there is a holder that does not answer.

    Until it answers, nobody knows what it holds. When it does, this process restarts itself and
    takes up what the holder has, beside its own sessions.

    Args:
        path: of its socket.
        problem: why nothing is kept, for people.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{problem}; the supervisor asks it again every few seconds. Until it answers, the "
            "sessions that it holds cannot be used, and new ones end with the supervisor. If the "
            "holder is stopped, continue it (kill -CONT)"
        )
        self._path = path

    async def run(self, refill: Refill) -> None:
        """Ask the holder again and again; return as soon as it answers, or has ended."""
        self._refill = refill
        while True:
            if await self._answers():
                break
            await trio.sleep(ASK_AGAIN_S)
        log.warning("the holder of sessions at %s answers again, or has ended", self._path)

    async def _answers(self) -> bool:
        with (
            trio.move_on_after(ANSWER_TIMEOUT_S),
            trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link,
        ):
            try:
                await link.connect(self._path)
                await link.send(b"count")
                await link.recv(holder.MESSAGE_BYTES)
            except (FileNotFoundError, ConnectionError):
                return True
            except OSError:  # its backlog is full
                return False
            return True
        return False


def start_holder(path: str, linger_s: float) -> tuple[socket.socket, int]:
    """Start one, connected to this process; what listens at the path is given up.

    Returns:
        The non-blocking connection, and the keeper's process id.

    Raises:
        OSError: there are no descriptors or processes left, or the path cannot be used.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(theirs)
        try:
            pid = _spawn(listener, theirs, linger_s)
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return ours, pid


def _spawn(listener: socket.socket, channel: socket.socket, linger_s: float) -> int:
    # All other descriptors are close-on-exec. Its session is its own: neither the terminal's
    # hang-up nor an interrupt of our group reaches it. Its environment is ours, since the dynamic
    # linker may need something there.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", holder.__file__, f"{linger_s:g}"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, listener.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, channel.fileno(), 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD],
    )


def take(path: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Found | None:
    """The keeper that listens at a path, and all that it holds; None where there is none.

    Raises:
        KeeperError: one is there and does not answer.
    """
    found = Found(link=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
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
        found.close()
        why = "does not answer" if isinstance(error, TimeoutError) else f"fails ({error})"
        raise HolderError(f"the holder of sessions at {path} {why}") from error
    found.link.setblocking(False)
    return found


def _receive(found: Found) -> bool:
    """Take one message; False for the last one.

    Raises:
        ConnectionError: it has ended.
    """
    message, fds, cut = holder.receive(found.link)
    word, _, name = message.decode(errors="replace").partition(" ")
    if cut:
        log.error("there is no room for the descriptors of %s: raise the limit on open files", name)
    if not message:
        raise ConnectionResetError
    if word == "pid":
        found.pid = int(name)
    elif word == "has":
        found.kept.setdefault(name, []).extend(fds)
    return word != "all"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _reap(pid: int) -> None:
    """Collect a keeper that has just ended, if it is a child of ours, and not an earlier one's."""
    with suppress(OSError):  # it is another's child, and gone
        pidfd = os.pidfd_open(pid)
        try:
            select.select([pidfd], [], [], END_TIMEOUT_S)
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
