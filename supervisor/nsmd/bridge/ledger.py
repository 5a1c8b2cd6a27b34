"""Record of calls of bridge programs, on disk before anything starts.

A call's start is written, or nothing is started; its end is written as soon as it can be. The
call's id connects the lines of one call. A line has the request as it came. Of a refused call only
the beginning is kept: nothing happened, and a client that only sends refused calls must not fill
the disk. For the same reason the rate at which calls of one client are recorded is limited: one
that is too fast waits for its answers; nobody else does.
"""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, cast

import trio

from nsm.wire.errors import AuditFailedError
from nsmd.audit.journal import Journal, line_of, numbers, open_journal
from nsmd.bridge.programs import ProgramEnd, RecordedCall

END_S = 2.0
"""How long an answer waits until the end of its call is written. If that fails, it is written
later.
"""

FATE_BYTES = 16 * 1024
FATE_S = 10.0
"""Cost and time limit of looking up a call, which may search all files."""

REFUSED_CHARS = 4096
"""Characters of all arguments of a refused call together."""

AGAIN_REFUSED_CHARS = 200
"""The same for a client that sends many: there is little room for so many."""

REFUSED_ARGUMENTS = 100

NAME_CHARS = 256
"""Characters of names that clients choose."""

REASON_CHARS = 1000

BURST_BYTES = 8 * 1024 * 1024
BYTES_PER_S = 64 * 1024
"""Rate for calls that start something: several programs a second with long arguments stay below."""

PACE_S = 2.0
"""Longest wait of such a call. Calls that would wait longer are refused and counted: one line has
their number, as soon as there is room for it.
"""

REFUSED_BURST_BYTES = 1024 * 1024
REFUSED_BYTES_PER_S = 2 * 1024
"""Rate for refused calls: thousands at once, and then half a dozen a second for ever, 170 MiB a
day.
"""

REFUSED_S = 30.0
"""Longest wait of such a call. As many calls as one client may have at once wait less, except with
the longest lines: then they are counted, too.
"""

MAX_SCOPES = 256
"""Largest number of clients whose rate is known, the latest ones."""

CHUNK_BYTES = 256 * 1024
"""Bytes to read at once, so that other threads may run in between."""

Fate = Literal["never", "under-way", "ended"]

Facts = dict[str, Any]


