"""Ends of sessions, and files with their names, so that the next call learns of an end in any
case.

There is one small file for each name in the runtime directory, from a session's start until a
client learned of its end. A supervisor that finds a name without a session knows that the session
was lost with the supervisor and the holder of its sessions, or at `nsm shutdown`, which leaves one
file for all that began before. The runtime directory is in memory, so nothing waits for a disk; at
a reboot the files go, as sessions do.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import suppress

import trio

from nsm.dataclass import dataclass, replace
from nsm.paths import replace_file
from nsmd.fdstore import records
from nsmd.fdstore.records import EndRecord, NewerRecordError, RecordError, boot_id
from nsmd.model.text import duration

log = logging.getLogger(__name__)

MAX_ENDED = 1000
"""Largest number of ended sessions to remember, so that a later call with that name gets the
reason.
"""

MAX_RECORD_BYTES = 4096
"""Largest file that is read; a scope holds a path, a reason is a sentence."""

SHUT_DOWN = "the supervisor was shut down"
UNATTENDED = "it ended while there was no supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """End of a session: the reason, and the time on trio's clock (seconds).

    Attributes:
        lost: its jail or its agent failed; neither a person nor a limit ended it.
    """

    reason: str
    at_s: float
    lost: bool = False

    def words(self) -> str:
        """Text for people: ``ended 12 min ago (idle timeout)``."""
        verb = "was lost" if self.lost else "ended"
        return f"{verb} {duration(trio.current_time() - self.at_s)} ago ({self.reason})"


class EndedSessionFiles:
    """Files with names of live sessions, and with the ends of others; `EndedSessions` tells
    clients.

    What cannot be written is logged once, and lost with the supervisor.

    Args:
        directory: directory for only these files; it is made when needed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._failed = False

    def __repr__(self) -> str:
        return f"<EndedSessionFiles {self._directory}>"

    def began(self, scope: str, name: str) -> None:
        """Note that a session has this name now."""
        now_s = time.monotonic()
        self._write(EndRecord(scope=scope, name=name, reason="", at_s=now_s, boot=boot_id()))

    def keep(self, scope: str, name: str, ended: SessionEnd) -> None:
        """Note that a session of that name has ended."""
        at_s = ended.at_s - trio.current_time() + time.monotonic()
        self._write(
            EndRecord(
                scope=scope,
                name=name,
                reason=ended.reason,
                at_s=at_s,
                boot=boot_id(),
                lost=ended.lost,
            )
        )

    def shut_down(self) -> None:
        """Note that all sessions end now. To replace thousands of files would take seconds."""
        now_s = time.monotonic()
        self._write(EndRecord(scope="", name="", reason=SHUT_DOWN, at_s=now_s, boot=boot_id()))

    def forget(self, scope: str, name: str) -> None:
        """Remove a file: a client knows of the end, or nobody needs to."""
        with suppress(OSError):
            os.unlink(self._path(scope, name))

    def take_up(
        self,
        live: Collection[tuple[str, str]],
        tell: Callable[[str, str, SessionEnd], None],
        *,
        all_seen: bool = True,
    ) -> set[tuple[str, str]]:
        """Report how sessions of an earlier supervisor ended, the earliest first.

        Args:
            tell: gets scope, name and end of each of the others.
            all_seen: False if sessions that have not ended may be elsewhere.

        Returns:
            Scope and name of each session that may be elsewhere.
        """
        elsewhere: set[tuple[str, str]] = set()
        now_s, current_s = time.monotonic(), trio.current_time()
        files = {self._path(scope, name) for scope, name in live}  # thousands need not be read
        left = sorted(self._records(files), key=lambda each: each.at_s)
        boot = boot_id()
        shut_down = next((each for each in left if not each.name and each.boot == boot), None)
        for record in left:
            if not record.name:
                continue
            if (
                shut_down is not None
                and not record.reason
                and record.boot == boot
                and record.at_s <= shut_down.at_s
            ):
                record = replace(shut_down, scope=record.scope, name=record.name)  # noqa: PLW2901
            if not record.reason and not all_seen:
                elsewhere.add((record.scope, record.name))
                continue
            known = record.reason and record.boot == boot
            age_s = max(0.0, now_s - record.at_s) if known else 0.0
            lost = record.lost or not record.reason
            reason = record.reason or UNATTENDED
            tell(
                record.scope,
                record.name,
                SessionEnd(reason=reason, at_s=current_s - age_s, lost=lost),
            )
        return elsewhere

    def _records(self, without: Container[str]) -> Iterator[EndRecord]:
        try:
            paths = [entry.path for entry in os.scandir(self._directory)]
        except OSError:
            return
        for path in paths:
            if path in without:
                continue
            try:
                with open(path, "rb") as file:
                    yield records.decode(EndRecord, file.read(MAX_RECORD_BYTES))
            except (OSError, RecordError) as error:
                log.warning("how a session ended cannot be read from %s: %s", path, error)
                if isinstance(error, NewerRecordError):
                    continue  # it stays for that version
                with suppress(OSError):
                    os.unlink(path)

    def _write(self, record: EndRecord) -> None:
        path = self._path(record.scope, record.name)
        try:
            try:
                replace_file(path, records.encode(record))
            except FileNotFoundError:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                replace_file(path, records.encode(record))
        except OSError as error:
            if not self._failed:
                log.warning("ends of sessions would be forgotten with the supervisor: %s", error)
            self._failed = True

    def _path(self, scope: str, name: str) -> str:
        key = hashlib.sha256(f"{scope}\0{name}".encode(errors="replace")).hexdigest()
        return os.path.join(self._directory, key[:32])


class EndedSessions:
    """The last `MAX_ENDED` ends, by (scope, name); the oldest is dropped."""

    def __init__(self, store: EndedSessionFiles | None = None) -> None:
        self._store = store
        self._ends: OrderedDict[tuple[str, str], SessionEnd] = OrderedDict()

    def add(self, scope: str, name: str, reason: str, *, lost: bool = False) -> None:
        """Note that a session of that name has ended."""
        ended = SessionEnd(reason=reason, at_s=trio.current_time(), lost=lost)
        self.restore(scope, name, ended)
        if self._store is not None:
            self._store.keep(scope, name, ended)

    def restore(self, scope: str, name: str, ended: SessionEnd) -> None:
        """Note that a session has ended under an earlier supervisor."""
        self._ends[scope, name] = ended
        self._ends.move_to_end((scope, name))
        if len(self._ends) > MAX_ENDED:
            oldest, _ = self._ends.popitem(last=False)
            if self._store is not None:
                self._store.forget(*oldest)

    def begin(self, scope: str, name: str) -> str | None:
        """Note that a session of that name begins.

        Returns:
            How the last session of that name ended, in words; given only once.
        """
        if self._store is not None:
            self._store.began(scope, name)
        ended = self._ends.pop((scope, name), None)
        return None if ended is None else ended.words()
