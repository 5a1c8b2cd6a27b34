"""Descriptors kept by a small process beside the supervisor, if no service manager keeps them.

That process is `nsmd.fdstore.holder`; it is started when there is something to keep. If its socket
is full or it is gone, the names to send are remembered as pending. When it listens again, it gets
all that these names have by then. So nothing is copied in order to wait, and nothing piles up.
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

import trio

from nsmd.fdstore import holder
from nsmd.fdstore.running_holders import ANSWER_TIMEOUT_S, RunningHolder
from nsmd.fdstore.store import Refill, StoreKind, copies_of
from nsmd.host.listeners import identity_of

log = logging.getLogger(__name__)

LINGER_S = 600.0
"""How long sessions live on without a supervisor."""

TAKE_TIMEOUT_S = 10.0
"""Time for a holder whose socket is full to take something: milliseconds, unless it is stopped.
Until then, what it has not taken would be lost with this process.
"""

END_TIMEOUT_S = 1.0
"""Time from the end of its connection to the holder's own end: less than 1 ms."""

RETRY_S = 1.0
"""Time before descriptors are sent again for which the kernel had no room."""

SHORTEST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 60.0
"""Pauses before another holder is started in place of one that ended within `STEADY_S`, or that
could not be started; doubled each time. In place of any other, one is started at once.
"""

STEADY_S = 1.0
"""Age from which on the end of a holder is nothing that would happen again at once."""

SEND_BUFFER_BYTES = 208 * 1024
"""Size of the queue to a new holder, which reads nothing before its Python has started. It has room
for some 500 names, twice the usual one, and that is as much as Linux permits by default. What is in
the queue outlives this process.
"""