class Ledger:
    """Record of calls; made by `open_ledger`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._name = os.urandom(6).hex()
        self._paces: OrderedDict[str, _Pace] = OrderedDict()
        self._hurried = trio.Event()
        self._looking = trio.Lock()  # one after the other
        # so that threads of other parts do not delay ours
        self._threads = trio.CapacityLimiter(math.inf)

    def __repr__(self) -> str:
        return f"<Ledger of {self._journal!r}>"

    @property
    def problem(self) -> str:
        """Reason why lines cannot be written now, for people; else empty."""
        return self._journal.problem

    def configure(self, *, max_mb: int) -> None:
        """Change the size from which on a file is set aside."""
        self._journal.file.max_bytes = max_mb << 20

    async def begin(self, asked: RecordedCall) -> None:
        """Record that a program is about to start. On return, the line is on disk, and the call
        must be ended by `end`; a cancelled one counts as not started. After an `AuditFailedError`,
        it is not on disk, and nothing may be started.
        """
        facts = _who_asks(asked) | {
            "arguments": list(asked.arguments),
            "decision": "allowed",
            "supervisor": self._name,
        }
        line = self._line("start", asked, facts)
        pace = self._pace_of(asked.caller.scope)
        await self._wait(pace, pace.starts, len(line), PACE_S, asked, "nothing was started")
        problem = await self._journal.write_now(
            line, lambda why: self._end_line(asked, not_started(why))
        )
        if problem:
            raise _failed(problem, "nothing was started")

    async def refuse(self, asked: RecordedCall, reason: str) -> None:
        """Record that a call was refused, and why. If that could not be written, `AuditFailedError`
        has the reason as well.
        """
        pace = self._pace_of(asked.caller.scope)
        facts = _refused(asked, reason, REFUSED_CHARS)
        size = len(self._line("refused", asked, facts))
        if pace.refusals.wait_s(size):  # it keeps sending refused calls
            facts = _refused(asked, reason, AGAIN_REFUSED_CHARS)
            size = len(self._line("refused", asked, facts))
        because = f"the call was refused anyway: {reason}"
        await self._wait(pace, pace.refusals, size, REFUSED_S, asked, because)
        # Lines are in the order of their times.
        if problem := await self._journal.write_now(self._line("refused", asked, facts)):
            raise _failed(problem, because)

    def count_refused(self, asked: RecordedCall) -> None:
        """Count a refused call without a line of its own, because too many others are under way;
        the next line of that scope has the number.
        """
        self._pace_of(asked.caller.scope).unwritten += 1

    def hurry(self) -> None:
        """Let the last lines wait only for the disk."""
        self._hurried.set()

    async def end(self, asked: RecordedCall, outcome: Facts) -> None:
        """Record what came of a call after `begin`, soon, even if this is cancelled; disk errors
        raise nothing. The outcome is from `ended`, `not_started` or `failed`.
        """
        written = self._journal.keep(self._end_line(asked, outcome))
        with trio.move_on_after(END_S, shield=True):
            await written.wait()

    async def fate(self, call_id: str, scope: str) -> Fate:
        """Find the fate of a call, of this supervisor or of an earlier one. A client learns nothing
        of calls of other scopes. An `AuditFailedError` says that the audit can't be read, so that
        nobody knows.
        """
        problem = "it takes too long"
        with trio.move_on_after(FATE_S):
            # Before it gets its turn: a client that waits for its own rate limit delays nobody
            # else.
            await self._hurried_after(self._pace_of(scope).starts.take(FATE_BYTES))
            async with self._looking:
                try:
                    return await trio.to_thread.run_sync(
                        find_fate,
                        self._journal.file.path,
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

    def _line(self, event: str, asked: RecordedCall, facts: Facts) -> bytes:
        return line_of(self._journal.wall(), {"event": event, "id": asked.id, **facts})

    def _end_line(self, asked: RecordedCall, outcome: Facts) -> bytes:
        return self._line("end", asked, _whose(asked) | {"supervisor": self._name, **outcome})

    def _pace_of(self, scope: str) -> _Pace:
        pace = self._paces.pop(scope, None) or _Pace()
        self._paces[scope] = pace
        if len(self._paces) > MAX_SCOPES:
            self._paces.popitem(last=False)
        return pace

    async def _wait(
        self,
        pace: _Pace,
        rate_limit: RateLimit,
        size: int,
        patience_s: float,
        asked: RecordedCall,
        because: str,
    ) -> None:
        """Wait for the client's rate limit."""
        if not self._hurried.is_set():
            if rate_limit.wait_s(size) > patience_s:
                pace.unwritten += 1
                raise _failed("this client's calls come faster than they are written down", because)
            await self._hurried_after(rate_limit.take(size))
        if pace.unwritten:
            facts = _whose(asked) | {
                "program": None,
                "decision": "refused",
                "reason": "more calls of this client, which came faster than they are written down",
                "calls": pace.unwritten,
            }
            pace.unwritten = 0
            now_s = self._journal.wall()
            self._journal.keep(line_of(now_s, {"event": "refused", "id": "", **facts}))

    async def _hurried_after(self, wait_s: float) -> None:
        """Wait, at most until the last lines are written."""
        if wait_s:
            with trio.move_on_after(wait_s):
                await self._hurried.wait()


class _Pace:
    """Rate limits of one client: of calls that start something, and of others; and the number of
    calls that were refused for the limit, without a line.
    """

    def __init__(self) -> None:
        self.starts = RateLimit(BURST_BYTES, BYTES_PER_S)
        self.refusals = RateLimit(REFUSED_BURST_BYTES, REFUSED_BYTES_PER_S)
        self.unwritten = 0


class RateLimit:
    """A token bucket of bytes: `burst` at once, `per_s` in the long run. Waiting calls continue in
    order of arrival.
    """

    __slots__ = ("_burst", "_bytes", "_filled_s", "_per_s")

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = self._bytes = float(burst)
        self._per_s = per_s
        self._filled_s = trio.current_time()

    def __repr__(self) -> str:
        return f"<RateLimit {self._bytes:.0f} of {self._burst:.0f}>"

    def wait_s(self, size: int) -> float:
        """Seconds that so many more bytes have to wait."""
        now_s = trio.current_time()
        filled = self._bytes + (now_s - self._filled_s) * self._per_s
        self._bytes, self._filled_s = min(filled, self._burst), now_s
        return max(0.0, (size - self._bytes) / self._per_s)

    def take(self, size: int) -> float:
        """Take so many bytes. Returns the seconds to wait before they may be added."""
        wait_s = self.wait_s(size)
        self._bytes -= size
        return wait_s


