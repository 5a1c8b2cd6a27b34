"""Ledger of calls of bridge programs, on disk before anything starts.

One task writes the waiting lines together, in a thread, with one fdatasync(2) for all of them. If a
start cannot be written, or if it is unknown whether it is on disk, that is an error, and nothing is
started. Ends are kept until they can be written. Without calls nothing wakes up, and there is no
file.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from nsm.dataclass import dataclass, field
from nsm.wire.errors import AuditFailedError
from nsmd.audit.audit_file import AuditFile
from nsmd.bridge import ledger_entries, recovery
from nsmd.bridge.rate_limit import PACE_S, REFUSED_S, RateLimit, RateLimits
from nsmd.bridge.recovery import Fate, Writer
from nsmd.bridge.values import ProgramEnd, RecordedCall

log = logging.getLogger(__name__)

WRITE_S = 10.0
"""Time for a line. A disk that takes longer hangs, and the client gets that error."""

END_S = 2.0
"""How long an answer waits until the end of its call is written. If that fails, it is written
later, or by the next supervisor if this one is killed.
"""

LAST_LINES_S = 2.0
"""Time for the remaining lines when the supervisor ends."""

RETRY_S, MAX_RETRY_S = 5.0, 320.0
"""First and longest time until ends that could not be written are tried again."""

MAX_WAITING = 1000
"""Largest number of waiting lines; further calls are refused."""

FATE_BYTES = 16 * 1024
FATE_S = 10.0
"""Cost and time limit of looking up a call, which may search all files."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A line that waits to be written.

    Attributes:
        begun: call, if the line is its start; else None.
        is_end: it is the end of a call, and kept until written.
        problem: why it could not be written; else empty.
        disowned: nobody waits for it any more, since nothing was started.
    """

    line: bytes
    begun: RecordedCall | None = None
    is_end: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    problem: str = ""
    disowned: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Outcome of writing lines.

    Attributes:
        count: number of lines that were added.
        synced: they are on disk.
        problem: why not all are; else empty.
    """

    count: int
    synced: bool
    problem: str = ""


