"""Ledger of requests for programs, on disk before anything starts.

One task writes what has come by then in one go, in a thread, with one fdatasync(2) for all of it. A
start that cannot be written, or that nobody can say of that it is on disk, is an error, and nothing
is started. Ends are kept until they can be written. Where nothing is asked for nothing wakes, and
there is no file.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from nsm.wire.errors import AuditFailedError
from nsmd.audit.audit_file import AuditFile
from nsmd.bridge import ledger_entries, recovery
from nsmd.bridge.rate_limit import PACE_S, REFUSED_S, RateLimit, RateLimits
from nsmd.bridge.recovery import Fate, Writer
from nsmd.bridge.values import Asked, Ended

log = logging.getLogger(__name__)

WRITE_S = 10.0
"""For a line. A disk that takes longer hangs, and whoever asks is told so."""

END_S = 2.0
"""How long an answer waits for its call's end to be written; it is written later where that fails,
and by the next supervisor where this one is killed."""

LAST_LINES_S = 2.0
"""For what is left when the supervisor ends."""

RETRY_S, MAX_RETRY_S = 5.0, 320.0
"""Until ends are tried again that could not be written, and how long that gets."""

MAX_WAITING = 1000
"""Lines; calls that come then are refused."""

FATE_BYTES = 16 * 1024
FATE_S = 10.0
"""What looking up a call counts as, and how long that may take: all files may be looked through."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A line on its way.

    Attributes:
        begun: the call whose start it is; None for other lines.
        is_end: it is kept until it is written.
        problem: why it could not be written; empty where it was.
        disowned: nobody waits for it any more: nothing was started.
    """

    line: bytes
    begun: Asked | None = None
    is_end: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    problem: str = ""
    disowned: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Outcome of writing lines.

    Attributes:
        count: those that were added.
        synced: these are on disk.
        problem: why not all are; empty where they are.
    """

    count: int
    synced: bool
    problem: str = ""


