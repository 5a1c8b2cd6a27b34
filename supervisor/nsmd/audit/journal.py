"""Lines on their way to the audit's file: a bounded queue, written by a thread now and then.

Nothing of this is on the path of a call but putting a record into a list. A quarter of a second
after the first one all are hashed and written, in a thread, so that neither many lines nor a slow
disk hold up the event loop; while nothing happens nothing wakes. A disk that takes no more costs
lines, which are counted, and nothing else: the first line that can be written again says how many.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import trio

from nsmd.audit.audit_file import AuditFile
from nsmd.model.settings import AuditSettings

log = logging.getLogger(__name__)

GATHER_S = 0.25
"""How long a line waits for others at most, and what a killed supervisor may lose."""

MAX_WAITING = 20_000
"""Lines in the queue; more are dropped and counted. At 3,000 executions a second, 7 s of a disk
that hangs."""

MAX_WAITING_CHARS = 64 * 1024 * 1024
"""Of code that waits for its hash."""

LAST_LINES_S = 2.0
"""For what is left when the supervisor ends."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


@dataclass(slots=True)
class Record:
    """One line to be.

    Attributes:
        at_s: Unix time.
        facts: plain values, `event` among them.
        code: what was run; None where there is none or it is not known any more.
    """

    at_s: float
    facts: dict[str, Any]
    code: str | None = None


class Journal:
    """Bounded queue of audit records that a thread writes in batches.

    Args:
        path: of the file.
        settings: `[audit]`.
        wall: Unix time now.

    Attributes:
        written: lines.
        dropped: lines that were lost, to a full disk or a full queue.
        problem: why lines cannot be written now, for people; empty where they can.
        gather: gives what else is to be written, at each writing.
    """

    def __init__(
        self, path: str, settings: AuditSettings, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.enabled = settings.enabled
        self.written = self.dropped = 0
        self.problem = ""
        self.gather: Callable[[], Iterable[Record]] = tuple
        self.wall = wall
        self._with_code = settings.code
        self._file = AuditFile(path, max_bytes=settings.max_mb << 20, keep=settings.keep)
        self._waiting: list[Record] = []
        self._waiting_chars = 0
        self._wanted = trio.Event()
        self._threads = trio.CapacityLimiter(math.inf)  # so that nobody else's hold ours up
        self._lock = threading.Lock()  # a thread may still hang in a write that was given up
        self._counting = threading.Lock()
        self._lost = 0

    def __repr__(self) -> str:
        return f"<Journal {self._file.path} {self.problem or 'well'}>"

    def configure(self, settings: AuditSettings) -> None:
        """Go on with other settings."""
        self.enabled = settings.enabled
        self._with_code = settings.code
        self._file.max_bytes = settings.max_mb << 20
        self._file.keep = settings.keep

    def facts(self) -> dict[str, Any]:
        """For `nsm status`."""
        return {
            "enabled": self.enabled,
            "path": self._file.path,
            "written": self.written,
            "dropped": self.dropped,
            "problem": self.problem,
        }

    def put(self, record: Record) -> None:
        """Add a record, or count that it is lost. Quick."""
        chars = len(record.code or "")
        full = len(self._waiting) >= MAX_WAITING or self._waiting_chars + chars > MAX_WAITING_CHARS
        if full:
            self._lose(1, "the disk is too slow for them")
            return
        self._waiting.append(record)
        self._waiting_chars += chars
        self._wanted.set()

    def wake(self) -> None:
        """There is something for `gather`."""
        self._wanted.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wanted.wait()
            await trio.sleep(GATHER_S)
            self._wanted = trio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write what there is now."""
        await trio.lowlevel.checkpoint_if_cancelled()  # later ones find them in the thread's hands
        if records := self.take():
            # Given up when the supervisor ends: a disk that hangs must not keep it.
            await trio.to_thread.run_sync(
                self.write, records, abandon_on_cancel=True, limiter=self._threads
            )

    def take(self) -> list[Record]:
        """Take the records to write; they belong to the caller from now on."""
        records = [*self.gather(), *self._waiting]
        self._waiting, self._waiting_chars = [], 0
        return records

    async def close(self) -> None:
        """Write the last lines, if that does not take long."""
        with trio.move_on_after(LAST_LINES_S, shield=True):
            await self.flush()
        if self._lock.acquire(blocking=False):  # else its thread has the file, and ends with us
            self._file.close()
            self._lock.release()

    def write(self, records: list[Record]) -> None:
        """Write lines, or count them as lost. Blocks."""
        with self._lock:
            for place, record in enumerate(records):
                try:
                    if self._lost:
                        self._append_gap()
                    self._append(record)
                except OSError as error:
                    self._file.close()
                    self._lose(
                        len(records) - place, f"{self._file.path}: {error.strerror or error}"
                    )
                    return
                if self.problem:
                    self.problem = ""
                    log.info("the audit is written again")

    def _append(self, record: Record) -> None:
        # A line a write: it ends whole, and the interpreter's lock is let go in between, for the
        # event loop to go on.
        self._file.append(self._line(record))
        self.written += 1

    def _append_gap(self) -> None:
        lost, why = self._lost, self.problem
        gap = {"event": "gap", "lost": lost, "why": why}
        self._file.append(self._line(Record(self.wall(), gap)))
        with self._counting:
            self._lost -= lost

    def _line(self, record: Record) -> bytes:
        facts: dict[str, Any] = {"at": rfc3339(record.at_s), **record.facts}
        if record.code is not None:
            code = record.code.encode("utf-8", "surrogatepass")
            facts["code_sha256"] = hashlib.sha256(code).hexdigest()
            facts["code_bytes"] = len(code)
            if self._with_code:
                facts["code"] = record.code
        return _ENCODER.encode(facts).encode() + b"\n"

    def _lose(self, lines: int, why: str) -> None:
        with self._counting:
            self.dropped += lines
            self._lost += lines
        if not self.problem:  # once, and not for each line
            log.warning("the audit has lost lines, and goes on without: %s", why)
        self.problem = why


def rfc3339(at_s: float) -> str:
    """A time as RFC 3339 has it, UTC with microseconds."""
    second, fraction = divmod(round(at_s * 1e6), 1_000_000)
    return f"{_second(second)}.{fraction:06}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@asynccontextmanager
async def open_journal(path: str, settings: AuditSettings) -> AsyncGenerator[Journal]:
    """A journal that is written while the block lasts, and whose last lines are when it ends."""
    journal = Journal(path, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        try:
            yield journal
        finally:
            nursery.cancel_scope.cancel()
            await journal.close()


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without those that say nothing."""
    return {key: value for key, value in facts.items() if value not in (None, "", [], ())}