class HolderStore:
    """Descriptor store in a small process beside the supervisor.

    Args:
        path: path of the holder's socket, in a directory of our own; used by one supervisor at a
            time.
    """

    kind: StoreKind = "keeper"

    def __init__(
        self, path: str, *, linger_s: float = LINGER_S, found: RunningHolder | None = None
    ) -> None:
        self._path = path
        self._linger_s = linger_s
        there = found if found is not None and not found.ended else None
        self._link = there.link if there else None
        self._pid = there.pid if there else 0
        self._place = identity_of(path) if there else None
        self._refill: Refill = tuple
        self._behind: dict[str, None] = {}
        self._lost: set[str] = set()
        self._trouble = ""
        # A new holder must get everything that the ended one had given back.
        self._missing = found is not None and found.ended
        self._pause_s = 0.0
        self._changed = trio.Event()
        self._waiting = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<HolderStore pid={self._pid} behind={len(self._behind)} lost={len(self._lost)}>"

    @property
    def pid(self) -> int:
        """Process id of the holder; 0 if there is none."""
        return self._pid

    @property
    def problem(self) -> str:
        if self._trouble:
            return self._trouble
        if self._link is None and self._missing:
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
        if self._link is None and not self._missing:
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
        """Send; returns whether the message is on its way."""
        if self._link is None:
            return False
        try:
            socket.send_fds(self._link, [f"{word} {name}".encode()], descriptors)
        except OSError:
            # The socket is full, or the holder gone (its end-of-file tells that), or too much is in
            # flight (unix(7), ETOOMANYREFS). Names that are dropped meanwhile will not be sent
            # again.
            return False
        return True

    def _start(self) -> bool:
        """Start a holder; returns whether that worked."""
        try:
            self._link, self._pid = start_holder(self._path, self._linger_s)
        except OSError as error:
            self._trouble = f"the holder of sessions cannot be started: {error}"
            log.warning("%s; sessions would end with this process", self._trouble)
            self._missing = True
            self._pause_s = max(self._pause_s, SHORTEST_PAUSE_S)
            self._changed.set()
            return False
        self._place = identity_of(self._path)
        self._missing = False
        self._trouble = ""
        self._changed.set()  # from now on its end is noticed
        return True

    async def run(self, refill: Refill) -> None:
        self._refill = refill
        while True:
            while self._link is None and not self._missing:
                await self._woken()
            if self._link is None:
                await trio.sleep(self._pause_s)
                self._start_again()
                continue
            started_s = trio.current_time()
            await self._while_there(self._link)
            if trio.current_time() - started_s > STEADY_S:
                self._pause_s = 0.0
            self._gone()

    def _start_again(self) -> None:
        """Start another holder and send it everything at once: until it has that, the end of this
        process would be the end of all sessions.
        """
        self._pause_s = min(max(2 * self._pause_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
        self._behind.clear()
        self._lost.clear()
        for name, descriptors in self._refill():
            if self._link is None and not self._start():
                return
            if not descriptors or not self._send("set", name, descriptors):
                self._behind[name] = None
        if self._link is None:  # there is nothing to keep any more
            self._missing, self._pause_s = False, 0.0
        self._waiting.unpark_all()

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
            with trio.move_on_after(TAKE_TIMEOUT_S) as patience:
                await trio.lowlevel.wait_writable(link)
            if patience.cancelled_caught:
                log.warning("the holder (pid %d) takes nothing; it is killed", self._pid)
                _kill(self._pid, link)  # another one gets everything
                await trio.sleep_forever()
            if not self._flush():
                await trio.sleep(RETRY_S)
            self._waiting.unpark_all()

    async def caught_up(self) -> None:
        """Wait until a holder has got everything."""
        while self._behind or (self._link is None and self._missing):
            await self._waiting.park()

    def _flush(self) -> bool:
        """Send what is pending; returns whether any of it was sent."""
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
        for name in self._behind.keys() - later:  # these need not be kept any more
            if not self._send("drop", name):
                break
            del self._behind[name]
        return len(self._behind) < before

    def _gone(self) -> None:
        """Replace the holder, which has ended."""
        pid, self._pid = self._pid, 0
        self.close()
        self._missing = True
        if not self._pause_s:
            self._start_again()
        log.warning("the holder of sessions (pid %d) has ended; another is started", pid)
        _reap(pid)

    def ensure_reachable(self) -> None:
        if self._link is None or self._place in (None, identity_of(self._path)):
            return
        log.warning("%s was removed: another holder of sessions is started", self._path)
        self._place = None
        with suppress(OSError):  # at its end-of-file `run` starts another one
            self._link.send(b"end")

    def close(self) -> None:
        """Close the connection, as the end of this process would: kept descriptors stay."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def settle(self, refill: Refill | None = None) -> None:
        self._refill = refill or self._refill
        if self._missing:
            self._start_again()
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
            _kill(self._pid, self._link)
        except OSError:
            log.debug("the holder has ended before")
        self.close()
        _reap(self._pid)
        self._pid = 0
        with suppress(FileNotFoundError):
            os.unlink(self._path)


def start_holder(path: str, linger_s: float) -> tuple[socket.socket, int]:
    """Start a holder with a connection to this process. It replaces one that listens at the path.

    Returns:
        The non-blocking connection, and the holder's process id.

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
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ours, pid


def _spawn(listener: socket.socket, channel: socket.socket, linger_s: float) -> int:
    # All other descriptors are close-on-exec. It has a session of its own, so that neither the
    # terminal's hang-up nor an interrupt of our group reaches it. It has our environment, since the
    # dynamic linker may need it.
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


def _kill(pid: int, link: socket.socket) -> None:
    """Kill a holder while there is a connection to it: the process has that number then."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return
    try:
        its_end = select.poll()
        its_end.register(link, 0)
        if not its_end.poll(0):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def _reap(pid: int) -> None:
    """Reap a holder that has just ended, if it is our child, and not an earlier supervisor's."""
    with suppress(OSError):  # it is another's child, and gone
        pidfd = os.pidfd_open(pid)
        try:
            select.select([pidfd], [], [], END_TIMEOUT_S)
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