class Ledger:
    """Ledger of requests for programs; from `open_ledger`.

    Args:
        path: of the file.
        max_mb: a larger one is set aside, and kept.
        wall: Unix time now.

    Attributes:
        problem: why lines cannot be written now, for people; empty where they can.
    """

    def __init__(self, path: str, *, max_mb: int, wall: Callable[[], float] = time.time) -> None:
        self.problem = ""
        self._wall = wall
        self._file = _audit_file(path, max_mb)
        self._writer = Writer(path)
        self._queue: deque[_Entry] = deque()
        self._late: list[_Entry] = []  # ends that could not be written
        self._begun: set[tuple[str, str]] = set()  # scope and id
        self._paces = RateLimits()
        self._wanted = trio.Event()
        self._closed = False
        self._flushing = trio.Lock()
        self._patience = trio.CancelScope()
        self._give_up_s = math.inf
        self._looking = trio.Lock()  # one after the other
        self._threads = trio.CapacityLimiter(math.inf)  # so that nobody else's hold ours up
        self._lock = threading.Lock()  # a thread may still hang in a write that was given up

    def __repr__(self) -> str:
        return f"<Ledger {self._file.path} {self.problem or 'well'}>"

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._file.path

    def configure(self, *, max_mb: int) -> None:
        """Go on with another size."""
        self._file.max_bytes = max_mb << 20

    async def begin(self, asked: Asked) -> None:
        """Write down that a program is about to be started; it is on disk then.

        Each call that was begun has to be ended, by `end` or by `withdraw`.

        Raises:
            AuditFailedError: it is not; nothing may be started.

        Cancellation: the call counts as one that was not started.
        """
        line = ledger_entries.start(asked, at_s=self._wall(), supervisor=self._writer.name)
        starts = self._paces.of(asked.caller.scope).starts
        await self._paced(asked, starts, len(line), PACE_S, "nothing was started")
        entry = _Entry(line, begun=asked)
        self._add(entry, "nothing was started")
        try:
            with trio.move_on_after(WRITE_S):
                await entry.done.wait()
        except BaseException:
            self._disown(entry, "the call was taken back before")
            raise
        if not entry.done.is_set():
            entry.problem = _HANGS
            self._disown(entry, f"its start could not be written in time: {_HANGS}")
        if entry.problem:
            raise _failed(entry.problem, "nothing was started")
        self._begun.add((asked.caller.scope, asked.id))

    async def refuse(self, asked: Asked, reason: str) -> None:
        """Write down that a call was refused, and why.

        Raises:
            AuditFailedError: it could not be written; it has that reason as well.
        """
        refusals = self._paces.of(asked.caller.scope).refusals
        line, most = (
            ledger_entries.refused(asked, reason, at_s=self._wall()),
            ledger_entries.REFUSED_CHARS,
        )
        if refusals.wait_s(len(line)):  # it keeps on
            most = ledger_entries.AGAIN_REFUSED_CHARS
            line = ledger_entries.refused(asked, reason, at_s=self._wall(), most=most)
        because = f"the call was refused anyway: {reason}"
        await self._paced(asked, refusals, len(line), REFUSED_S, because)
        # Lines are in the order of their times.
        entry = _Entry(ledger_entries.refused(asked, reason, at_s=self._wall(), most=most))
        self._add(entry, because)
        with trio.move_on_after(WRITE_S):
            await entry.done.wait()
        if problem := entry.problem if entry.done.is_set() else _HANGS:
            raise _failed(problem, because)

    def count_refused(self, asked: Asked) -> None:
        """A call was refused with so many others under way that a line of its own would be one
        more to wait for; it is told with the next line of that scope."""
        self._paces.of(asked.caller.scope).unwritten += 1

    def hurry(self) -> None:
        """Have the last lines wait for the disk only."""
        self._paces.release()

    async def end(self, asked: Asked, ended: Ended) -> None:
        """Write down what came of a program that was begun, soon; never raises for what the disk
        does.

        Cancellation: it is written nevertheless.
        """
        at_s, supervisor = self._wall(), self._writer.name
        await self._end(asked, ledger_entries.end(asked, ended, at_s=at_s, supervisor=supervisor))

    async def withdraw(self, asked: Asked, reason: str) -> None:
        """The same of a call that was begun, and whose program could not be started after all."""
        at_s, supervisor = self._wall(), self._writer.name
        line = ledger_entries.not_started(asked, reason, at_s=at_s, supervisor=supervisor)
        await self._end(asked, line)

    async def fail(self, asked: Asked, reason: str) -> None:
        """The same of a call in which nsm itself failed once it was begun."""
        at_s, supervisor = self._wall(), self._writer.name
        await self._end(
            asked, ledger_entries.failed(asked, reason, at_s=at_s, supervisor=supervisor)
        )

    async def fate(self, call_id: str, scope: str) -> Fate:
        """Find the fate of a call, of this supervisor or of an earlier one.

        Args:
            call_id: as the client has chosen it.
            scope: of the client; another one's calls are nothing to it.

        Raises:
            AuditFailedError: the audit can't be read, so that nobody knows.
        """
        if (scope, call_id) in self._begun:
            return "under-way"
        problem = "it takes too long"
        with trio.move_on_after(FATE_S):
            # Before it has its turn: whoever has to wait for its own pace is in nobody's way.
            await self._paces.of(scope).starts.taken(FATE_BYTES)
            async with self._looking:
                try:
                    return await trio.to_thread.run_sync(
                        recovery.fate,
                        self._file.path,
                        call_id,
                        scope,
                        abandon_on_cancel=True,
                        limiter=self._threads,
                    )
                except OSError as error:
                    problem = error.strerror or str(error)
        raise AuditFailedError(
            "Whether this call was started before cannot be looked up in the audit of the bridge "
            f"({problem}). Nothing was started now.",
            hint="Look at what the program has done, and call it anew.",
        )

    # Lines.

    def _add(self, entry: _Entry, because: str) -> None:
        if self._closed:
            raise _failed("the supervisor ends", because)
        if len(self._queue) >= MAX_WAITING:
            raise _failed("too many calls wait for it", because)
        self._queue.append(entry)
        self._wanted.set()

    def _disown(self, entry: _Entry, why: str) -> None:
        """Nobody waits for a start any more: where it is on disk, it needs its end."""
        entry.disowned = why
        if entry in self._queue:
            self._queue.remove(entry)
        elif entry.done.is_set() and not entry.problem:
            self._withdrawn(entry)

    def _withdrawn(self, entry: _Entry) -> None:
        assert entry.begun is not None
        line = ledger_entries.not_started(
            entry.begun, entry.disowned, at_s=self._wall(), supervisor=self._writer.name
        )
        self._queue.append(_Entry(line, is_end=True))
        self._wanted.set()

    async def _end(self, asked: Asked, line: bytes) -> None:
        entry = _Entry(line, is_end=True)
        self._queue.append(entry)
        self._wanted.set()
        with trio.move_on_after(END_S, shield=True):
            await entry.done.wait()
        self._begun.discard((asked.caller.scope, asked.id))

    async def run(self) -> None:
        """Write until cancelled."""
        retry_s = RETRY_S
        while True:
            with trio.move_on_after(retry_s if self._late else math.inf):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self._flush()
            retry_s = min(retry_s * 2, MAX_RETRY_S) if self._late else RETRY_S

    async def settle(self) -> None:
        """Write the ends that killed supervisors have left."""
        file = _audit_file(self._file.path, self._file.max_bytes >> 20)
        try:
            settled = await trio.to_thread.run_sync(
                _settle, file, self._wall, abandon_on_cancel=True, limiter=self._threads
            )
        except RuntimeError as error:  # the next supervisor tries again
            log.warning("whether calls of the bridge have no ends cannot be looked up: %s", error)
            return
        if settled:
            log.warning("calls of the bridge whose supervisor was killed under way: %d", settled)

    async def close(self) -> None:
        """Write the last lines, if that does not take long."""
        self._closed = True
        self._give_up_s = trio.current_time() + LAST_LINES_S
        self._patience.deadline = self._give_up_s
        with trio.move_on_after(LAST_LINES_S, shield=True):
            await self._flush()
        settled = not (self._queue or self._late or self._begun)
        if self._lock.acquire(blocking=False):  # else its thread has the file, and ends with us
            self._writer.close(settled=settled)
            self._file.close()
            self._lock.release()

    async def _flush(self) -> None:
        """Write what there is now."""
        async with self._flushing:
            batch = [*self._late, *self._queue]
            self._queue.clear()
            if not batch:
                return
            self._late = [entry for entry in batch if entry.is_end]  # until they are written
            # Not given up half-way, lest lines are written twice, but when the supervisor ends: a
            # disk that hangs must not keep it.
            with trio.CancelScope(shield=True, deadline=self._give_up_s) as self._patience:
                try:
                    written = await trio.to_thread.run_sync(
                        self._write, batch, abandon_on_cancel=True, limiter=self._threads
                    )
                except RuntimeError as error:  # the machine has no room for a thread
                    written = _Written(count=0, synced=False, problem=str(error))
                self._tell(batch, written)

    def _tell(self, batch: Sequence[_Entry], written: _Written) -> None:
        """Wake those who wait for these lines."""
        self._late = [entry for entry in batch[written.count :] if entry.is_end]
        if written.problem and not self.problem:  # once, and not for each line
            log.warning("the audit of the bridge cannot be written: %s", written.problem)
        elif self.problem and not written.problem:
            log.info("the audit of the bridge is written again")
        self.problem = written.problem
        for place, entry in enumerate(batch):
            is_added = place < written.count
            if not is_added or (entry.begun is not None and not written.synced):
                entry.problem = entry.problem or written.problem
            if entry.begun is not None and is_added and (entry.disowned or entry.problem):
                entry.disowned = entry.disowned or f"its start is perhaps lost: {entry.problem}"
                self._withdrawn(entry)
            entry.done.set()

    def _write(self, batch: Sequence[_Entry]) -> _Written:
        """Add lines, and have them on disk. Blocks."""
        count = 0
        with self._lock:
            try:
                if any(entry.begun is not None for entry in batch):
                    self._writer.begin()
                for entry in batch:
                    self._file.append(entry.line)
                    count += 1
                self._file.sync()
            except OSError as error:
                self._file.close()
                return _Written(count=count, synced=False, problem=error.strerror or str(error))
            except Exception as error:  # a fault of ours: nothing is started, and all else goes on
                log.exception("the audit of the bridge cannot be written")
                self._file.close()
                return _Written(count=count, synced=False, problem=f"nsm failed: {error!r}")
        return _Written(count=count, synced=True)

    async def _paced(
        self, asked: Asked, pace: RateLimit, size: int, patience_s: float, because: str
    ) -> None:
        """
        Raises:
            AuditFailedError: the client is too fast; the call is counted.
        """
        scope = self._paces.of(asked.caller.scope)
        if pace.wait_s(size) > patience_s:
            scope.unwritten += 1
            raise _failed("this client's calls come faster than they are written down", because)
        await pace.taken(size)
        if scope.unwritten and not self._closed:
            line = ledger_entries.unwritten(asked, scope.unwritten, at_s=self._wall())
            scope.unwritten = 0
            self._queue.append(_Entry(line, is_end=True))
            self._wanted.set()


