"""Queue of lines for the audit's file: bounded, and written by a thread now and then.

A call only puts a record into a list. A quarter of a second after the first record, a thread hashes
and writes all of them, so that neither many lines nor a slow disk delay the event loop; without
events nothing wakes up. A full disk costs only lines, which are counted: the first line that can be
written again has their number.
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
from functools import lru_cache
from typing import Any

import trio

from nsm.dataclass import dataclass
from nsmd.audit.audit_file import AuditFile
from nsmd.model.settings import AuditSettings

log = logging.getLogger(__name__)

GATHER_S = 0.25
"""Longest time that a line waits for others; a killed supervisor may lose that much."""

MAX_WAITING = 20_000
"""Largest number of queued lines; more are dropped and counted. At 3,000 executions a second, this
is 7 s of a hanging disk.
"""

MAX_WAITING_CHARS = 64 * 1024 * 1024
"""Largest size of code that waits for its hash."""

LAST_LINES_S = 2.0
"""Time for the remaining lines when the supervisor ends."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


@dataclass(slots=True)
class AuditRecord:
    """One line before it is written.

    Attributes:
        at_s: Unix time.
        facts: plain values, `event` among them.
        code: executed code; None if there is none, or if it is no longer known.
    """

    at_s: float
    facts: dict[str, Any]
    code: str | None = None


class Journal:
    """Bounded queue of audit records that a thread writes in batches.

    Args:
        path: path of the file.
        settings: `[audit]`.
        wall: Unix time now.

    Attributes:
        written: number of lines.
        dropped: number of lines lost to a full disk or a full queue.
        problem: why lines cannot be written now, for people; else empty.
        gather: returns further records, at each write.
    """

    def __init__(
        self, path: str, settings: AuditSettings, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.enabled = settings.enabled
        self.written = self.dropped = 0
        self.problem = ""
        self.gather: Callable[[], Iterable[AuditRecord]] = tuple
        self.wall = wall
        self._with_code = settings.code
        self._file = AuditFile(path, max_bytes=settings.max_mb << 20, keep=settings.keep)
        self._waiting: list[AuditRecord] = []
        self._waiting_chars = 0
        self._wanted = trio.Event()
        # so that threads of other parts do not delay ours
        self._threads = trio.CapacityLimiter(math.inf)
        self._lock = threading.Lock()  # a thread may still hang in a write that timed out
        self._counting = threading.Lock()
        self._lost = 0

    def __repr__(self) -> str:
        return f"<Journal {self._file.path} {self.problem or 'well'}>"

    def configure(self, settings: AuditSettings) -> None:
        """Use other settings from now on."""
        self.enabled = settings.enabled
        self._with_code = settings.code
        self._file.max_bytes = settings.max_mb << 20
        self._file.keep = settings.keep

    def facts(self) -> dict[str, Any]:
        """Facts for `nsm status`."""
        return {
            "enabled": self.enabled,
            "path": self._file.path,
            "written": self.written,
            "dropped": self.dropped,
            "problem": self.problem,
        }

    def put(self, record: AuditRecord) -> None:
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
        """Note that `gather` has records."""
        self._wanted.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wanted.wait()
            await trio.sleep(GATHER_S)
            self._wanted = trio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write all waiting lines."""
        await trio.lowlevel.checkpoint_if_cancelled()  # later calls find them with the thread
        if records := self.take():
            # Cancelled when the supervisor ends: a hanging disk must not hold it up.
            await trio.to_thread.run_sync(
                self.write, records, abandon_on_cancel=True, limiter=self._threads
            )

    def take(self) -> list[AuditRecord]:
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

    def write(self, records: list[AuditRecord]) -> None:
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

    def _append(self, record: AuditRecord) -> None:
        # One write per line: so a line is complete, and the interpreter's lock is released in
        # between for the event loop.
        self._file.append(self._line(record))
        self.written += 1

    def _append_gap(self) -> None:
        lost, why = self._lost, self.problem
        gap = {"event": "gap", "lost": lost, "why": why}
        self._file.append(self._line(AuditRecord(self.wall(), gap)))
        with self._counting:
            self._lost -= lost

    def _line(self, record: AuditRecord) -> bytes:
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
            log.warning("the audit has lost lines, and continues without them: %s", why)
        self.problem = why


def rfc3339(at_s: float) -> str:
    """Format a time as in RFC 3339, UTC with microseconds."""
    second, fraction = divmod(round(at_s * 1e6), 1_000_000)
    return f"{_second(second)}.{fraction:06}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@asynccontextmanager
async def open_journal(path: str, settings: AuditSettings) -> AsyncGenerator[Journal]:
    """Open a journal for the block; its last lines are written at the end."""
    journal = Journal(path, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        try:
            yield journal
        finally:
            nursery.cancel_scope.cancel()
            await journal.close()


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Remove facts with empty values."""
    return {key: value for key, value in facts.items() if value not in (None, "", [], ())}