class Ledger:
    """Ledger of calls; made by `open_ledger`.

    Args:
        path: path of the file.
        max_mb: a larger file is set aside, and kept.
        wall: Unix time now.

    Attributes:
        problem: why lines cannot be written now, for people; else empty.
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
        # so that threads of other parts do not delay ours
        self._threads = trio.CapacityLimiter(math.inf)
        self._lock = threading.Lock()  # a thread may still hang in a write that timed out

    def __repr__(self) -> str:
        return f"<Ledger {self._file.path} {self.problem or 'well'}>"

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._file.path

    def configure(self, *, max_mb: int) -> None:
        """Change the size."""
        self._file.max_bytes = max_mb << 20

    async def begin(self, asked: RecordedCall) -> None:
        """Record that a program is about to start. On return, the line is on disk.

        Each such call must be ended by `end` or `withdraw`.

        Raises:
            AuditFailedError: it is not on disk; nothing may be started.

        Cancellation: the call counts as not started.
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

    async def refuse(self, asked: RecordedCall, reason: str) -> None:
        """Record that a call was refused, and why.

        Raises:
            AuditFailedError: it could not be written; the error has that reason as well.
        """
        refusals = self._paces.of(asked.caller.scope).refusals
        most = ledger_entries.REFUSED_CHARS
        line = ledger_entries.refused(asked, reason, at_s=self._wall())
        if refusals.wait_s(len(line)):  # it keeps sending refused calls
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

    def count_refused(self, asked: RecordedCall) -> None:
        """Count a refused call without a line of its own, because too many others are under way;
        the next line of that scope has the number.
        """
        self._paces.of(asked.caller.scope).unwritten += 1

    def hurry(self) -> None:
        """Let the last lines wait only for the disk."""
        self._paces.release()

    async def end(self, asked: RecordedCall, ended: ProgramEnd) -> None:
        """Record the outcome of a started program, soon; disk errors raise nothing.

        Cancellation: it is still written.
        """
        await self._end(asked, ledger_entries.ended(ended))

    async def withdraw(self, asked: RecordedCall, reason: str) -> None:
        """Record that a program could not be started after `begin`."""
        await self._end(asked, ledger_entries.not_started(reason))

    async def fail(self, asked: RecordedCall, reason: str) -> None:
        """Record that nsm itself failed after `begin`."""
        await self._end(asked, ledger_entries.failed(reason))

    async def fate(self, call_id: str, scope: str) -> Fate:
        """Find the fate of a call, of this supervisor or of an earlier one.

        Args:
            call_id: id chosen by the client.
            scope: scope of the client, which learns nothing of others' calls.

        Raises:
            AuditFailedError: the audit can't be read, so that nobody knows.
        """
        if (scope, call_id) in self._begun:
            return "under-way"
        problem = "it takes too long"
        with trio.move_on_after(FATE_S):
            # Before it gets its turn: a client that waits for its own rate limit delays nobody
            # else.
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
            hint="Check what the program has done, then call it again.",
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
        """Nobody waits for a start any more: if it is on disk, it needs an end."""
        entry.disowned = why
        if entry in self._queue:
            self._queue.remove(entry)
        elif entry.done.is_set() and not entry.problem:
            self._withdrawn(entry)

    def _withdrawn(self, entry: _Entry) -> None:
        assert entry.begun is not None
        self._queue_end(entry.begun, ledger_entries.not_started(entry.disowned))

    def _queue_end(self, asked: RecordedCall, outcome: ledger_entries.Facts) -> _Entry:
        at_s, supervisor = self._wall(), self._writer.name
        line = ledger_entries.end(asked, outcome, at_s=at_s, supervisor=supervisor)
        entry = _Entry(line, is_end=True)
        self._queue.append(entry)
        self._wanted.set()
        return entry

    async def _end(self, asked: RecordedCall, outcome: ledger_entries.Facts) -> None:
        entry = self._queue_end(asked, outcome)
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
        """Write the ends that killed supervisors did not write."""
        file = _audit_file(self._file.path, self._file.max_bytes >> 20)
        try:
            settled = await trio.to_thread.run_sync(
                _settle, file, self._wall, abandon_on_cancel=True, limiter=self._threads
            )
        except RuntimeError as error:  # the next supervisor tries again
            log.warning("the bridge's audit cannot be searched for calls without an end: %s", error)
            return
        if settled:
            log.warning(
                "calls of the bridge that a killed supervisor left without an end: %d", settled
            )

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
        """Write all waiting lines."""
        async with self._flushing:
            batch = [*self._late, *self._queue]
            self._queue.clear()
            if not batch:
                return
            self._late = [entry for entry in batch if entry.is_end]  # until they are written
            # Not cancelled half-way, so that no lines are written twice, except when the supervisor
            # ends: a hanging disk must not hold it up.
            with trio.CancelScope(shield=True, deadline=self._give_up_s) as self._patience:
                try:
                    written = await trio.to_thread.run_sync(
                        self._write, batch, abandon_on_cancel=True, limiter=self._threads
                    )
                except RuntimeError as error:  # the machine cannot start a thread
                    written = _Written(count=0, synced=False, problem=str(error))
                self._tell(batch, written)

    def _tell(self, batch: Sequence[_Entry], written: _Written) -> None:
        """Wake the callers that wait for these lines."""
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
        """Append lines, and sync them to disk. Blocks."""
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
            # a bug of ours: nothing is started, and everything else continues
            except Exception as error:
                log.exception("the audit of the bridge cannot be written")
                self._file.close()
                return _Written(count=count, synced=False, problem=f"nsm failed: {error!r}")
        return _Written(count=count, synced=True)

    async def _paced(
        self, asked: RecordedCall, rate_limit: RateLimit, size: int, patience_s: float, because: str
    ) -> None:
        """Wait for the client's rate limit.

        Raises:
            AuditFailedError: the client is too fast; the call is counted.
        """
        scope = self._paces.of(asked.caller.scope)
        if rate_limit.wait_s(size) > patience_s:
            scope.unwritten += 1
            raise _failed("this client's calls come faster than they are written down", because)
        await rate_limit.taken(size)
        if scope.unwritten and not self._closed:
            line = ledger_entries.unwritten(asked, scope.unwritten, at_s=self._wall())
            scope.unwritten = 0
            self._queue.append(_Entry(line, is_end=True))
            self._wanted.set()


_HANGS = "the disk does not answer"


def _failed(problem: str, because: str) -> AuditFailedError:
    return AuditFailedError(
        f"This call could not be recorded in the audit of the bridge ({problem}); {because}.",
        hint="`nsm doctor` says more, on the host. Call again when it can be written.",
    )


def _audit_file(path: str, max_mb: int) -> AuditFile:
    # A torn line does not count as a call: its start failed, so nothing happened.
    return AuditFile(path, max_bytes=max_mb << 20, keep=None, look_s=0.0, repair=b"#\n")


def _settle(file: AuditFile, wall: Callable[[], float]) -> int:
    try:
        return recovery.settle(file, wall)
    except OSError as error:
        log.warning("the bridge's audit cannot be searched for calls without an end: %s", error)
        return 0
    except Exception:  # a bug of ours, or an unexpected file
        log.exception("the bridge's audit cannot be searched for calls without an end")
        return 0
    finally:
        file.close()


@asynccontextmanager
async def open_ledger(path: str, *, max_mb: int) -> AsyncGenerator[Ledger]:
    """Open a ledger for the block; its last lines are written at the end. Meanwhile, calls that
    killed supervisors left are settled.

    Args:
        path: path of the file; its directory may be made later.
        max_mb: a larger file is set aside, and kept.
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