_HANGS = "the disk does not answer"


def _failed(problem: str, because: str) -> AuditFailedError:
    return AuditFailedError(
        f"This call could not be written down in the audit of the bridge ({problem}); {because}.",
        hint="`nsm doctor` says more, on the host. Call again when it can be written.",
    )


def _audit_file(path: str, max_mb: int) -> AuditFile:
    # What ends a cut line makes no call of it: the start that failed did not happen.
    return AuditFile(path, max_bytes=max_mb << 20, keep=None, look_s=0.0, mend=b"#\n")


def _settle(file: AuditFile, wall: Callable[[], float]) -> int:
    try:
        return recovery.settle(file, wall)
    except OSError as error:
        log.warning("whether calls of the bridge have no ends cannot be looked up: %s", error)
        return 0
    except Exception:  # a fault of ours, or a file that nobody has thought of
        log.exception("whether calls of the bridge have no ends cannot be looked up")
        return 0
    finally:
        file.close()


@asynccontextmanager
async def open_ledger(path: str, *, max_mb: int) -> AsyncGenerator[Ledger]:
    """A ledger that is written while the block lasts, and whose last lines are when it ends. What
    killed supervisors have left is settled meanwhile.

    Args:
        path: of the file; its directory may come later.
        max_mb: a larger one is set aside, and kept.
    """
    ledger = Ledger(path, max_mb=max_mb)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ledger.run)
        nursery.start_soon(ledger.settle)
        try:
            yield ledger
        finally:
            nursery.cancel_scope.cancel()
            await ledger.close()