# Facts of lines.


def ended(outcome: ProgramEnd) -> Facts:
    """Describe the outcome of a started program."""
    facts: Facts = {
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "why_stopped": outcome.why_stopped,
        "duration_s": round(outcome.duration_s, 6),
    }
    return facts | ({"left": outcome.left} if outcome.left else {})


def not_started(reason: str) -> Facts:
    """Describe a call that could not be started after all."""
    return {"why_stopped": "not-started", "reason": reason[:REASON_CHARS]}


def failed(reason: str) -> Facts:
    """Describe a call in which nsm itself failed."""
    reason = reason[:REASON_CHARS]
    return {"exit_code": None, "signal": None, "why_stopped": "fault", "reason": reason}


def _refused(asked: RecordedCall, reason: str, most: int) -> Facts:
    """Describe a refused call."""
    kept: list[str] = []
    room = most
    for argument in asked.arguments[:REFUSED_ARGUMENTS]:
        kept.append(argument[:room])
        room -= len(kept[-1])
        if room <= 0:
            break
    facts: Facts = {**_who_asks(asked), "arguments": kept}
    if kept != list(asked.arguments):
        facts["arguments_in_all"] = len(asked.arguments)
        facts["argument_chars_in_all"] = sum(map(len, asked.arguments))
    return facts | {"decision": "refused", "reason": reason[:REASON_CHARS]}


def _who_asks(asked: RecordedCall) -> Facts:
    facts = _whose(asked)
    facts["way"] = asked.caller.way
    if asked.caller.peer is not None:
        facts["pid"], facts["uid"] = asked.caller.peer
    return facts


def _whose(asked: RecordedCall) -> Facts:
    return {
        "client": asked.caller.client[:NAME_CHARS],
        "scope": asked.caller.scope[:NAME_CHARS],
        "program": asked.program[:NAME_CHARS],
    }


def _failed(problem: str, because: str) -> AuditFailedError:
    return AuditFailedError(
        f"This call could not be recorded in the audit of the bridge ({problem}); {because}.",
        hint="`nsm doctor` says more, on the host. Call again when it can be written.",
    )


# Look-up of earlier calls. All of this blocks.


def find_fate(path: str, call_id: str, scope: str) -> Fate:
    """Find the fate of a call in the audit log."""
    # Quotes within values are escaped, and only a name is followed by a colon.
    mark = f',"id":{json.dumps(call_id)},'.encode()
    for each in newest_first(path):  # repeated calls are mostly recent
        found = [
            line["event"]
            for line in lines(each, mark)
            if line["event"] in ("start", "end")
            and (line["id"], line.get("scope")) == (call_id, scope[:NAME_CHARS])
        ]
        if found:
            return "ended" if found[-1] == "end" else "under-way"
    return "never"


def lines(path: str, mark: bytes = b"") -> Iterator[Facts]:
    """Yield the complete lines of a file that contain a mark, the oldest first."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    rest = b""
    try:
        while data := os.read(descriptor, CHUNK_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline and mark in whole:
                for line in whole.split(b"\n"):
                    if mark in line and (facts := _parsed(line)) is not None:
                        yield facts
    finally:
        os.close(descriptor)


def newest_first(path: str) -> Iterator[str]:
    """Yield the audit's files. The files that were set aside are listed after the newest was read:
    so a file that is renamed meanwhile is read twice, and never missed.
    """
    yield path
    with suppress(FileNotFoundError):
        for number in sorted(numbers(path), reverse=True):
            yield f"{path}.{number}"


def _parsed(line: bytes) -> Facts | None:
    """Parse a line; None if it is torn, or written by another program."""
    try:
        facts: object = json.loads(line)
    except ValueError:
        return None
    if not isinstance(facts, dict):
        return None
    found = cast("Facts", facts)
    return found if all(isinstance(found.get(key), str) for key in ("at", "event", "id")) else None


@asynccontextmanager
async def open_ledger(path: str, *, max_mb: int) -> AsyncGenerator[Ledger]:
    """Open a ledger for the block; its last lines are written at the end."""
    async with open_journal(path, max_mb=max_mb, keep=None) as journal:
        yield Ledger(journal)
