"""Calls of the bridge that a killed supervisor left without an end, and the fates of others.

A supervisor that writes to the audit has a marker file beside it, holds a lock on that, and removes
it when all calls have their ends. A marker without a lock is from a supervisor that was killed. The
lock decides, not a process id: supervisors may be in several process namespaces, and live ones are
left alone. All of this blocks, so it runs in a thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

from nsmd.audit.audit_file import AuditFile, numbers, sync_directory
from nsmd.bridge import ledger_entries

log = logging.getLogger(__name__)

Fate = Literal["never", "under-way", "ended"]

CHUNK_BYTES = 256 * 1024
"""Bytes to read at once, so that other threads may run in between."""

_MARK = ".writer-"


class Writer:
    """Marker file of a supervisor that writes.

    Args:
        path: path of the audit.

    Attributes:
        name: name of the supervisor in the lines of its calls.
    """

    def __init__(self, path: str) -> None:
        self.name = os.urandom(6).hex()
        self._audit = path
        self._path = f"{path}{_MARK}{self.name}"
        self._descriptor = -1

    def __repr__(self) -> str:
        return f"<Writer {self.name}>"

    def begin(self) -> None:
        """Make the file, before the first line is written. May be repeated.

        Raises:
            OSError: the file can't be made.
        """
        while self._descriptor < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 0:  # a process that settles was faster
                    os.close(descriptor)
                    continue
                # No file that was already set aside has lines of ours.
                os.write(descriptor, b"%d\n" % max(numbers(self._audit), default=0))
                sync_directory(os.path.dirname(self._path))
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    def close(self, *, settled: bool) -> None:
        """Close the file.

        Args:
            settled: all calls have their ends; otherwise the file stays for the next supervisor.
        """
        if self._descriptor < 0:
            return
        with suppress(OSError):  # then the next supervisor finds nothing in it
            if settled:
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = -1


def settle(audit: AuditFile, wall: Callable[[], float]) -> int:
    """Write the ends of calls whose supervisors were killed.

    Args:
        audit: file that nobody else uses.
        wall: Unix time now.

    Returns:
        Number of ends.

    Raises:
        OSError: the directory can't be read.
    """
    directory, name = os.path.split(audit.path)
    try:
        beside = sorted(os.listdir(directory))
    except FileNotFoundError:
        return 0
    settled = 0
    for each in beside:
        if each.startswith(name + _MARK):
            try:
                settled += _settle_one(audit, os.path.join(directory, each), wall)
            except OSError as error:  # the next supervisor tries again
                log.warning("the ends of a killed supervisor's calls cannot be written: %s", error)
    return settled


def fate(path: str, call_id: str, scope: str) -> Fate:
    """Find the fate of a call in the audit log.

    Raises:
        OSError: it can't be read.
    """
    mark, wanted = ledger_entries.mark(call_id), (scope[: ledger_entries.NAME_CHARS], call_id)
    for each in newest_first(path):  # repeated calls are mostly recent
        found = [
            line["event"]
            for line in lines(each, mark)
            if line["event"] in ("start", "end") and ledger_entries.key(line) == wanted
        ]
        if found:
            return "ended" if found[-1] == "end" else "under-way"
    return "never"


def lines(path: str, mark: bytes) -> Iterator[ledger_entries.Facts]:
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
                    if mark in line and (facts := ledger_entries.parsed(line)) is not None:
                        yield facts
    finally:
        os.close(descriptor)


def newest_first(path: str, *, after: int = 0) -> Iterator[str]:
    """Yield the audit's files. The files that were set aside are listed after the newest was read:
    so a file that is renamed meanwhile is read twice, and never missed.
    """
    yield path
    with suppress(FileNotFoundError):
        for number in sorted(numbers(path), reverse=True):
            if number > after:
                yield f"{path}.{number}"


def _settle_one(audit: AuditFile, marker: str, wall: Callable[[], float]) -> int:
    """Write the missing ends of one supervisor."""
    descriptor = os.open(marker, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # it lives, or somebody else settles it
        if os.fstat(descriptor).st_nlink == 0:
            return 0
        after = os.read(descriptor, 32).strip()
        name = marker.rpartition(_MARK)[2]
        begun = _begun(audit.path, name, after=int(after) if after.isdigit() else 0)
        for call in begun:
            audit.append(ledger_entries.settled(call, at_s=wall()))
        audit.sync()
        os.unlink(marker)
        return len(begun)
    finally:
        os.close(descriptor)


def _begun(path: str, supervisor: str, *, after: int) -> list[ledger_entries.Facts]:
    """Starts of a supervisor's calls without an end."""
    mark = ledger_entries.supervisor_mark(supervisor)
    of_files = [list(lines(each, mark)) for each in newest_first(path, after=after)]
    begun: dict[tuple[str, str], ledger_entries.Facts] = {}
    for line in (line for of_file in reversed(of_files) for line in of_file):
        if line["event"] == "start":
            begun[ledger_entries.key(line)] = line
        else:
            begun.pop(ledger_entries.key(line), None)
    return list(begun.values())
